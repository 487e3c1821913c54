"""Help texts that keep the lines of their examples."""

from __future__ import annotations

import inspect
from typing import Any

import click


def keep_examples(text: str | None) -> str | None:
    """Mark the paragraphs that are examples, so that click keeps their lines."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(f"\b\n{p}" if p.startswith("Example") else p for p in paragraphs) or None


class Command(click.Command):
    """A command whose docstring ends with an example."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "help": keep_examples(options.get("help"))})
