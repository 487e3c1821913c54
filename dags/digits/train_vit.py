"""Trains the vision transformer with Hugging Face's Trainer, on all digits or on some of them.

The trainer loads what the run starts from by itself: nothing here is different for fine-tuning.
"""

import argparse
import io

import numpy as np
import torch
from files import read
from transformers import TrainingArguments
from vit import vit

from airflow_elastic.frameworks.huggingface import ElasticTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the data set, as data.py writes it: a path, or s3://")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--digits", type=int, default=10, help="train with the digits below this one")
parser.add_argument("--images", type=int, help="train with so many images. Default: all")
options = parser.parse_args()

with np.load(io.BytesIO(read(options.data))) as stored:
    data, validation = (
        [
            {"pixel_values": torch.from_numpy(image), "labels": int(label)}
            for image, label in zip(stored[f"{part}images"], stored[f"{part}labels"], strict=True)
            if label < options.digits
        ]
        for part in ("", "validation_")
    )


def accuracy(predicted):
    return {"accuracy": float(np.mean(predicted.predictions.argmax(-1) == predicted.label_ids))}


torch.manual_seed(0)
trainer = ElasticTrainer(
    global_batch=32,
    model=vit(),
    args=TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=32,
        num_train_epochs=options.epochs,
        learning_rate=options.lr,
        eval_strategy="epoch",  # an early stop looks at eval_accuracy
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=data[: options.images],
    eval_dataset=validation,
    compute_metrics=accuracy,
)
trainer.train()
trainer.finish(**trainer.evaluate())
