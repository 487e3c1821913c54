"""A tiny language model under Hugging Face's Trainer, with all that a resumed run has to put back."""

import time

import torch
from framework_options import GLOBAL_BATCH, LENGTH, MOST, leave_behind, options, trained
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from airflow_elastic.frameworks.huggingface import ElasticTrainer


class Sequences(torch.utils.data.Dataset):
    """Of different lengths, so that batches differ in how many tokens count."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        tokens = (torch.arange(12) * (1 + index % 7) + index) % 50
        labels = tokens.clone()
        labels[6 + index % 6 :] = -100
        return {"input_ids": tokens, "labels": labels}


class Slow(TrainerCallback):
    """Takes its time over each step."""

    def on_step_end(self, args, state, control, **_):
        time.sleep(options.step_seconds)


torch.manual_seed(7)
rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), options.dropout)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, **rates))
arguments = TrainingArguments(
    output_dir="unused",
    per_device_train_batch_size=MOST,
    num_train_epochs=options.epochs,
    optim={"adamw": "adamw_torch", "sgd": "sgd"}[options.optimizer],
    learning_rate=1e-2,
    lr_scheduler_type="cosine",
    logging_steps=5,
    eval_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
    use_cpu=not (options.untold or options.gpu),
)
trainer = ElasticTrainer(
    global_batch=GLOBAL_BATCH,
    model=model,
    args=arguments,
    train_dataset=Sequences(),
    eval_dataset=[Sequences()[index] for index in range(8)],
    callbacks=[Slow()],
)
trainer.train()
trained()
if trainer.run.rank == 0:
    evaluated = [entry["epoch"] for entry in trainer.state.log_history if "eval_loss" in entry]
    leave_behind(model, trainer.state.global_step, trainer.lr_scheduler.last_epoch, evaluated)
trainer.finish(**trainer.evaluate())
