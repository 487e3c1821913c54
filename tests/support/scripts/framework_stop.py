"""A tiny training under a framework, whose validation metric follows a list: one value for each epoch.

Arguments: lightning, huggingface or accelerate, then the values. Options: --out FILE: rank 0 adds a line for each epoch
and one at the end, and the weights lie beside it; --die-at STEP: in the first attempt each rank kills itself, after the
step; --rate R of the optimizer; --in-step: the metric comes with each step, by the training itself.
"""

import argparse
import os
import signal

import torch

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("lightning", "huggingface", "accelerate"))
parser.add_argument("values", type=float, nargs="+")
parser.add_argument("--out", required=True)
parser.add_argument("--die-at", type=int, default=-1)
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--in-step", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(7)
EPOCHS, STEPS, LENGTH = len(options.values), 4, 16


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = torch.tensor([index % 4, index // 4]).float() / 4
        return x, x.sum(0, keepdim=True)


class Named(Points):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


def note(run, line):
    if run.rank == 0:
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(f"{run.attempt} {line}\n")


def dies(run):
    step = run.step

    def stepped(*told, **metrics):
        step(*told, **metrics)
        if run.attempt == 1 and run.steps == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    run.step = stepped


def value_at(steps):
    """Of the epoch that has ended with this step, or that this step is in."""
    return options.values[min(max(0, steps - 1) // STEPS, EPOCHS - 1)]


def with_lightning():
    from lightning.pytorch import LightningModule

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            x, y = batch
            if options.in_step:
                self.log("val_loss", torch.tensor(value_at(self.trainer.global_step + 1)))
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def validation_step(self, batch, batch_idx):
            if not options.in_step:
                self.log("val_loss", torch.tensor(value_at(self.trainer.global_step)), sync_dist=True)

        def on_train_epoch_end(self):
            note(self.trainer.run, f"epoch at {self.trainer.global_step}")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=options.rate)

    module = Module()
    trainer = ElasticTrainer(
        global_batch=4, max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False
    )
    dies(trainer.run)
    loader = torch.utils.data.DataLoader(Points(), batch_size=2)
    trainer.fit(module, loader, torch.utils.data.DataLoader(Points(), batch_size=8))
    return trainer.run, module.layer, trainer.finish


def with_huggingface():
    from transformers import TrainerCallback, TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x=None, labels=None):
            found = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    class Notes(TrainerCallback):
        def on_epoch_end(self, args, state, control, **_):
            note(trainer.run, f"epoch at {state.global_step}")

    model = Model()
    trainer = ElasticTrainer(
        global_batch=4,
        model=model,
        args=TrainingArguments(
            output_dir="unused",
            per_device_train_batch_size=2,
            num_train_epochs=EPOCHS,
            learning_rate=options.rate,
            optim="sgd",
            lr_scheduler_type="constant",
            eval_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Named(),
        eval_dataset=Named(),
        compute_metrics=lambda _: {"error": value_at(trainer.state.global_step)},
        callbacks=[Notes()],
    )
    dies(trainer.run)
    trainer.train()
    return trainer.run, model.layer, trainer.finish


def with_accelerate():
    from accelerate import Accelerator

    from airflow_elastic.frameworks.accelerate import ElasticRun

    accelerator = Accelerator(cpu=True)
    run, layer = ElasticRun(accelerator), torch.nn.Linear(2, 1)
    dies(run.session)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=options.rate))
    run.restore(model, optimizer)
    loader = torch.utils.data.DataLoader(Points(), batch_size=2)
    for _ in run.epochs(EPOCHS):
        for x, y in run.loader(loader, global_batch=4):
            with accelerator.accumulate(model):
                run.backward(torch.nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
            run.step()
        note(run.session, f"epoch at {run.steps}")
        run.report(val_loss=value_at(run.steps))
    return run.session, layer, run.finish


run, layer, finish = {
    "lightning": with_lightning,
    "huggingface": with_huggingface,
    "accelerate": with_accelerate,
}[options.kind]()
note(run, f"end at {run.steps}")
if run.rank == 0:
    torch.save(
        {name: value.detach().clone() for name, value in layer.state_dict().items()}, f"{options.out}.pt"
    )
finish()
