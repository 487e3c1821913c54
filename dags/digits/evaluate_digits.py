"""Measures a model on digits that it has not seen. It runs on any engine, with any number of ranks."""

import argparse
import io

import numpy as np
import torch
from files import read
from network import network

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the data set, as data.py writes it: a path, or s3://")
options = parser.parse_args()

run = elastic.init()
model = network().to(run.device)
run.restore(model)  # the checkpoint, or the promoted model, that the task names
with np.load(io.BytesIO(read(options.data))) as stored:
    images = torch.from_numpy(stored["held_out_images"]).to(run.device)
    labels = torch.from_numpy(stored["held_out_labels"]).to(run.device)
model.eval()
with torch.inference_mode():
    accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
print(f"accuracy {accuracy:.4f} on {len(labels)} digits that training has not seen")
run.finish(accuracy=accuracy)
