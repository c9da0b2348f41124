"""Host syncs of a whole UMA training step outside of the graph builder, by what waits; and the operators it calls.

A small model, ten systems of five datasets, the third step: on a GPU by torch's counters, without one by the detector.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from whole_step import GRAPH, Tree, collate, device_type, load_step, make_unit, pinned, samples, step_tasks, train_step

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

WAITS: dict[str, Callable[[Any], bool]] = {
    "batch.num_graphs": lambda event: event.function == "num_graphs",
    "batch.to": lambda event: event.file.endswith("atomic_data.py") and event.function != "num_graphs",
    "moe.waits": lambda event: event.file.endswith("escn_moe.py"),
    "moe.backward": lambda event: event.phase == "backward",
    "rest.embedding": lambda event: event.file.endswith("nn/embedding.py"),
    "rest.ema": lambda event: event.function == "train_step" and event.kind == "h2d",
    "whole.outside_of_graph": lambda event: True,
}


def counted_step(tree: Tree, device: torch.device) -> Any:
    """The waits of the third step, whose batch a DataLoader has pinned."""
    with device_type(device):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks)
        for number in range(3):
            batch = pinned(collate(tree, tasks, samples(tree, number)))
            with host_syncs() as syncs:
                train_step(tree, unit, batch)
    return syncs


def operators(tree: Tree) -> int:
    """ATen operators of the second step, on the CPU, with four layers as perf_check has."""
    with device_type("cpu"):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks, num_layers=4)
        train_step(tree, unit, collate(tree, tasks, samples(tree, 0)))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            train_step(tree, unit, collate(tree, tasks, samples(tree, 1)))
    return sum(event.count for event in profiler.key_averages() if event.key.startswith("aten::"))


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tree = load_step(options.tree)
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        lines.write(imported=tree.unit.__file__)
        lines.write(versions={"torch": torch.__version__, "device": name})
        lines.count("moe.operators", operators(tree))
        with use_backend() as device:
            outside = [event for event in counted_step(tree, device).counted if not any(p in event.file for p in GRAPH)]
        for quantity, waits in WAITS.items():
            lines.count(quantity, sum(event.count for event in outside if waits(event)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
