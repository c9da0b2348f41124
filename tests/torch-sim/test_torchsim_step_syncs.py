"""Not one wait in a step of FIRE, whatever the flavor, the cell filter, the constraint and the dtype."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch_sim
from torchsim_batches import FILTERS, FLAVORS, random_batch, start, swap_in

from nosync.hostsync import forbid_host_syncs, value

DTYPES = (torch.float32, torch.float64)
STEPS = ("first", "later", "some-nan")


@pytest.mark.fails_on_base
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fixed", [None, "atoms", "com"])
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_no_wait(
    device: torch.device,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    kind: str,
    fixed: str | None,
    dtype: torch.dtype,
) -> None:
    state, model = deformed(device, generator, flavor, cell_filter, dtype, fixed)
    if kind != "first":
        state = torch_sim.fire_step(state, model, fire_flavor=flavor)
    if kind == "some-nan":
        swap_in(state, [1])
    with forbid_host_syncs():
        state = torch_sim.fire_step(state, model, fire_flavor=flavor)
    assert value(state.positions).isfinite().all()


@pytest.mark.parametrize(
    "named",
    [torch.tensor([0, 2]), torch.tensor([0, 2], dtype=torch.int32), torch.tensor([True, False] * 2), slice(0, 4, 2)],
    ids=["int64", "int32", "mask", "slice"],
)
def test_fixed_atoms_may_be_named_on_the_host(device: torch.device, named: Any) -> None:
    """By whatever indexes a tensor: the attribute can be set, and classes derived from FixAtoms set it."""
    forces = torch.ones(4, 3, device=device)
    fixed = torch_sim.constraints.FixAtoms(torch.tensor([0]))
    fixed.atom_idx = named
    fixed.adjust_forces(None, forces)
    assert value(forces).tolist() == [[0.0] * 3, [1.0] * 3] * 2


@pytest.mark.fails_on_base
@pytest.mark.parametrize("ask", ["n_systems", "extras"])
def test_number_of_systems(device: torch.device, generator: torch.Generator, ask: str) -> None:
    state, _ = deformed(device, generator, "ase_fire", None, torch.float64, None)
    with forbid_host_syncs():
        if ask == "n_systems":
            assert state.n_systems == 3
        else:
            state.store_model_extras({"charges": state.masses, "dipole": state.cell[:, 0]})
    assert state.n_systems == 3


@pytest.mark.fails_on_base
@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("optimizer", ["gradient_descent", "lbfgs"])
def test_other_optimizers_have_no_wait(
    device: torch.device, generator: torch.Generator, optimizer: str, cell_filter: str | None
) -> None:
    batch = random_batch(generator, 3, 6, torch.float64)
    fire_state, model = start(torch_sim, batch.to(device), "ase_fire", None)
    state = torch_sim.SimState(
        **{name: getattr(fire_state, name) for name in ("positions", "masses", "cell", "atomic_numbers", "system_idx")},
        pbc=True,
    )
    init, step = (getattr(torch_sim, f"{optimizer}_{part}") for part in ("init", "step"))
    chosen = torch_sim.CellFilter(cell_filter) if cell_filter else None
    state = step(state=init(state, model, cell_filter=chosen), model=model)
    with forbid_host_syncs():
        state = step(state=state, model=model)
    assert value(state.positions).isfinite().all()


@pytest.mark.fails_on_base
def test_clamp_warns_later_without_a_wait(device: torch.device, generator: torch.Generator) -> None:
    state, model = deformed(device, generator, "ase_fire", "frechet", torch.float64, None)
    state = torch_sim.fire_step(state, model, fire_flavor="ase_fire")
    state.cell_positions = state.cell_positions + 10.0 * state.cell_factor
    with warnings.catch_warnings(record=True) as caught, forbid_host_syncs():
        warnings.simplefilter("always")
        for _ in range(3):
            state = torch_sim.fire_step(state, model, fire_flavor="ase_fire")
    found = [str(each.message) for each in caught if "Clamping log-space" in str(each.message)]
    assert len(found) >= 1
    assert "3 system(s)" in found[0]
    assert value((state.cell_positions / state.cell_factor).abs()).max() <= 2.5


def deformed(
    device: torch.device,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    dtype: torch.dtype,
    fixed: str | None,
) -> tuple[Any, Any]:
    """FIRE's first state of 3 systems, their cells sheared and stretched away from the reference cells."""
    batch = random_batch(generator, 3, 6, dtype, fixed)
    state, model = start(torch_sim, batch.to(device), flavor, cell_filter)
    if cell_filter is not None:
        shear = torch.eye(3, dtype=dtype) + 0.1 * torch.randn(3, 3, 3, generator=generator, dtype=dtype)
        state.cell = shear.to(device) @ state.cell
    return state, model
