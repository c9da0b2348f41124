"""Host syncs of a whole UMA training step outside of the graph builder, by what waits; or its operators and memory.

A small model, ten systems of five datasets. Waits are the third step's: by torch's counters on a GPU, by the detector
without one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_common import tell_versions
from uma import DATASETS, operators_of, peak_memory_of
from whole_step import (
    GRAPH,
    Tree,
    collate,
    device_type,
    load_step,
    make_unit,
    samples,
    step_tasks,
    third_step,
    train_step,
)

from nosync.hostsync import use_backend
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


def operators(tree: Tree) -> int:
    """ATen operators of the second step, on the CPU, with four layers as perf_check has."""
    with device_type("cpu"):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks, num_layers=4)
        train_step(tree, unit, collate(tree, tasks, samples(tree, 0)))
        batch = collate(tree, tasks, samples(tree, 1))
        return operators_of(lambda: train_step(tree, unit, batch))


def peak_memory(tree: Tree) -> int:
    """KiB of tensors at the peak of the second step, on the CPU, with two layers of 16 channels and twenty systems."""
    with device_type("cpu"):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks, num_layers=2, sphere_channels=16, hidden_channels=16)
        train_step(tree, unit, collate(tree, tasks, samples(tree, 0)))
        batch = collate(tree, tasks, samples(tree, 1, DATASETS * 4))
        return round(peak_memory_of(lambda: train_step(tree, unit, batch)) / 1024)


def told_tree(lines: writing.Lines, root: Path) -> Tree:
    """The tree with this source root, after a line about where it is from and what runs it."""
    tree = load_step(root)
    lines.write(imported=tree.unit.__file__)
    tell_versions(lines)
    return tree


def waits(tree: Tree) -> dict[str, int]:
    """Host syncs of the third step outside of the graph, by what waits."""
    with use_backend() as device:
        syncs, *_ = third_step(tree, device)
        outside = [event for event in syncs.counted if not any(part in event.file for part in GRAPH)]
    return {quantity: sum(event.count for event in outside if belongs(event)) for quantity, belongs in WAITS.items()}


COUNTS: dict[str, Callable[[Tree], dict[str, int]]] = {
    "waits": waits,
    "operators": lambda tree: {"moe.operators": operators(tree)},
    "memory": lambda tree: {"step.peak_kib": peak_memory(tree)},
}


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(COUNTS))
    options = parser.parse_args()
    with writing.Lines(options.out) as lines:
        tree = told_tree(lines, options.tree)
        for quantity, number in COUNTS[options.what](tree).items():
            lines.count(quantity, number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
