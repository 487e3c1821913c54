"""cli.md: the commands, out of click."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from airflow_elastic.cli.main import PROGRAM, cli
from generator.markdown import BY, code, fence, table


def cli_page() -> str:
    parts = [BY, f"# {PROGRAM}\n\n", _command_words(cli.help or ""), "\n"]
    parts.append("Where Airflow is installed `airflow elastic …` offers the same commands.\n\n")
    for name, command in _all(cli):
        context = click.Context(command, info_name=f"{PROGRAM} {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [
            f"## {name}\n\n",
            fence(f"{PROGRAM} {name} {usage}", "text"),
            "\n",
            _command_words(command.help or ""),
        ]
        records = [
            record
            for parameter in command.params
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(context)) is not None
        ]
        if records:
            parts += [
                "\n",
                table(
                    ("option", "meaning"),
                    ((code(left), right.replace("  [", " [")) for left, right in records),
                ),
            ]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _all(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield before + name, command
        if isinstance(command, click.Group):
            yield from _all(command, f"{before}{name} ")


def _command_words(text: str) -> str:
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\nExample"):
            parts.append(fence("\n".join(paragraph.splitlines()[2:]), "sh"))
        else:
            parts.append(paragraph.replace("\b\n", "") + "\n")
    return "\n".join(parts)
