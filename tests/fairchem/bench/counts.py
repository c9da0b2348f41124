"""Host syncs of the UMA loss, one tree: on a GPU by torch's counters, without one by the detector."""

from __future__ import annotations

import sys

import torch
from bench_common import tell_versions
from uma import Uma, five_datasets, load_from, perf_check_tasks

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

NATOMS = (3, 5, 1, 4)
LOSSES = {
    "mean": ("PerAtomMAELoss", "system"),
    "sum": ("PerAtomMAELoss", "system"),
    "per_structure": ("L2NormLoss", "atom"),
}


def loss(lines: writing.Lines, uma: Uma, device: torch.device) -> None:
    """One forward for each reduction, the mask without one entry and one structure."""
    generator = torch.Generator().manual_seed(0)
    for reduction, (kind, level) in LOSSES.items():
        rows, width = (sum(NATOMS), 3) if level == "atom" else (len(NATOMS), 1)
        mask = torch.ones(rows, dtype=torch.bool)
        mask[1] = False
        mask[3 : 8 if level == "atom" else 3] = False
        numbers = [torch.randn(rows, width, generator=generator) for _ in range(2)]
        inputs = [each.to(device) for each in (*numbers, mask, torch.tensor(NATOMS))]
        module = uma.loss.DDPMTLoss(getattr(uma.loss, kind)(), reduction=reduction, coefficient=10)
        module(*inputs)
        with host_syncs() as syncs:
            module(*inputs)
        lines.count(f"loss.{reduction}", syncs.count)


def step(lines: writing.Lines, uma: Uma, device: torch.device) -> None:
    """Masks, losses and backward of 15 tasks."""
    tasks, spec = perf_check_tasks(uma), five_datasets()
    for counted in (False, True):  # what is set up once per process is not counted
        batch, predictions = spec.make(uma, device), spec.predict(device)
        with host_syncs() as syncs:
            losses = uma.unit.compute_loss(tasks, predictions, batch)
            sum(losses.values()).backward()
        if counted:
            lines.count("step.waits_one_process", syncs.count)


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("what", choices=["loss", "step"])
    options = parser.parse_args()
    with writing.Lines(options.out) as lines:
        uma = load_from(options.tree)
        lines.write(imported=uma.loss.__file__)
        tell_versions(lines)
        with use_backend() as device:
            {"loss": loss, "step": step}[options.what](lines, uma, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
