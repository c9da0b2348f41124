"""FIRE on displaced argon crystals with TorchSim's Lennard-Jones model, one tree."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch_sim
from bench_common import gpu, tell_memory, tell_setting, wall_ms
from torchsim_batches import run_steps

from nosync.measure import writing

LATTICE = 5.26  # Angstrom, face-centred cubic argon
SAMPLES = 5


def crystals(number: int, cells: int, device: torch.device) -> Any:
    """``number`` crystals of 4 ``cells``³ atoms, each displaced at random by a tenth of an Angstrom."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.tensor([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], dtype=torch.float64)
    grid = torch.cartesian_prod(*[torch.arange(cells, dtype=torch.float64)] * 3)
    perfect = LATTICE * (grid[:, None] + corner).reshape(-1, 3)
    positions = perfect.repeat(number, 1)
    positions += 0.1 * torch.randn(positions.shape, generator=generator, dtype=torch.float64)
    system_idx = torch.arange(number).repeat_interleave(len(perfect))
    return torch_sim.SimState(
        positions=positions.to(device),
        masses=torch.full((len(positions),), 39.948, dtype=torch.float64, device=device),
        cell=(LATTICE * cells * torch.eye(3, dtype=torch.float64)).repeat(number, 1, 1).to(device),
        pbc=True,
        atomic_numbers=torch.full((len(positions),), 18, device=device),
        system_idx=system_idx.to(device),
    )


def argon_model(device: torch.device) -> Any:
    """Argon's parameters; the neighbour list of all pairs, for small cells."""
    from torch_sim.models.lennard_jones import LennardJonesModel

    return LennardJonesModel(
        sigma=3.405, epsilon=0.0104, cutoff=1.5 * 3.405, device=device, dtype=torch.float64, compute_forces=True,
        compute_stress=True,
    )  # fmt: skip


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "torch_sim")
        device = torch.device("cuda" if gpu() else "cpu")
        number, block = (2, 3) if options.smoke else (100, 30)
        model = argon_model(device)
        for flavor, name in (("vv_fire", "vv"), ("ase_fire", "ase")):
            for _ in range(2 if options.smoke else SAMPLES):
                state = torch_sim.fire_init(crystals(number, 2, device), model, fire_flavor=flavor)
                state = run_steps(torch_sim, state, model, flavor, 2)
                run = wall_ms(lambda state=state, flavor=flavor: run_steps(torch_sim, state, model, flavor, block))
                lines.time(f"argon_ms.{name}", run / block)
        tell_memory(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
