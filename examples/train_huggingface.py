"""Learns handwritten digits with Hugging Face's Trainer, each picture read as a sequence of 64 shades of grey.

airflow-elastic run --workers 2 --min 1 --max 4 --uri runs/hf -- examples/train_huggingface.py --epochs 3
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from airflow_elastic.frameworks.huggingface import ElasticTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

digits = load_digits()
pictures = [
    {"input_ids": torch.tensor(pixels, dtype=torch.long), "labels": int(label)}
    for pixels, label in zip(digits.data, digits.target, strict=True)
]
torch.manual_seed(0)
config = BertConfig(
    vocab_size=17,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=64,
    num_labels=10,
)


def accuracy(predicted):
    return {"accuracy": float(np.mean(predicted.predictions.argmax(-1) == predicted.label_ids))}


trainer = ElasticTrainer(
    global_batch=64,  # 1: of all ranks together, however many there are
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=32,  # the most a device takes at once
        num_train_epochs=options.epochs,
        learning_rate=1e-3,
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
