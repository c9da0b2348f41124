"""Predictions of energy, forces and stress by a UMA-style model of random weights, both trees in turns in one process.

One system as a calculator asks for, and a batch of five datasets with the sizes of perf_check's corpus; the model has
the form of the released small one: four layers of 128 channels, 32 experts. Each call copies its batch to the device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import graphs
import torch
from bench_common import gpu, tell_memory, tell_versions, wall_ms
from uma import DATASETS
from whole_step import Tree, atomic_data, collate, device_type, load_step, make_unit, predict, step_tasks

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

SIZES = {"num_layers": 4, "sphere_channels": 128, "hidden_channels": 128, "edge_channels": 128, "num_experts": 32}
ARMS, RUNS, CALLS = ("base", "patched"), 5, 10
TOLERANCE = 1e-4  # of the largest element of an output, in float32


class Predictor:
    """One tree's model, on the device."""

    def __init__(self, root: Path, device: torch.device, small: bool) -> None:
        self.tree, self.device = load_step(root), device
        self.tasks = step_tasks(self.tree)
        with device_type(device):
            self.unit = make_unit(self.tree, self.tasks, **({} if small else SIZES))
        self.unit.model.eval().requires_grad_(False)

    def batch(self, number: int, scale: float) -> Any:
        """The first so many of the five systems, on the CPU."""
        made = [sample(self.tree, *each) for each in zip(graphs.five_datasets(scale), DATASETS, strict=True)]
        return collate(self.tree, self.tasks, made[:number])

    def __call__(self, batch: Any) -> Any:
        with device_type(self.device):
            return predict(self.tree, self.unit, batch.clone(), self.device)


def sample(tree: Tree, system: graphs.System, name: str) -> Any:
    """A system as a calculator makes it."""
    return atomic_data(
        tree, name,
        pos=system.pos.float(),
        atomic_numbers=1 + torch.arange(len(system.pos)) % 18,
        cell=system.cell.float()[None],
        pbc=torch.tensor([system.pbc]),
    )  # fmt: skip


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    real = gpu()  # not what the detector's stand-in says
    with writing.Lines(options.out) as lines, use_backend() as device:
        tell_versions(lines)
        roots = dict(zip(ARMS, (options.tree, options.patched_tree), strict=True))
        predictors = {arm: Predictor(root, device, small=not real) for arm, root in roots.items()}
        for name, number in (("one", 1), ("five", 5)):
            batches = {arm: each.batch(number, 1.0 if real else 0.1) for arm, each in predictors.items()}
            count(lines, name, predictors, batches)
            for run in range(RUNS if real else 0):
                time(lines, name, predictors, batches, run)
        tell_memory(lines)
    return 0


def count(lines: writing.Lines, name: str, predictors: dict[str, Predictor], batches: dict[str, Any]) -> None:
    """Waits of the second call, and whether the trees predict the same."""
    found = {}
    for arm, predictor in predictors.items():
        predictor(batches[arm])
        with host_syncs() as syncs:
            found[arm] = predictor(batches[arm])
        lines.count(f"prediction.{name}.waits", syncs.count, arm=arm)
    if wrong := differing(*found.values()):
        lines.write(wrong=f"{name}: {', '.join(wrong)} differ")


def differing(base: dict[str, Any], patched: dict[str, Any]) -> list[str]:
    """The outputs that are apart by more than rounding."""
    wrong = [] if base.keys() == patched.keys() else ["names"]
    for task, outputs in base.items():
        for output, theirs in outputs.items():
            ours = patched[task][output].detach().cpu()
            theirs = theirs.detach().cpu()
            if not torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE * float(theirs.abs().max())):
                wrong.append(f"{task}.{output}")
    return wrong


def time(lines: writing.Lines, name: str, predictors: dict[str, Predictor], batches: dict[str, Any], run: int) -> None:
    """Milliseconds of a call, in blocks, the trees in turns."""
    for arm, predictor in predictors.items():
        block = wall_ms(lambda predictor=predictor, arm=arm: [predictor(batches[arm]) for _ in range(CALLS)])
        lines.time(f"prediction.{name}.ms", block / CALLS, arm=arm, run=run)


if __name__ == "__main__":
    sys.exit(main())
