"""Host syncs of whole relaxations of four small systems with ``ts.optimize``, one tree."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch_sim
from bench_common import tell_setting
from torchsim_relaxations import Counted, batcher, harmonic_model, random_systems, reporter, state_of

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

SYSTEMS, MOST_ATOMS = 4, 5
# name: the most atoms in a batch
BATCHES = {"all": None, "in_flight": 9}


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")
    with writing.Lines(options.out) as lines, use_backend() as device, tempfile.TemporaryDirectory() as folder:
        tell_setting(lines, "torch_sim")
        for name, max_atoms in BATCHES.items():
            for files in (None, Path(folder) / name):
                counted, waits = relax(device, max_atoms, files)
                case = f"{name}_files" if files else name
                lines.count(f"runner.{case}", waits)
                lines.count(f"runner.{case}.steps", counted.steps)
                lines.count(f"runner.{case}.checks", counted.checks)
    return 0


def relax(device: torch.device, max_atoms: int | None, files: Path | None) -> tuple[Counted, int]:
    """Run to convergence; returns what was counted and the waits."""
    systems = random_systems(torch.Generator().manual_seed(0), SYSTEMS, MOST_ATOMS, torch.float64)
    model = harmonic_model(torch_sim, device, torch.float64)
    state = state_of(torch_sim, systems, device)
    counted = Counted(torch_sim, force_tol=0.05)
    with host_syncs() as syncs:
        torch_sim.optimize(
            state,
            model,
            optimizer=counted.optimizer,
            convergence_fn=counted.criterion,
            max_steps=1000,
            autobatcher=batcher(torch_sim, model, max_atoms),
            trajectory_reporter=reporter(files, SYSTEMS, every=10) if files else None,
        )
    return counted, syncs.count


if __name__ == "__main__":
    sys.exit(main())
