"""The model, which training and evaluation have to agree on."""

from torch import nn


def network() -> nn.Module:
    """A small convolutional network for images of 8x8 pixels: about 52,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
