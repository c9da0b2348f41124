"""Host syncs of a whole UMA training step outside of the graph builder, by what waits; and the operators it calls.

A small model, ten systems of five datasets, the third step: on a GPU by torch's counters, without one by the detector.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_common import tell_versions
from uma import operators_of
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


def told_tree(lines: writing.Lines, root: Path) -> Tree:
    """The tree with this source root, after a line about where it is from and what runs it."""
    tree = load_step(root)
    lines.write(imported=tree.unit.__file__)
    tell_versions(lines)
    return tree


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tree = told_tree(lines, options.tree)
        lines.count("moe.operators", operators(tree))
        with use_backend() as device:
            syncs, *_ = third_step(tree, device)
            outside = [event for event in syncs.counted if not any(part in event.file for part in GRAPH)]
        for quantity, waits in WAITS.items():
            lines.count(quantity, sum(event.count for event in outside if waits(event)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
