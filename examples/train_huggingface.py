"""Learns handwritten digits with Hugging Face's Trainer: of those it has not seen it knows four out of five.

airflow-elastic run --workers 2 --min 1 --max 4 --uri runs/hf -- examples/train_huggingface.py --epochs 5
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification

from airflow_elastic.frameworks.huggingface import ElasticTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

digits = load_digits()
pictures = [
    {"pixel_values": torch.tensor(picture / 16, dtype=torch.float32)[None], "labels": int(label)}
    for picture, label in zip(digits.images, digits.target, strict=True)
]
torch.manual_seed(0)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    num_labels=10,
)


def accuracy(predicted):
    return {"accuracy": float(np.mean(predicted.predictions.argmax(-1) == predicted.label_ids))}


trainer = ElasticTrainer(
    global_batch=32,  # 1: of all ranks together, however many there are
    model=ViTForImageClassification(config),
    args=TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=32,  # the most a device takes at once
        num_train_epochs=options.epochs,
        learning_rate=2e-3,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=pictures[360:],
    eval_dataset=pictures[:360],
    compute_metrics=accuracy,
)
trainer.train()
trainer.finish(**trainer.evaluate())  # 2: hands over the results
