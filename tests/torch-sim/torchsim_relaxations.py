"""Relaxations with ``ts.optimize`` of systems that converge at different steps, with a given copy of torch_sim.

The model is harmonic around the origin, its stiffness an atom's mass: it reads only what stays with an atom when
systems are swapped, nothing from the device, and needs no neighbour list.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Systems = dict[str, torch.Tensor]


def random_systems(generator: torch.Generator, n_systems: int, max_atoms: int, dtype: torch.dtype) -> Systems:
    """The fields of a SimState, on the CPU: systems of 1 to ``max_atoms`` atoms, of very different stiffness."""
    n_atoms = torch.randint(1, max_atoms + 1, (n_systems,), generator=generator)
    system_idx = torch.arange(n_systems).repeat_interleave(n_atoms)
    stiffness = 10 ** (2 * torch.rand(n_systems, generator=generator, dtype=dtype) - 1)
    return {
        "positions": torch.randn(len(system_idx), 3, generator=generator, dtype=dtype),
        "masses": stiffness[system_idx],
        "cell": (4 + torch.rand(n_systems, 1, 1, generator=generator, dtype=dtype)) * torch.eye(3, dtype=dtype),
        "pbc": torch.tensor([True, True, True]),
        "atomic_numbers": torch.full_like(system_idx, 18),
        "system_idx": system_idx,
    }


def harmonic_model(package: ModuleType, device: torch.device, dtype: torch.dtype) -> Any:
    """E = m/2 |x|² for each atom; the stress is a hundredth of the cell's distance from 4."""
    interface = importlib.import_module(f"{package.__name__}.models.interface")

    class Harmonic(interface.ModelInterface):
        def __init__(self) -> None:
            super().__init__()
            self._device, self._dtype = device, dtype
            self._compute_stress = self._compute_forces = True
            self._memory_scales_with = "n_atoms"

        def forward(self, state: Any, **_: Any) -> dict[str, torch.Tensor]:
            forces = -state.masses.unsqueeze(-1) * state.positions
            energy = state.positions.new_zeros(state.cell.shape[0])
            energy = energy.scatter_add(0, state.system_idx, -0.5 * (forces * state.positions).sum(dim=1))
            size = torch.eye(3, device=device, dtype=dtype) * 4
            return {"energy": energy, "forces": forces, "stress": 0.01 * (state.cell - size)}

    return Harmonic()


def state_of(package: ModuleType, systems: Systems, device: torch.device, fixed: bool = False) -> Any:
    """Those systems as a SimState on the device; with ``fixed``, every fourth atom is.

    On the CPU so is system 0's centre of mass. (When a batch is split, FixCom leaves its index on the CPU: upstream's
    ``optimize`` cannot take it on a GPU.)
    """
    kinds = importlib.import_module(f"{package.__name__}.constraints")
    constraints = []
    if fixed:
        atoms = torch.arange(0, len(systems["masses"]), 4)
        constraints = [kinds.FixAtoms(atoms.to(device))]
        if device.type == "cpu":
            constraints.append(kinds.FixCom(torch.zeros(1, dtype=torch.int64)))
    fields = {name: tensor.clone().to(device) for name, tensor in systems.items()}
    return package.SimState(**fields, _constraints=constraints)


def batcher(package: ModuleType, model: Any, max_atoms: int | None) -> Any:
    """An InFlightAutoBatcher for at most that many atoms at once; None: what ``optimize`` does without one."""
    if max_atoms is None:
        return False
    return package.InFlightAutoBatcher(model=model, memory_scales_with="n_atoms", max_memory_scaler=max_atoms)


def reporter(folder: Path, n_systems: int, every: int) -> dict[str, Any]:
    """A file for each system, in a folder that is made; state and energy are written every so many steps."""
    folder.mkdir(exist_ok=True)
    return {
        "filenames": [folder / f"{number}.h5" for number in range(n_systems)],
        "state_frequency": every,
        "prop_calculators": {every: {"energy": lambda state: state.energy}},
    }


class Counted:
    """FIRE that counts its steps and a force criterion that counts its checks."""

    def __init__(self, package: ModuleType, force_tol: float, flavor: str = "ase_fire") -> None:
        self.steps = self.checks = 0
        self._package, self._flavor = package, flavor
        self._criterion = package.generate_force_convergence_fn(force_tol=force_tol)

    @property
    def optimizer(self) -> tuple[Any, Any]:
        """For ``optimize``."""
        return self._package.fire_init, self._step

    def criterion(self, state: Any, last_energy: torch.Tensor) -> torch.Tensor:
        """For ``optimize``."""
        self.checks += 1
        return self._criterion(state, last_energy)

    def _step(self, state: Any, model: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return self._package.fire_step(state, model, fire_flavor=self._flavor, **kwargs)
