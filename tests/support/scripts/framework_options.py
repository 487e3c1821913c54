"""What the scripts of the frameworks have in common: their options, their data, and what they leave behind.

Options: --epochs N; --step-seconds S; --dropout P; --optimizer adamw or sgd; --linger: the first attempt stands still
when it has trained; --untold: nothing says that there are no GPUs; --gpu: on the rank's; --out FILE: rank 0 writes a
digest of the weights at the end, and where the training stands by the framework's own account; the weights lie beside
it.
"""

import argparse
import hashlib
import os
import signal

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--linger", action="store_true")
parser.add_argument("--untold", action="store_true")
parser.add_argument("--gpu", action="store_true")
parser.add_argument("--out")
options = parser.parse_args()

torch.set_num_threads(1)

#: Samples: the last global batch of an epoch has 4 of them.
LENGTH, GLOBAL_BATCH = 100, 16

#: A device takes so many at once: one rank accumulates gradients of four batches, two of two.
MOST = 4


class Points(torch.utils.data.Dataset):
    """A function to be learned."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = torch.tensor([index % 10, index // 10]).float() / 10
        return torch.cat([x, x.square(), x.sin(), x.flip(0)]), x.sum(0, keepdim=True)


def network():
    """A small one, the same on all ranks."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(options.dropout), torch.nn.Linear(16, 1)
    )


def optimizer_of(model):
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
    return kind(model.parameters(), lr=0.02)


def trained():
    """Between the last step and what comes after it."""
    while options.linger and os.environ["AIRFLOW_ELASTIC_ATTEMPT"] == "1":
        signal.pause()


def leave_behind(model, *standing):
    """What the training has come to."""
    if not options.out:
        return
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    torch.save(weights, f"{options.out}.pt")
    digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in weights.values())).hexdigest()
    with open(options.out, "w", encoding="utf-8") as file:
        file.write("\n".join(map(str, (digest, *standing))))
