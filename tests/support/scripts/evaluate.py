"""A tiny evaluation: the metric is the sum of the weights. Options: --fail-first: raise in the first attempt."""

import argparse

import torch

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--fail-first", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
run = elastic.init()
model = torch.nn.Sequential(torch.nn.Linear(4, options.width))
run.restore(model)
if options.fail_first and run.attempt == 1:
    raise RuntimeError("as asked")
run.step()
run.save()
total = sum(float(one.detach().sum()) for one in model.parameters())
run.finish(total=total, ranks=run.world_size)
