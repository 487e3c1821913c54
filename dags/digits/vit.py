"""A small vision transformer of Hugging Face, made from its configuration: nothing is downloaded."""

from transformers import ViTConfig, ViTForImageClassification


def vit() -> ViTForImageClassification:
    """For images of 8x8 pixels: about 70,000 parameters, with random values."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=10,
        )
    )
