"""For ``make audit-fairchem``: the masks and losses of a five-dataset batch with 15 tasks, and their backward."""

import os

import torch
from uma import five_datasets, load, perf_check_tasks

uma = load(os.environ["NOSYNC_TREE"])
tasks, spec = perf_check_tasks(uma), five_datasets()
batch, predictions = spec.make(uma, "cuda"), spec.predict("cuda")
with torch.profiler.record_function("step"):
    losses = uma.unit.compute_loss(tasks, predictions, batch)
    sum(losses.values()).backward()
