"""Reports, as JSON in the folder $FACTS, what a script can see of its process: `test_parity.py` compares.

Under a run of ours: the first attempt fails once it has reported; of the second, ranks wait to be ended, by a scale
step; those of a third generation are done. Two ranks of one worker are done at once. Anywhere else it fails.
"""

import sys

AT_START = {  # before anything else is imported
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "warm": "torch" in sys.modules,
    "main.names": [name for name in globals() if name != "sys"],
    "main.doc": __doc__,
    "path": sys.path[:],
}

import asyncio  # noqa: E402
import atexit  # noqa: E402
import ctypes  # noqa: E402
import faulthandler  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import logging  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import stat  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import tracemalloc  # noqa: E402
import typing  # noqa: E402
import warnings  # noqa: E402
import weakref  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402


@dataclass
class Batch:
    """Of the script's own, as its workers hand it on."""

    x: "list[Batch] | int" = 0


def of_child(parent, batch):
    """What a process sees that this one has started."""
    main = sys.modules["__main__"]
    parent.send(
        {
            "name": __name__,
            "main": main.__name__,
            "file": getattr(main, "__file__", None),
            "argv": sys.argv,
            "path": sys.path[:],
            "safe_path": sys.flags.safe_path,
            "cwd": os.getcwd(),
            "of the class": type(batch).__module__,
            "is one": isinstance(batch, Batch),
        }
    )


def children():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=of_child, args=(there, Batch(1)))
        process.start()
        there.close()  # so that a child that fails is no riddle
        for key, value in here.recv().items():
            yield f"{method}.{key}", value
        process.join()
        yield f"{method}.code", process.exitcode
    program = (
        "import json, os, signal, sys; print(json.dumps([sys.flags.safe_path, sys.path[0], str(signal.getsignal(2)), \
sorted(name for name in os.environ if name.startswith('PYTHON'))]))"
    )
    told = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    yield from zip(
        ("child.safe_path", "child.path", "child.sigint", "child.python_variables"), told, strict=True
    )


def of_main():
    main = sys.modules["__main__"]
    yield "main.name", __name__
    yield "main.is_this", main.__dict__ is globals()
    yield "main.type", type(main).__name__
    yield "main.file", __file__
    yield "main.cached", __cached__
    yield "main.package", __package__
    yield "main.builtins", type(__builtins__).__name__
    yield "main.spec", __spec__ and [__spec__.name, __spec__.origin, __spec__.has_location, __spec__.parent]
    yield (
        "main.loader",
        [type(__loader__).__name__, getattr(__loader__, "name", None), getattr(__loader__, "path", None)],
    )
    yield "main.code", of_main.__code__.co_filename
    yield "main.source", inspect.getsource(Batch)
    yield "main.hints", str(typing.get_type_hints(Batch))
    yield "main.depth", len(inspect.stack(0))
    yield "main.imported", __import__("__main__") is main
    yield "main.pickled", pickle.dumps(Batch(2), 4).hex()
    yield "main.unpickled", type(pickle.loads(pickle.dumps(Batch(2)))) is Batch
    helper = __import__(f"{__package__}.helper" if __package__ else "helper", fromlist=["x"])
    yield "main.helper", helper.__file__
    try:
        raise ValueError
    except ValueError:
        yield "main.traceback", traceback.format_exc()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("x", stacklevel=1)
    yield "main.warning", [caught[0].filename, caught[0].lineno]
    record = logging.getLogger("x").makeRecord(
        "x", 20, *inspect.getframeinfo(inspect.currentframe())[:2], "", (), None
    )
    yield "main.log", [record.module, record.pathname]


def of_python():
    yield "argv", sys.argv
    yield "orig_argv", sys.orig_argv
    for name in ("executable", "prefix", "_xoptions", "warnoptions", "dont_write_bytecode", "pycache_prefix"):
        yield f"sys.{name}", getattr(sys, name)
    for name in (
        "getrecursionlimit",
        "getswitchinterval",
        "getdefaultencoding",
        "getfilesystemencoding",
        "gettrace",
        "getprofile",
    ):
        yield f"sys.{name}", getattr(sys, name)()
    for name in dir(sys.flags):
        if not name.startswith(("_", "n_", "count", "index")):
            yield f"flags.{name}", getattr(sys.flags, name)
    for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        yield f"sys.{name}", getattr(sys, name) is getattr(sys, f"__{name}__")
    yield "sys.meta_path", [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
    yield "sys.path_hooks", len(sys.path_hooks)
    yield "threads.excepthook", threading.excepthook is threading.__excepthook__
    yield "gc", [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)]
    yield "gc.frozen", gc.get_freeze_count()
    yield "warnings.filters", [str(one) for one in warnings.filters]
    yield "warnings.shown", warnings.showwarning.__module__
    root = logging.getLogger()
    yield "logging", [root.level, len(root.handlers), logging.raiseExceptions, logging.root.manager.disable]
    yield "locale", [locale.getlocale(), time.tzname]
    yield "tracemalloc", tracemalloc.is_tracing()
    yield "faulthandler", faulthandler.is_enabled()
    yield "socket.timeout", socket.getdefaulttimeout()
    yield "asyncio", type(asyncio.get_event_loop_policy()).__name__
    yield (
        "multiprocessing",
        [multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name],
    )
    yield "atexit", atexit._ncallbacks()


def of_streams():
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        name = f"stream.{number}"
        for what in ("encoding", "errors", "line_buffering", "write_through", "name", "mode", "newlines"):
            yield f"{name}.{what}", getattr(stream, what)
        yield f"{name}.isatty", stream.isatty()
        yield f"{name}.buffer", type(stream.buffer).__name__
        yield f"{name}.is_first", stream is getattr(sys, f"__{stream.name[1:-1]}__")
        found = os.fstat(number)
        yield f"{name}.kind", [stat.S_IFMT(found.st_mode), oct(fcntl.fcntl(number, fcntl.F_GETFL))]
    yield "stream.same", os.path.samestat(os.fstat(1), os.fstat(2))
    yield "stdin.read", sys.stdin.read()
    try:
        input()
    except EOFError:
        yield "stdin.input", "EOFError"
    yield (
        "descriptors",
        {
            one: os.get_inheritable(int(one))
            for one in sorted(os.listdir("/proc/self/fd"))
            if os.path.exists(f"/proc/self/fd/{one}")
        },
    )


def of_process():
    yield "cwd", os.getcwd()
    os.umask(mask := os.umask(0))
    yield "umask", mask
    yield "nice", os.nice(0)
    yield "scheduler", [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))]
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    yield "limits", [[name, resource.getrlimit(getattr(resource, name))] for name in limits]
    yield "session", [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()]
    yield "oom_score_adj", Path("/proc/self/oom_score_adj").read_text().strip()
    yield "comm", Path("/proc/self/comm").read_text().strip()
    yield "cmdline", Path("/proc/self/cmdline").read_text()
    began = dict(
        one.partition("=")[::2]
        for one in os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
        if one
    )
    yield "environ.at_start", began == dict(os.environ)
    yield (
        "threads",
        [
            len(os.listdir("/proc/self/task")),
            threading.active_count(),
            threading.main_thread() is threading.current_thread(),
        ],
    )
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp"):
            yield f"status.{name}", value.strip()
    handlers = {one: signal.getsignal(one) for one in sorted(signal.valid_signals())}
    set_ = {one: str(handler) for one, handler in handlers.items() if handler is not signal.SIG_DFL}
    yield "signals", {signal.Signals(one).name: handler.partition(" at ")[0] for one, handler in set_.items()}
    yield "signals.blocked", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    yield "signals.wakeup", signal.set_wakeup_fd(-1)
    yield "timers", [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)]
    libc, number = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(2, ctypes.byref(number))
    yield "prctl.death_signal", number.value
    yield "prctl.dumpable", libc.prctl(3)
    yield "children", Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        yield "interrupt", "KeyboardInterrupt"


def of_environment():
    base = set(os.environ["FACTS_BASE"].split())
    for name in sorted(os.environ.keys() - base):
        if not name.startswith(("AIRFLOW_ELASTIC_", "FACTS")):
            yield f"env.{name}", os.environ[name]
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    yield "error_file", error_file and [os.path.isabs(error_file), os.path.isdir(os.path.dirname(error_file))]


def facts():
    yield from AT_START.items()
    for part in (of_process, of_streams, of_main, of_python, of_environment, children):
        yield from part()


class Last:
    """Says when it goes, and what there is then of the module that made it."""

    def __del__(self):
        say(f"finalized, with {AT_START is not None}")


def say(text):
    """Where the end of the process can still write to."""
    os.write(ENDS, f"{text}\n".encode())


def of_the_end():
    """Leave what Python sees to when it ends, in its order."""
    global last, held
    last, held = Last(), Last.__new__(Last)
    atexit.register(say, "atexit")
    weakref.finalize(held, say, "weakref")
    main = threading.main_thread()
    threading.Thread(target=lambda: (main.join(), say(f"a thread, with {'say' in globals()}"))).start()


if __name__ == "__main__":
    ours = "AIRFLOW_ELASTIC_ATTEMPT" in os.environ
    attempt = os.environ.get("AIRFLOW_ELASTIC_ATTEMPT") or os.environ.get("TORCHELASTIC_RESTART_COUNT")
    generation, rank = os.environ.get("AIRFLOW_ELASTIC_GENERATION"), os.environ.get("RANK", "0")
    told = Path(os.environ["FACTS"], f"{attempt}-{generation}-{rank}.json")
    ENDS = os.open(told.with_suffix(".end"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.set_inheritable(ENDS, False)
    descriptors = sorted(os.listdir("/proc/self/fd"))
    found = dict(facts())
    told.with_suffix(".new").write_text(json.dumps(found, default=str))
    told.with_suffix(".new").rename(told)
    if generation == "3":
        sys.exit(0)
    if ours and attempt == "2":
        signal.pause()
    of_the_end()
    # Where one of two fails torchrun ends the other, which may not have told all then.
    sys.exit(0 if os.environ.get("LOCAL_WORLD_SIZE") == "2" else 3)
