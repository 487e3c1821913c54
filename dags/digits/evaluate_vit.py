"""Measures a vision transformer on digits that it has not seen."""

import argparse
import io

import numpy as np
import torch
from files import read
from vit import vit

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the data set, as data.py writes it: a path, or s3://")
options = parser.parse_args()

run = elastic.init()
model = vit().to(run.device)
run.restore(model)  # the checkpoint, or the promoted model, that the task names
with np.load(io.BytesIO(read(options.data))) as stored:
    images = torch.from_numpy(stored["held_out_images"]).to(run.device)
    labels = torch.from_numpy(stored["held_out_labels"]).to(run.device)
model.eval()
with torch.inference_mode():
    right = (model(pixel_values=images).logits.argmax(dim=1) == labels).float()
for digit in (8, 9):
    print(f"of digit {digit}: {right[labels == digit].mean().item():.0%} right")
run.finish(accuracy=right.mean().item())
