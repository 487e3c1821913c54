"""Callbacks of one's own that change what is trained: killed after any step, a training ends as undisturbed.

Of Lightning, a `BaseFinetuning` that thaws layer by layer, and a callback that freezes and prunes; of Hugging Face's
trainer, callbacks that freeze, thaw and prune. 22 samples, 4 a step: 18 steps in three epochs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.attempts import attempt, die_at, to_the_end
from tests.support.training.frameworks import put_joined_back

#: Every step is one that a run goes on from.
POLICY = CheckpointPolicy(every_steps=1)
STEPS = 18
GROWN = 9

DEATHS = pytest.mark.parametrize(
    "die", [14, *(pytest.param(step, marks=pytest.mark.slow) for step in range(1, 19) if step != 14)]
)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = (
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)),
            torch.nn.Linear(4, 4),
            torch.nn.Linear(4, 1),
        )
        self.two: torch.nn.Module

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        found = self.head(self.two(self.one(x).tanh()).tanh())
        return {"loss": torch.nn.functional.mse_loss(found, x[:, :1])}

    def grow(self) -> torch.nn.Module:
        new = torch.nn.Linear(4, 4)
        self.two = torch.nn.Sequential(self.two, new)
        return new

    def trained(self) -> list[str]:
        """Layers that are trained, and masks that there are."""
        names = {name.split(".")[0] for name, value in self.named_parameters() if value.requires_grad}
        return sorted(names) + [name for name, _ in self.named_buffers() if name.endswith("_mask")]


def changed(step: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
    """What a callback does by the step: it thaws a layer, freezes another one, prunes a third for a while."""
    if step == 4:
        net.one.requires_grad_(True)
        optimizer.add_param_group({"params": [*net.one.parameters()], "lr": 0.01})
    elif step == 7:
        net.two.requires_grad_(False)
    elif step == 9:
        prune.l1_unstructured(net.head, "weight", amount=0.5)  # type: ignore[no-untyped-call]
        prune.random_structured(net.one[0], "weight", amount=1, dim=0)  # type: ignore[no-untyped-call]
    elif step == 13:
        prune.remove(net.head, "weight")  # type: ignore[no-untyped-call]


class Notes:
    """What is trained in each step, over all attempts."""

    def __init__(self) -> None:
        self.trained: dict[int, list[str]] = {}


#: By `changed`, from each step on.
BY_STEP = {
    0: ["head", "two"],
    4: ["head", "one", "two"],
    7: ["head", "one"],
    9: ["head", "one", "one.0.weight_mask", "head.weight_mask"],
    13: ["head", "one", "one.0.weight_mask"],
}
#: By the epoch, of 6 steps.
BY_LAYER = {0: ["head"], 6: ["head", "two"], 12: ["head", "one", "two"]}
AT_ONCE = {0: ["head"], 6: ["head", "one", "two"]}


def told(value: Any) -> str:
    """Whatever order the names are in: a mask that goes leaves its layer's weight behind its bias."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{name!r}: {told(one)}' for name, one in value.items()))}}}"
    return f"[{', '.join(map(told, value))}]" if isinstance(value, list) else repr(value)


def lightning(kind: str, notes: Notes, die: int) -> Callable[[Session], str]:
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.callbacks import BaseFinetuning

    from airflow_elastic.frameworks import lightning

    class LayerByLayer(BaseFinetuning):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze([pl_module.net.one, pl_module.net.two], train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.net.two, optimizer, lr=0.02)
            if epoch == 2:
                self.unfreeze_and_add_param_group(pl_module.net.one, optimizer, lr=0.01)

    class Own(Callback):  # type: ignore[misc]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            pl_module.net.one.requires_grad_(False)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            changed(trainer.global_step, pl_module.net, trainer.optimizers[0])

    class Growing(Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == GROWN:
                new = pl_module.net.grow()
                trainer.optimizers[0].add_param_group({"params": [*new.parameters()], "lr": 0.01})

    made = {"layers": LayerByLayer, "own": Own, "grown": Growing, "grown, unsaid": Growing}

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            notes.trained[self.trainer.global_step] = self.net.trained()
            return self.net(batch)["loss"]

        def configure_optimizers(self) -> Any:
            own = [one for one in self.parameters() if one.requires_grad]
            optimizer = torch.optim.AdamW(own, lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]

    def script(run: Session) -> str:
        lightning.joined = lambda: run  # type: ignore[assignment]
        die_at(run, die)
        module, data = Module(), torch.randn(22, 4)
        trainer = lightning.ElasticTrainer(
            global_batch=4, max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[made[kind]()],
        )  # fmt: skip
        if kind == "grown" and run.resumed is not None and run.resumed.step > GROWN:
            module.net.grow()
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
        trainer.finish()
        return told([module.state_dict(), trainer.optimizers[0].state_dict()])

    return script


def hugging_face(folder: Path, kind: str, notes: Notes, die: int) -> Callable[[Session], str]:
    from transformers import TrainerCallback, TrainingArguments

    from airflow_elastic.frameworks import huggingface

    class AtOnce(TrainerCallback):  # type: ignore[misc]
        """The optimizer has all parameters from the start; what is frozen at first has no gradient."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            more["model"].one.requires_grad_(False)
            more["model"].two.requires_grad_(False)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if int(state.epoch or 0.0) == 1:
                more["model"].requires_grad_(True)

    class Own(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            changed(state.global_step, more["model"], more["optimizer"])

    class Watching(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            notes.trained[state.global_step] = more["model"].trained()

    def script(run: Session) -> str:
        huggingface.joined = lambda: run  # type: ignore[assignment]
        die_at(run, die)
        model = Net()
        model.one.requires_grad_(kind == "at once")
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.05)
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=3, report_to=[], disable_tqdm=True,
            use_cpu=True, logging_strategy="no", remove_unused_columns=False,
        )  # fmt: skip
        trainer = huggingface.ElasticTrainer(
            global_batch=4, model=model, args=arguments, train_dataset=[{"x": row} for row in torch.randn(22, 4)],
            callbacks=[AtOnce() if kind == "at once" else Own(), Watching()],
            optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.8)),
        )  # fmt: skip
        trainer.train()
        trainer.finish()
        return told([model.state_dict(), optimizer.state_dict()])

    return script


Script = Callable[[Notes, int], Callable[[Session], str]]


def check(script: Script, changes: dict[int, list[str]], die: int, folder: Path) -> None:
    expected = {step: changes[max(one for one in changes if one <= step)] for step in range(STEPS)}
    whole, killed = Notes(), Notes()
    undisturbed = attempt(folder / "whole", 1, POLICY, script(whole, 0))
    assert whole.trained == expected
    assert to_the_end(folder / "killed", POLICY, script(killed, die)) == (undisturbed, 2)
    assert killed.trained == expected


@pytest.fixture(autouse=True)
def joined_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_joined_back(monkeypatch)


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize(("kind", "changes"), [("layers", BY_LAYER), ("own", BY_STEP)], ids=["layers", "own"])
@DEATHS
def test_of_lightning(kind: str, changes: dict[int, list[str]], die: int, tmp_path: Path) -> None:
    check(lambda notes, when: lightning(kind, notes, when), changes, die, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize("die", [10, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 9, 12))])
def test_a_layer_that_a_callback_adds_is_the_scripts_to_add_before_it_goes_on(
    die: int, tmp_path: Path
) -> None:
    always = {0: ["head", "one", "two"]}
    check(lambda notes, when: lightning("grown", notes, when), always, die, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_without_that_it_is_said_what_to_do(tmp_path: Path) -> None:
    words = r"has net\.two\..* which the model does not have\. .*trainer\.run\.resumed"
    with pytest.raises(InvalidInput, match=words):
        to_the_end(tmp_path / "run", POLICY, lightning("grown, unsaid", Notes(), 12))


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("kind", "changes"), [("at once", AT_ONCE), ("own", BY_STEP)], ids=["at once", "own"]
)
@DEATHS
def test_of_hugging_face(kind: str, changes: dict[int, list[str]], die: int, tmp_path: Path) -> None:
    check(lambda notes, when: hugging_face(tmp_path, kind, notes, when), changes, die, tmp_path)
