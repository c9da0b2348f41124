"""The patched FIRE gives the base's values, within the bound that `torchsim_runs` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchsim_batches import FILTERS, FLAVORS, Batch, fields, random_batch, start, swap_in
from torchsim_runs import Trajectory, assert_equal, assert_within_own_spread, run
from two_trees import PackageCopy

from nosync.hostsync import value

N_STEPS = 50
DTYPES = (torch.float32, torch.float64)
# name: (systems, most atoms of a system, what is fixed)
SHAPES = {
    "one-atom": (1, 1, None),
    "few": (5, 64, None),
    "fixed-atoms": (7, 16, "atoms"),
    "fixed-com": (7, 16, "com"),
    "many": (100, 64, None),
}
Both = tuple[PackageCopy, PackageCopy]


def swaps(batch: Batch, generator: torch.Generator) -> Callable[[Any, int], None]:
    """Before steps 15 and 30, some of the systems (all of them if there is one) are swapped for fresh ones."""
    chosen = [torch.randperm(batch.n_systems, generator=generator)[: batch.n_systems // 3 + 1] for _ in range(2)]
    at = {15: chosen[0].tolist(), 30: chosen[1].tolist()}
    return lambda state, step: swap_in(state, at.get(step, []))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cell_filter", [None, "unit"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_within_own_spread(
    both_trees: Both,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    shape: str,
    dtype: torch.dtype,
) -> None:
    n_systems, max_atoms, fixed = SHAPES[shape]
    batch = random_batch(generator, n_systems, max_atoms, dtype, fixed)
    base = _assert_near_base(both_trees, batch, generator, flavor, cell_filter, N_STEPS)
    if n_systems > 1:
        assert any(_mixed(step) for step in base), "no step had positive and negative power in one batch"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fixed", [None, "atoms", "com"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_frechet_within_own_spread(
    both_trees: Both, generator: torch.Generator, flavor: str, fixed: str | None, dtype: torch.dtype
) -> None:
    batch = random_batch(generator, 3, 16, dtype, fixed)
    _assert_near_base(both_trees, batch, generator, flavor, "frechet", N_STEPS if fixed is None else 10)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_frechet_filter_many_systems(both_trees: Both, generator: torch.Generator, flavor: str) -> None:
    batch = random_batch(generator, 40, 8, torch.float64, "atoms")
    _assert_near_base(both_trees, batch, generator, flavor, "frechet", 3)


@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_on_the_device(
    both_trees: Both, device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None
) -> None:
    batch = random_batch(generator, 3, 6, torch.float64)
    _assert_near_base(both_trees, batch, generator, flavor, cell_filter, 6, device)


def _assert_near_base(
    copies: Both,
    batch: Batch,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    n_steps: int,
    device: torch.device | None = None,
) -> Trajectory:
    """The base's steps, which those of the patched tree are near."""
    before_step = swaps(batch, generator)
    runs = ((copies[1], batch), (copies[0], batch), (copies[0], batch.nudged(generator)))
    found: list[Trajectory] = []
    for copy, inputs in runs:
        placed = inputs if device is None else inputs.to(device)
        found.append(value(run(copy, placed, flavor, cell_filter, n_steps, before_step=before_step)))
    assert_within_own_spread(*found, batch.system_idx)
    return found[1]


def _compare(
    copies: Both,
    batch: Batch,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    n_steps: int,
    **kwargs: Any,
) -> None:
    base, patched = (run(copy, batch, flavor, cell_filter, n_steps, **kwargs) for copy in copies)
    nudged = run(copies[0], batch.nudged(generator), flavor, cell_filter, n_steps, **kwargs)
    assert_within_own_spread(patched, base, nudged, batch.system_idx)


@pytest.mark.parametrize("cell_filter", [None, "unit"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_swap_by_concatenation(
    both_trees: Both, generator: torch.Generator, flavor: str, cell_filter: str | None
) -> None:
    """As an autobatcher does it: systems leave a running state, and freshly initialised ones join."""
    batch = random_batch(generator, 5, 8, torch.float64)

    def steps(copy: PackageCopy, batch: Batch) -> Trajectory:
        with copy.active() as package:
            fresh, model = start(package, batch, flavor, cell_filter)
            running = fresh.clone()
            for _ in range(10):
                running = package.fire_step(running, model, fire_flavor=flavor)
            state = package.concatenate_states([running[[0, 1, 2]], fresh[[3, 4]]])
            found = [fields(state)]
            for _ in range(10):
                state = package.fire_step(state, model, fire_flavor=flavor)
                found.append(fields(state))
            return found

    base, patched = (steps(copy, batch) for copy in both_trees)
    assert base[0]["velocities"].isnan().any()
    assert not base[0]["velocities"].isnan().all()
    assert_within_own_spread(patched, base, steps(both_trees[0], batch.nudged(generator)), batch.system_idx)


def _first_step(state: Any) -> None:
    state.velocities.fill_(torch.nan)


def _first_step_of_part_nan_rows(state: Any) -> None:
    state.velocities[:, 1] = torch.nan


def _first_step_with_moving_cell(state: Any) -> None:
    state.velocities.fill_(torch.nan)
    if hasattr(state, "cell_velocities"):
        state.cell_velocities.copy_(state.cell_forces)


def _one_atom_nan(state: Any) -> None:
    state.velocities[2, 1] = torch.nan


def _one_system_and_one_cell_entry_nan(state: Any) -> None:
    state.velocities[state.system_idx == 1] = torch.nan
    if hasattr(state, "cell_velocities"):
        state.cell_velocities[1, 0, 2] = torch.nan


def _infinite_velocity(state: Any) -> None:
    state.velocities[1, 0] = torch.inf


def _nan_force(state: Any) -> None:
    state.forces[1, 0] = torch.nan


def _infinite_force_on_first_step(state: Any) -> None:
    state.velocities.fill_(torch.nan)
    state.forces[1, 0] = -torch.inf


def _no_force(state: Any) -> None:
    state.forces.zero_()


def _at_rest(state: Any) -> None:
    state.velocities.zero_()


def _uphill(state: Any) -> None:
    state.velocities.copy_(-state.forces)
    state.velocities[state.system_idx == 2] *= -1


CORNERS = (
    _first_step,
    _first_step_of_part_nan_rows,
    _first_step_with_moving_cell,
    _one_atom_nan,
    _one_system_and_one_cell_entry_nan,
    _infinite_velocity,
    _nan_force,
    _infinite_force_on_first_step,
    _no_force,
    _at_rest,
    _uphill,
)


@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.__name__.strip("_"))
@pytest.mark.parametrize("cell_filter", [None, "unit"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_corner_states(
    both_trees: Both,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    corner: Callable[[Any], None],
) -> None:
    batch = random_batch(generator, 3, 5, torch.float64)

    def before_step(state: Any, step: int) -> None:
        if step == 4:
            corner(state)

    _compare(both_trees, batch, generator, flavor, cell_filter, 8, before_step=before_step)


HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "small-dt-max": {"dt_max": 0.05},  # below dt: only an increase is capped
    "counts-at-once": {"n_min": 0, "dt_max": 0.3},
    "negative-n-min": {"n_min": -1},
    "fractional-n-min": {"n_min": 1.5},
    "integers": {"n_min": 1, "dt_max": 1, "alpha_start": 0, "f_inc": 2, "max_step": 1},
    "tensors": {
        "dt_max": torch.tensor(0.2),
        "n_min": torch.tensor(2),
        "f_inc": torch.tensor(1.2, dtype=torch.float64),
        "f_dec": torch.tensor(0.4),
        "alpha_start": torch.tensor(0.2),
        "f_alpha": torch.tensor(0.98),
        "max_step": torch.tensor(0.05),
    },
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chosen", HYPERPARAMETERS)
@pytest.mark.parametrize("cell_filter", [None, "unit"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_hyperparameters(
    both_trees: Both,
    generator: torch.Generator,
    flavor: str,
    cell_filter: str | None,
    chosen: str,
    dtype: torch.dtype,
) -> None:
    batch = random_batch(generator, 4, 6, dtype)
    _compare(both_trees, batch, generator, flavor, cell_filter, 15, **HYPERPARAMETERS[chosen])


@pytest.mark.fails_on_base
def test_vv_fire_resets_nan_cell_velocities_alone(generator: torch.Generator) -> None:
    """What the series changes: a NaN cell velocity while no atom's is NaN; the base never reset it."""
    import torch_sim

    batch = random_batch(generator, 3, 5, torch.float64)
    state, model = start(torch_sim, batch, "vv_fire", "unit")
    state.velocities = 1e-3 * state.forces
    at_rest = state.clone()
    at_rest.cell_velocities = torch.zeros_like(state.cell_velocities)
    after, expected = (fields(torch_sim.fire_step(start_, model, fire_flavor="vv_fire")) for start_ in (state, at_rest))
    assert_equal([after], [expected])
    assert after["velocities"].any()


@pytest.mark.fails_on_base
@pytest.mark.parametrize("flavor", FLAVORS)
def test_start_tensors_are_not_overwritten(generator: torch.Generator, flavor: str) -> None:
    """What the series changes: the base writes its dt and alpha into the caller's tensors."""
    import torch_sim

    batch = random_batch(generator, 3, 5, torch.float64)
    dt_start, alpha_start = torch.full((2, 3), 0.1, dtype=torch.float64)
    state, model = start(torch_sim, batch, flavor, None, dt_start=dt_start, alpha_start=alpha_start)
    for _ in range(4):
        state = torch_sim.fire_step(state, model, fire_flavor=flavor, n_min=0)
    assert state.dt.tolist() != [0.1] * 3
    assert torch.stack([dt_start, alpha_start]).tolist() == [[0.1] * 3] * 2


def test_steps_can_be_differentiated(both_trees: Both, generator: torch.Generator) -> None:
    """Three of ase_fire without a cell filter, by the first forces. (With one, the base changes dt in place.)"""
    batch = random_batch(generator, 3, 5, torch.float64)
    grads = []
    for copy in both_trees:
        with copy.active() as package:
            state, model = start(package, batch, "ase_fire", None)
            forces = state.forces = state.forces.clone().requires_grad_()
            for _ in range(3):
                state = package.fire_step(state, model, fire_flavor="ase_fire")
            grads += torch.autograd.grad(state.positions.square().sum(), forces)
    base, patched = grads
    assert base.any()
    torch.testing.assert_close(patched, base, rtol=1e-6, atol=1e-9)


def _mixed(step: dict[str, torch.Tensor]) -> bool:
    """Whether some systems' power was positive in the step and others' was not."""
    positive = step["n_pos"] > 0
    return bool(positive.any() and not positive.all())
