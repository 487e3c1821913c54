"""What a newcomer types into a search leads to the right file.

The search is simple. A module is a hit where one of three places has all words of the term: its file name, the name of
one of its public classes or functions, its docstring. Hits come in this order of places, then by path. A word of the
term is found at the beginning of a word. The file name of a package's `__init__` is that of its folder.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import airflow_elastic

PRODUCT = Path(airflow_elastic.__file__).parent
FIRST = 8  # hits that somebody looks at

ANSWERS = {
    "heartbeat": ["runtime/session/reporting/heartbeat.py"],
    "shared memory": ["runtime/tiers/shared_memory.py"],
    "read plan": ["runtime/checkpoint/read/read_plan.py"],
    "reshard": ["runtime/checkpoint/read/read_plan.py"],
    "buddy": ["runtime/tiers/peers/buddy_memory.py", "runtime/tiers/peers/buddy_sender.py"],
    "peer": ["runtime/tiers/peers/peer_client.py", "runtime/tiers/peers/peer_server.py"],
    "prefetch": ["runtime/data/accounting.py"],
    "barrier": ["runtime/collectives/process_group.py"],
    "lease": ["runtime/agent/reporting/controller_lease.py"],
    "quorum": ["core/scaling/gang_size.py", "runtime/agent/rendezvous.py"],
    "sigterm": ["runtime/agent/agent.py", "runtime/agent/worker.py", "runtime/pod.py"],
    "retry": ["adapters/storage/s3/client.py", "core/restart.py"],
    "backoff": ["adapters/storage/s3/client.py", "core/restart.py"],
    "unpickle": ["runtime/checkpoint/format/safe_unpickling.py"],
    "straggler": ["core/health/stragglers.py"],
    "hang": ["core/health/deadlines.py", "core/health/stack_comparison.py"],
    "goodput": ["core/goodput.py"],
    "preempt": ["engines/kube/watch/disruption.py"],
    "retention": ["adapters/records/checkpoint_retention/__init__.py", "core/checkpoints/retention.py"],
    "rendezvous": ["runtime/agent/rendezvous.py"],
    "checkpoint commit": ["adapters/records/checkpoint_parts.py", "adapters/records/checkpoints.py"],
    "world size": [
        "runtime/checkpoint/read/read_plan.py",
        "runtime/data/sampler.py",
        "runtime/collectives/process_group.py",
    ],
    "gang": ["core/scaling/gang_size.py", "engines/kube/queues/gang.py"],
    "quota": ["adapters/kube/errors.py", "engines/kube/watch/api_errors.py"],
    "fence": ["adapters/records/checkpoint_parts.py", "adapters/records/reports.py"],
    "journal": ["adapters/records/journal.py"],
}


def words(text: str) -> str:
    """Words in lower case, with one space between them, whether they are joined by `_`, `-` or capitals."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_\-/.]", " ", text)
    return " ".join(apart.split()).lower()


def has(text: str, term: str) -> bool:
    return all(re.search(rf"\b{re.escape(word)}", words(text)) for word in words(term).split())


def places(path: Path) -> list[list[str]]:
    """What is searched of a module, in the order of the ranking."""
    tree = ast.parse(path.read_text())
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = [
        node.name for node in tree.body if isinstance(node, definitions) and not node.name.startswith("_")
    ]
    file_name = path.parent.name if path.stem == "__init__" else path.stem
    return [[file_name], names, [ast.get_docstring(tree) or ""]]


MODULES = {path.relative_to(PRODUCT).as_posix(): places(path) for path in sorted(PRODUCT.rglob("*.py"))}


def search(term: str) -> list[str]:
    """The modules that answer a term, the best ones first."""
    ranked = [
        (
            next(
                (rank for rank, texts in enumerate(texts_of) if any(has(text, term) for text in texts)), None
            ),
            path,
        )
        for path, texts_of in MODULES.items()
    ]
    return [path for _, path in sorted((rank, path) for rank, path in ranked if rank is not None)]


@pytest.mark.parametrize(("term", "answers"), ANSWERS.items(), ids=[*ANSWERS])
def test_a_search_finds(term: str, answers: list[str]) -> None:
    found = search(term)
    assert set(answers) <= set(found[:FIRST]), f"{term!r} finds first {found[:FIRST]}"


def test_words_may_be_joined_in_any_way() -> None:
    assert (
        search("shared memory")
        == search("shared_memory")
        == search("Shared-Memory")
        == search("SharedMemory")
    )


def test_a_word_is_found_from_its_beginning() -> None:
    assert has("stragglers", "straggler")
    assert not has("exchange", "hang")
