"""FIRE on 100 crystals with SevenNet-0, where its package is installed (its checkpoint ships with it)."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch
import torch_sim
from bench_common import gpu, tell_memory, tell_setting, wall_ms

from nosync.measure import writing

STEPS, SAMPLES = 50, 2


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "torch_sim")
        if importlib.util.find_spec("sevenn") is None:
            lines.write(unavailable="the package sevenn, which ships SevenNet-0, is not installed here")
            return 0
        device = torch.device("cuda" if gpu() else "cpu")
        model = sevennet(device)
        for _ in range(1 if options.smoke else SAMPLES):
            state = torch_sim.fire_init(crystals(device, 2 if options.smoke else 100), model, fire_flavor="ase_fire")
            steps = 2 if options.smoke else STEPS
            lines.time("sevennet_ms.ase", wall_ms(lambda state=state, steps=steps: relax(state, model, steps)) / steps)
        tell_memory(lines)
    return 0


def sevennet(device: torch.device) -> Any:
    """TorchSim's wrapper of the checkpoint in the package."""
    from sevenn.calculator import SevenNetCalculator
    from torch_sim.models.sevennet import SevenNetModel

    return SevenNetModel(model=SevenNetCalculator("7net-0", device=str(device)).model, device=device)


def crystals(device: torch.device, number: int) -> Any:
    """Rattled 2×2×2 cells of common metals."""
    from ase.build import bulk

    metals = ("Cu", "Al", "Ni", "Ag", "Au", "Fe", "W", "Mg", "Ti", "Si")
    systems = []
    for i in range(number):
        atoms = bulk(metals[i % len(metals)], cubic=metals[i % len(metals)] not in ("Mg", "Ti")).repeat((2, 2, 2))
        atoms.rattle(0.1, seed=i)
        systems.append(atoms)
    return torch_sim.initialize_state(systems, device=device, dtype=torch.float32)


def relax(state: Any, model: Any, number: int) -> None:
    """Run FIRE."""
    for _ in range(number):
        state = torch_sim.fire_step(state, model, fire_flavor="ase_fire")


if __name__ == "__main__":
    sys.exit(main())
