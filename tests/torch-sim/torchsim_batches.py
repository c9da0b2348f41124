"""Random batches of systems and a harmonic model, built with whichever copy of torch_sim is given.

The model reads nothing from the device and needs no neighbour list, so every host sync that a step shows is
the optimizer's or the state's. It still drives all of FIRE: systems of different stiffness turn over at
different steps, so one batch holds positive and negative power at once.
"""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType
from typing import Any

import torch

FLAVORS = ("vv_fire", "ase_fire")
FILTERS = (None, "unit", "frechet")
PLAIN_FIELDS = ("positions", "velocities", "forces", "energy", "stress", "cell", "dt", "alpha", "n_pos")
CELL_FIELDS = ("cell_positions", "cell_velocities", "cell_forces")


@dataclasses.dataclass(frozen=True)
class Batch:
    """The inputs of one run, on the CPU.

    Attributes:
        positions: (n_atoms, 3), in Angstrom.
        rest: Where the springs are relaxed, (n_atoms, 3).
        masses: (n_atoms,).
        stiffness: Spring constant of each atom, (n_atoms,).
        cell: (n_systems, 3, 3).
        rest_cell: (n_systems, 3, 3).
        system_idx: (n_atoms,), int64, sorted.
        fixed: ``"atoms"``: every fourth atom is fixed; ``"com"``: each system's centre of mass; or None.
    """

    positions: torch.Tensor
    rest: torch.Tensor
    masses: torch.Tensor
    stiffness: torch.Tensor
    cell: torch.Tensor
    rest_cell: torch.Tensor
    system_idx: torch.Tensor
    fixed: str | None = None

    @property
    def n_systems(self) -> int:
        """How many systems."""
        return self.cell.shape[0]

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def nudged(self, generator: torch.Generator) -> Batch:
        """The same batch with positions and cell moved by one unit in the last place, up or down at random."""
        moved = {name: _nudge(getattr(self, name), generator) for name in ("positions", "cell")}
        return dataclasses.replace(self, **moved)

    def _map(self, change: Any) -> Batch:
        tensors = {key: val for key, val in vars(self).items() if isinstance(val, torch.Tensor)}
        return dataclasses.replace(self, **{key: change(val) for key, val in tensors.items()})


def random_batch(
    generator: torch.Generator, n_systems: int, max_atoms: int, dtype: torch.dtype, fixed: str | None = None
) -> Batch:
    """A batch of systems of 1 to ``max_atoms`` atoms each.

    Args:
        generator: Where the randomness comes from (CPU).
        n_systems: How many systems.
        max_atoms: The most atoms in one of them.
        dtype: float32 or float64.
        fixed: As in `Batch`.
    """
    n_atoms = torch.randint(1, max_atoms + 1, (n_systems,), generator=generator)
    system_idx = torch.repeat_interleave(torch.arange(n_systems), n_atoms)
    total = len(system_idx)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=dtype)

    rest = 2.0 * normal(total, 3)
    cell = 5.0 * torch.eye(3, dtype=dtype) + 0.2 * normal(n_systems, 3, 3)
    return Batch(
        positions=rest + 0.3 * normal(total, 3),
        rest=rest,
        masses=5.0 + 15.0 * uniform(total),
        stiffness=(0.1 + 5.0 * uniform(n_systems))[system_idx],
        cell=cell,
        rest_cell=cell + 0.05 * normal(n_systems, 3, 3),
        system_idx=system_idx,
        fixed=fixed,
    )


def equal_systems(n_systems: int, n_atoms: int) -> Batch:
    """A float64 batch of so many systems of so many atoms each, the same every time: what the bench runs on."""
    generator = torch.Generator().manual_seed(0)
    total = n_systems * n_atoms

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rest, cell = 2.0 * normal(total, 3), 5.0 * torch.eye(3, dtype=torch.float64) + 0.2 * normal(n_systems, 3, 3)
    system_idx = torch.arange(n_systems).repeat_interleave(n_atoms)
    return Batch(
        positions=rest + 0.3 * normal(total, 3),
        rest=rest,
        masses=torch.full((total,), 10.0, dtype=torch.float64),
        stiffness=(0.1 + 5.0 * torch.rand(n_systems, generator=generator, dtype=torch.float64))[system_idx],
        cell=cell,
        rest_cell=cell + 0.05 * normal(n_systems, 3, 3),
        system_idx=system_idx,
    )


def harmonic_model(package: ModuleType, batch: Batch) -> Any:
    """A model with E = k/2 |x - rest|^2 per atom and a stress linear in the cell's distance from its rest."""
    interface = importlib.import_module(f"{package.__name__}.models.interface")

    class Harmonic(interface.ModelInterface):
        def __init__(self) -> None:
            super().__init__()
            self._device, self._dtype = batch.positions.device, batch.positions.dtype
            self._compute_stress = self._compute_forces = True

        def forward(self, state: Any, **_: Any) -> dict[str, torch.Tensor]:
            pull = batch.stiffness.unsqueeze(-1) * (batch.rest - state.positions)
            atom_energy = 0.5 * (pull * (batch.rest - state.positions)).sum(dim=1)
            energy = torch.zeros(batch.n_systems, device=self.device, dtype=self.dtype)
            energy = energy.scatter_add(0, state.system_idx, atom_energy)
            return {"energy": energy, "forces": pull, "stress": 0.01 * (state.cell - batch.rest_cell)}

    return Harmonic()


def start(package: ModuleType, batch: Batch, flavor: str, cell_filter: str | None, **kwargs: Any) -> tuple[Any, Any]:
    """FIRE's first state and the model, from one copy of torch_sim.

    Args:
        package: The copy of torch_sim.
        batch: The inputs, on the device to run on. Its tensors are not written to.
        flavor: ``"vv_fire"`` or ``"ase_fire"``.
        cell_filter: None, ``"unit"`` or ``"frechet"``.
        **kwargs: For ``fire_init``.
    """
    state = package.SimState(
        positions=batch.positions.clone(),
        masses=batch.masses.clone(),
        cell=batch.cell.clone(),
        pbc=True,
        atomic_numbers=torch.full_like(batch.system_idx, 18),
        system_idx=batch.system_idx.clone(),
        _constraints=_constraints(package, batch),
    )
    model = harmonic_model(package, batch)
    chosen = package.CellFilter(cell_filter) if cell_filter else None
    return package.fire_init(state, model, fire_flavor=flavor, cell_filter=chosen, **kwargs), model


def swap_in(state: Any, systems: list[int]) -> None:
    """Make systems look freshly swapped in, in place: velocities NaN; dt, alpha and n_pos at their start."""
    for system in systems:
        state.velocities[state.system_idx == system] = torch.nan
        state.dt[system], state.alpha[system], state.n_pos[system] = 0.1, 0.1, 0
        if hasattr(state, "cell_velocities"):
            state.cell_velocities[system] = torch.nan


def run_steps(package: ModuleType, state: Any, model: Any, flavor: str, number: int) -> Any:
    """The state after that many steps of FIRE."""
    for _ in range(number):
        state = package.fire_step(state, model, fire_flavor=flavor)
    return state


def fields(state: Any) -> dict[str, torch.Tensor]:
    """Copies of all that a step may change."""
    names = PLAIN_FIELDS + (CELL_FIELDS if hasattr(state, "cell_positions") else ())
    return {name: getattr(state, name).detach().clone() for name in names}


def _constraints(package: ModuleType, batch: Batch) -> list[Any]:
    kinds = importlib.import_module(f"{package.__name__}.constraints")
    device = batch.positions.device
    if batch.fixed == "atoms":
        return [kinds.FixAtoms(atom_idx=torch.arange(0, len(batch.positions), 4, device=device))]
    if batch.fixed == "com":
        return [kinds.FixCom(system_idx=torch.arange(batch.n_systems, device=device))]
    return []


def _nudge(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    up = torch.randint(0, 2, tensor.shape, generator=generator).bool()
    infinity = torch.tensor(torch.inf, dtype=tensor.dtype)
    return torch.where(up, torch.nextafter(tensor, infinity), torch.nextafter(tensor, -infinity))
