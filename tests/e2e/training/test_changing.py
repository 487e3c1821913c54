"""Real trainings whose shape changes on the way, killed after it: they end as they would have, to the bit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RunSpec
from tests.support.cli import Shell
from tests.support.driving import SCRIPTS, Driven, driving, training
from tests.support.training.optimizers import equal

LIGHTNING = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)


async def ended(script: str, folder: Path, kind: str, *die: int) -> dict[str, torch.Tensor]:
    """The weights that a training ends with."""
    out = folder / f"{kind}-{len(die)}.pt"
    command = (str(SCRIPTS / script), kind, str(out), *(f"--die={step}" for step in die))
    spec = training(command=command, checkpoint=CheckpointPolicy(every_steps=2))
    async with driving(folder / f"{kind}-{len(die)}", spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1 + len(die)), state.reason
    weights: dict[str, torch.Tensor] = torch.load(out)
    return weights


CASES = [
    pytest.param(
        "finetuning", (14,), marks=pytest.mark.slow
    ),  # tests/unit/runtime/model_changes/test_changing_models.py is the short form
    *(
        pytest.param(kind, (14, 21), marks=pytest.mark.slow, id=f"{kind}-more")
        for kind in ("finetuning", "pruning", "global", "averaging", "own")
    ),
]


@LIGHTNING
@pytest.mark.parametrize(("kind", "die"), CASES)
async def test_lightnings_callbacks_as_they_are(kind: str, die: tuple[int, ...], tmp_path: Path) -> None:
    """On two ranks, within an epoch (of five steps), and with the first step of one."""
    script = "changing/lightning_changing.py"
    straight = await ended(script, tmp_path, kind)
    assert equal(await ended(script, tmp_path, kind, *die), straight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["huggingface", "accelerate"])
async def test_layers_that_thaw_are_trained_by_all_ranks_together(kind: str, tmp_path: Path) -> None:
    """By a callback within an epoch, or in a loop; killed after it, and with the first step of an epoch."""
    pytest.importorskip({"huggingface": "transformers", "accelerate": "accelerate"}[kind])
    straight = await ended("changing/thawing.py", tmp_path, kind)
    assert equal(await ended("changing/thawing.py", tmp_path, kind, 9, 11), straight)


def traced(path: Path) -> list[tuple[str, int, int, str]]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [(word, int(step), int(world), digest) for word, step, world, digest in lines]


def last(path: Path) -> str:
    return next(digest for word, step, _, digest in reversed(traced(path)) if (word, step) == ("did", 40))


def changed(trace: Path, **policy: object) -> RunSpec:
    return training(
        command=(str(SCRIPTS / "changing/changed.py"), f"--trace={trace}"),
        checkpoint=CheckpointPolicy(**policy),  # type: ignore[arg-type]
    )


async def lose_one(driven: Driven) -> None:
    driven.kill_node(1)


async def lose_both(driven: Driven) -> None:
    """With what their agents hold in memory."""
    driven.kill_nodes(0, 1)
    await driven.until(lambda: len(driven.state.attempts) > 1 and not driven.state.attempt.home, "a new job")


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["buddies", "disk", "overlap"])
async def test_what_has_changed_comes_back_from_wherever_it_was_kept(kept: str, tmp_path: Path) -> None:
    """Under DDP, of which what thaws, comes and grows is a part, and with another optimizer than at first: from a
    buddy's memory, from the workers' disks, and from what was copied while training went on. With none but these after
    that.
    """
    (tmp_path / "disk").mkdir()
    policies: dict[str, dict[str, object]] = {
        "buddies": {"every_steps": 1000, "memory_every_steps": 2, "buddies": True},
        "disk": {"every_steps": 1000, "disk": str(tmp_path / "disk"), "disk_every_steps": 2},
        "overlap": {"every_steps": 2, "overlap": True},
    }
    async with driving(tmp_path / "straight", changed(tmp_path / "whole", every_steps=1000)) as driven:
        assert (await driven.end()).outcome == "succeeded"
    async with driving(tmp_path / "run", changed(tmp_path / "trace", **policies[kept])) as driven:
        await driven.at_step(22)
        await (lose_one if kept == "buddies" else lose_both)(driven)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert state.attempt.restored_at > 12
    assert last(tmp_path / "trace") == last(tmp_path / "whole")


@pytest.mark.slow
async def test_other_numbers_of_ranks_go_on_with_what_has_changed_bit_for_bit(tmp_path: Path) -> None:
    async with driving(tmp_path / "run", changed(tmp_path / "trace", every_steps=5)) as driven:
        await driven.at_step(15)
        await driven.scaled(3)
        await driven.at_step(25)
        await driven.scaled(2)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    lines = traced(tmp_path / "trace")
    restored = [line for line in lines if line[0] == "restored"]
    assert [world for _, _, world, _ in restored] == [3, 2]
    for _, step, _, digest in restored:
        assert step > 12
        assert digest in {one for word, at, _, one in lines if (word, at) == ("did", step)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind", "package"),
    [
        ("changing/lightning_changing.py", "finetuning", "lightning"),
        ("changing/lightning_changing.py", "pruning", "lightning"),
        ("changing/thawing.py", "huggingface", "transformers"),
        ("changing/thawing.py", "accelerate", "accelerate"),
    ],
)
async def test_other_numbers_of_ranks_go_on_with_what_a_framework_has_changed(
    script: str, kind: str, package: str, tmp_path: Path
) -> None:
    """Two ranks change it; three go on with the same state, bit for bit, and train all of it together."""
    pytest.importorskip(package)
    trace, epochs = tmp_path / "trace", 12  # of five steps
    words = (kind, str(tmp_path / "out"), f"--trace={trace}", f"--epochs={epochs}")
    policy = CheckpointPolicy(every_steps=5, account_samples=True)
    spec = training(command=(str(SCRIPTS / script), *words), checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(14)
        await driven.scaled(3)
        state = await driven.end()
        uri = driven.run.store.uri
    assert state.outcome == "succeeded", state.reason
    lines = traced(trace)
    ((_, step, world, digest),) = (line for line in lines if line[0] == "restored")
    assert (step >= 14, world) == (True, 3)
    assert digest in {one for word, at, _, one in lines if (word, at) == ("did", step)}
    assert lines[-1][:3] == ("did", 5 * epochs, 3)
    restored, end = (torch.load(f"{trace}.{word}") for word in ("restored", "end"))
    assert set(restored["trained"].values()) == set(end["trained"].values()) == {True}
    left: list[tuple[int, int, int]] = []  # of what is pruned: at the end, when three went on, and at first
    for name in end["trained"]:
        was, now = restored["state"].get(f"{name}_orig"), end["state"][name]
        assert not torch.equal(restored["state"][name] if was is None else was, now), name
        if was is not None:  # more is pruned after that, and at the end it is made permanent
            mask = restored["state"][f"{name}_mask"].bool()
            assert not now[~mask].any()
            left.append((int(now.count_nonzero()), int(mask.sum()), mask.numel()))
    if kind == "pruning":
        at_end, before, at_first = map(sum, zip(*left, strict=True))
        assert 0 < at_end < before < at_first
    verified = Shell(SCRIPTS)("verify", uri, "--samples", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    samples = 160 if package == "lightning" else 40
    told = [(one["number"], one["counted"]) for one in json.loads(verified.stdout)["epochs"]]
    assert told == [(number, samples) for number in range(epochs)]
