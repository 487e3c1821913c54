"""Fails as code does: with an exception, at once, each time."""


def deep() -> None:
    raise ValueError("the learning rate is a banana")


print("about to fail", flush=True)
deep()
