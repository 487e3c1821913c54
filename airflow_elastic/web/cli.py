"""`airflow elastic …`: every command of `airflow-elastic` as a command of `airflow`.

The commands are defined once, in `airflow_elastic.cli`. This module makes parameters of Airflow's CLI from their
parameters, and passes the values to them as command-line arguments.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import click
from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_elastic.cli.main import cli, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Prefix of our arguments, because Airflow has arguments of its own in the same namespace.
_PREFIX = "elastic_"


def get_elastic_cli_commands() -> list[GroupCommand]:
    """The commands that Airflow loads through `cli` in the provider's description."""
    commands = [_action(words, command) for words, command in _all(cli)]
    return [GroupCommand(name="elastic", help="Elastic, fault-tolerant training", subcommands=commands)]


def _all(group: click.Group) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from (((name, *words), below) for words, below in _all(command))
        else:
            yield (name,), command


def _action(words: tuple[str, ...], command: click.Command) -> ActionCommand:
    return ActionCommand(
        name="-".join(words).removesuffix("-now"),  # Airflow has no groups within groups
        help=_plain(command.get_short_help_str(limit=200)),
        description=_plain(command.help),
        func=_runner(words, command),
        args=[_arg(parameter) for parameter in command.params],
    )


def _arg(parameter: click.Parameter) -> Arg:
    dest = f"{_PREFIX}{parameter.name}"
    if isinstance(parameter, click.Argument):
        nargs = "*" if parameter.nargs == -1 else None if parameter.required else "?"
        return _new(dest, nargs=nargs, metavar=parameter.human_readable_name.upper())
    option = parameter
    told = _plain(getattr(option, "help", ""))
    flags = tuple(sorted(option.opts, key=len))
    if option.secondary_opts:
        return _new(*flags, dest=dest, help=told, action=argparse.BooleanOptionalAction)
    if getattr(option, "is_flag", False):
        return _new(*flags, dest=dest, help=told, action="store_true")
    # No types: the command itself checks the values, with its own messages.
    action = "append" if option.multiple else "store"
    metavar = option.metavar or (option.name or "").upper()
    return _new(*flags, dest=dest, help=told, action=action, metavar=metavar, required=option.required)


def _new(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]


def _runner(words: tuple[str, ...], command: click.Command) -> Callable[[argparse.Namespace], None]:
    def run(args: argparse.Namespace) -> None:
        options: list[str] = []
        positional: list[str] = []
        for parameter in command.params:
            value = getattr(args, f"{_PREFIX}{parameter.name}", None)
            if isinstance(parameter, click.Argument):
                positional += value if isinstance(value, list) else [] if value is None else [value]
            else:
                options += _typed(parameter, value)
        main([*words, *options, "--", *positional])

    return run


def _typed(option: click.Parameter, value: Any) -> list[str]:
    """The command-line arguments that set an option to this value."""
    if value is None or (value is False and not option.secondary_opts):
        return []
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    values = value if isinstance(value, list) else [value]
    return [f"{max(option.opts, key=len)}={each}" for each in values]


def _plain(text: str | None) -> str:
    """Text without characters that have a meaning for argparse or rich."""
    return (text or "").replace("\b\n", "").replace("%", "%%").replace("[", "\\[")
