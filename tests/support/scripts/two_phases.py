"""Two trainings of a run, the second with other data and the first one's layers in its model; before each a pass that
is to leave no trace.

Arguments: own, lightning or huggingface; a file for a digest of the end; --die STEP: every rank is killed after that
step of the run, in the attempt whose turn it is; --step-seconds S, of the second training; --plain: an optimizer and a
network by which ranks of any number learn the same; --quiet: without these passes.
"""

import argparse
import hashlib
import os
import random
import signal
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("own", "lightning", "huggingface"))
parser.add_argument("out")
parser.add_argument("--die", type=int, action="append", default=[])
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--quiet", action="store_true")
options = parser.parse_args()
torch.set_num_threads(1)

BATCH, MOST = 16, 4
EPOCHS = {"teach": 2, "learn": 4}
ATTEMPT = int(os.environ.get("AIRFLOW_ELASTIC_ATTEMPT", "1"))


class Points(torch.utils.data.Dataset):
    """A function to be learned, each sample as a framework wants it."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = torch.tensor([index % 10, index // 10, index % 3, index % 7]).float() / 10
        y = x.sum(0, keepdim=True)
        return {"x": x, "labels": y} if options.kind == "huggingface" else (x, y)


DATA = {"teach": Points(48), "learn": Points(72)}  # the last batch of an epoch of the second has 8 samples


def network(body=None):
    """A head on that body, or on a new one; the same on all ranks."""
    torch.manual_seed(7)
    random.seed(7)
    body = body or torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.0 if options.plain else 0.2)
    )
    return torch.nn.Sequential(body, torch.nn.Linear(8, 1))


def optimizer_of(model):
    kind = torch.optim.SGD if options.plain else torch.optim.AdamW
    return kind(model.parameters(), lr=0.02)


def stepped(run):
    """After each step that counts."""
    if run.in_scratch:
        return
    if run.steps > 6 and options.step_seconds:
        time.sleep(options.step_seconds)
    if options.die[ATTEMPT - 1 : ATTEMPT] == [run.steps]:
        os.kill(os.getpid(), signal.SIGKILL)


def watched(run):
    """The same run, whose ranks die when it is their turn."""
    step = run.step

    def watching(*given, **metrics):
        step(*given, **metrics)
        stepped(run)

    run.step = watching
    return run


def leave_behind(run, *models):
    if run.rank == 0:
        told = [{name: one.tolist() for name, one in model.state_dict().items()} for model in models]
        drawn = (torch.rand(2).tolist(), random.random()) if not options.plain else ()
        digest = hashlib.sha256(repr((told, drawn)).encode()).hexdigest()
        torch.save([model.state_dict() for model in models], f"{options.out}.pt")
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(digest)


def own():
    import airflow_elastic.runtime as elastic

    run = watched(elastic.init())

    def trained(name, module):
        model = torch.nn.parallel.DistributedDataParallel(module) if run.world_size > 1 else module
        optimizer = optimizer_of(model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def epochs(number):
            for _ in run.epochs(number):
                for x, y in run.loader(DATA[name], global_batch=BATCH):
                    loss = run.weight * torch.nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    run.step(loss)
                schedule.step()

        if not options.quiet:
            with run.scratch(model, optimizer, schedule):
                epochs(1)
        with run.phase(name) as phase:
            run.restore(model, optimizer, schedule=schedule)
            epochs(EPOCHS[name])
            phase.record(weight=float(module[1].weight.sum()))
        return module

    teacher = trained("teach", network())
    learner = trained("learn", network(teacher[0]))
    leave_behind(run, teacher, learner)
    run.finish()


def lightning():
    from lightning.pytorch import LightningModule
    from lightning.pytorch.tuner import Tuner

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Regression(LightningModule):
        def __init__(self, network):
            super().__init__()
            self.network, self.lr = network, 0.02

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

        def configure_optimizers(self):
            optimizer = optimizer_of(self)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    trainer = None

    def trained(name, network):
        nonlocal trainer
        trainer = ElasticTrainer(
            global_batch=BATCH, max_epochs=EPOCHS[name], accelerator="cpu", logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=os.path.dirname(options.out),
        )  # fmt: skip
        if name == "teach":
            watched(trainer.run)
        module, loader = Regression(network), torch.utils.data.DataLoader(DATA[name], batch_size=MOST)
        if not options.quiet:
            Tuner(trainer).lr_find(module, loader, num_training=6, update_attr=False)
        with trainer.run.phase(name) as phase:
            trainer.fit(module, loader, torch.utils.data.DataLoader(DATA[name], batch_size=12))
            phase.record(weight=float(network[1].weight.sum()))
        return network

    teacher = trained("teach", network())
    learner = trained("learn", network(teacher[0]))
    leave_behind(trainer.run, teacher, learner)
    trainer.finish()


def huggingface():
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    class Net(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x, labels):
            found = self.network(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    trainer = None

    def trained(name, network):
        nonlocal trainer
        arguments = TrainingArguments(
            output_dir=os.path.dirname(options.out), per_device_train_batch_size=MOST, num_train_epochs=EPOCHS[name],
            learning_rate=0.02, optim="sgd" if options.plain else "adamw_torch", max_grad_norm=0.0, report_to=[],
            disable_tqdm=True, use_cpu=True, logging_strategy="no",
        )  # fmt: skip
        trainer = ElasticTrainer(
            global_batch=BATCH,
            model=Net(network),
            args=arguments,
            train_dataset=DATA[name],
            eval_dataset=DATA[name],
        )
        if name == "teach":
            watched(trainer.run)
        if not options.quiet:
            with trainer.run.scratch(trainer.model):
                trainer.train()
        with trainer.run.phase(name) as phase:
            trainer.train()
            phase.record(weight=float(network[1].weight.sum()))
        return network

    teacher = trained("teach", network())
    learner = trained("learn", network(teacher[0]))
    leave_behind(trainer.run, teacher, learner)
    trainer.finish()


{"own": own, "lightning": lightning, "huggingface": huggingface}[options.kind]()
