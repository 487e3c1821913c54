"""The launcher `horovodrun`: elastic Horovod, driven from the first worker.

Horovod has one driver, which starts ranks on all hosts by ssh. It runs a script that lists the hosts. So the first
worker runs the driver; the others run an ssh server until the driver is done (`runtime/agent/horovod.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.launchers.api import BY_NAME, Launcher, Place
from airflow_elastic.spec.validation import Checks, positive_int

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec

#: Horovod keeps its times and counts in C integers.
_int32 = positive_int._replace(most=2**31 - 1, why="Horovod keeps it in 32 bits")

#: A placeholder in the driver's command for the path of the discovery script, which only the worker knows.
DISCOVERY = "{discovery}"


@dataclass(frozen=True, slots=True)
class HorovodOptions:
    """`launcher_options` of horovodrun.

    Attributes:
        reset_limit: how often Horovod may form the ranks of an attempt again. Default: Horovod's own, without limit.
        elastic_timeout: seconds to wait for enough hosts. Default: Horovod's own, 600.
        start_timeout: seconds in which all ranks must have started. Default: Horovod's own, 30.
        ssh_port: port of the workers' ssh servers.
        ssh_identity_file: the private key, on the workers.
        sshd: the ssh server, with its arguments; it must stay in the foreground.
        network_interfaces: names, separated by commas.
        extra: further arguments of horovodrun.
    """

    reset_limit: int | None = None
    elastic_timeout: int | None = None
    start_timeout: int | None = None
    ssh_port: int = 2222
    ssh_identity_file: str | None = None
    sshd: tuple[str, ...] = ("/usr/sbin/sshd", "-D", "-e")
    network_interfaces: str | None = None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        with Checks() as check:
            for name in ("reset_limit", "elastic_timeout", "start_timeout"):
                if getattr(self, name) is not None:
                    check(name, getattr(self, name), _int32)
            check.that(1 <= self.ssh_port <= 65535, "ssh_port", self.ssh_port, "an integer from 1 to 65535")
            check.that(bool(self.sshd), "sshd", self.sshd, "a program and its arguments")


def _command(spec: RunSpec, place: Place) -> list[str]:
    options: HorovodOptions = HOROVODRUN.options_of(spec)
    ours = (place.python, *BY_NAME, "airflow_elastic.runtime.agent.horovod")
    meeting = (f"--lead={place.master_addr}:{place.master_port}", f"--slots={spec.workers.procs}")
    server = [*options.sshd, "-p", str(options.ssh_port)]
    if place.node_rank:
        return [*ours, "follow", *meeting, "--", *server]
    return [*ours, "lead", *meeting, f"--hosts={place.nodes}", "--", *_driver(spec, place, options)]


def _driver(spec: RunSpec, place: Place, options: HorovodOptions) -> list[str]:
    procs, words = spec.workers.procs, list(spec.command)
    values = {
        "--reset-limit": options.reset_limit,
        "--elastic-timeout": options.elastic_timeout,
        "--start-timeout": options.start_timeout,
        "--ssh-identity-file": options.ssh_identity_file,
        "--network-interfaces": options.network_interfaces,
    }
    return [
        *("horovodrun", "-np", str(place.nodes * procs)),
        *("--min-np", str(min(spec.workers.at_least, place.nodes) * procs)),
        *("--max-np", str(max(spec.workers.at_most, place.nodes) * procs)),
        *("--host-discovery-script", DISCOVERY),
        *("--ssh-port", str(options.ssh_port)),
        *(word for flag, value in values.items() if value is not None for word in (flag, str(value))),
        *options.extra,
        *([place.python] if words[0] == "-m" or words[0].endswith(".py") else []),
        *words,
    ]


HOROVODRUN = Launcher(
    name="horovodrun",
    summary="elastic Horovod: horovodrun on the first worker, which reaches the others by ssh",
    command=_command,
    module="horovod",
    options=HorovodOptions,
)
