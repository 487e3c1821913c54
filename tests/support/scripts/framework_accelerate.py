"""A small network in a loop of its own with Accelerate, with all that a resumed run has to put back."""

import time

import torch
from accelerate import Accelerator
from framework_options import (
    GLOBAL_BATCH,
    MOST,
    Points,
    leave_behind,
    network,
    optimizer_of,
    options,
    trained,
)

from airflow_elastic.frameworks.accelerate import ElasticRun

accelerator = Accelerator(cpu=not (options.untold or options.gpu))
run = ElasticRun(accelerator)
model = network()
optimizer = optimizer_of(model)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
run.restore(model, optimizer, schedule)
loader = torch.utils.data.DataLoader(Points(), batch_size=MOST)
for x, y in run.loader(loader, global_batch=GLOBAL_BATCH, epochs=options.epochs):
    with accelerator.accumulate(model):
        run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    time.sleep(options.step_seconds / 2)
    run.step()
run.session.save()
trained()
if accelerator.is_main_process:
    leave_behind(accelerator.unwrap_model(model), run.session.steps, schedule.scheduler.last_epoch)
run.finish()
