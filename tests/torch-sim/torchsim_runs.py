"""Runs of FIRE with one copy of torch_sim after the other, and what may differ between them.

The patched tree makes a step's sums and products in another order, and with a cell filter it inverts cells in closed
form and takes another logarithm and exponential. And two things are not reproducible even on the base against itself:
the matrix logarithm of the Frechet filter (seen on the base: the same run differs in the last digits from process to
process; LAPACK and SciPy round differently with a buffer's alignment) and, on a GPU, the order in which scatter_add_
sums. So the bound is measured: the base runs once more from positions and a cell that are moved by one unit in the
last place, and what has become of that rounding difference by a step is what one rounding difference may do, or one
unit in the last place of the largest value, where that is more. Some enter at each step (ROUNDINGS: the products that
a step makes in another way), so the bound after n steps is n times that many. With the Frechet filter cell_positions
are cell_factor (the number of atoms) times the logarithm of a deformation gradient: the gradient is of the order of 1,
so its last place, not that of the small logarithm, is what rounding moves, by LOG_ROUNDINGS a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchsim_batches import Batch, fields, start
from two_trees import PackageCopy

Trajectory = list[dict[str, torch.Tensor]]
ROUNDINGS = 64
LOG_ROUNDINGS = 4


def run(
    copy: PackageCopy,
    batch: Batch,
    flavor: str,
    cell_filter: str | None,
    n_steps: int,
    *,
    before_step: Callable[[Any, int], None] = lambda state, step: None,
    **hyperparameters: Any,
) -> Trajectory:
    """All fields after each step.

    Args:
        copy: Which torch_sim.
        batch: The inputs, on the device to run on.
        flavor: FIRE's flavor.
        cell_filter: None, ``"unit"`` or ``"frechet"``.
        n_steps: How many steps.
        before_step: Called with the state and the step's number before each step; may write to the state.
        **hyperparameters: For ``fire_step``.
    """
    with copy.active() as package:
        state, model = start(package, batch, flavor, cell_filter)
        steps = []
        for step in range(n_steps):
            before_step(state, step)
            state = package.fire_step(state, model, fire_flavor=flavor, **hyperparameters)
            steps.append(fields(state))
        return steps


def assert_equal(found: Trajectory, expected: Trajectory) -> None:
    """Equal bit by bit, NaN with NaN, dtype and shape too."""
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0, equal_nan=True, msg=_where(name, step))


def assert_within_own_spread(found: Trajectory, base: Trajectory, nudged: Trajectory, system_idx: torch.Tensor) -> None:
    """As near to the base as the module's docstring says, and not finite where the base is not.

    FIRE restarts a system when its power is not positive. Next to 0 the sign is a matter of rounding, in float32 once
    in some thousand systems and steps; such a system then goes another way and is compared no further. In float64
    none may, in float32 one and a twentieth of all.

    Args:
        found: Of the patched tree.
        base: Of the base.
        nudged: Of the base, from inputs that are moved by one unit in the last place.
        system_idx: The system of each atom, (n_atoms,).
    """
    spread = dict.fromkeys(base[0], 0.0)
    dtype, n_systems = base[0]["positions"].dtype, len(base[0]["n_pos"])
    most_atoms = int(system_idx.bincount().max())
    may_stray = n_systems // 20 + 1 if dtype == torch.float32 else 0
    here, there = (torch.ones(n_systems, dtype=torch.bool) for _ in range(2))
    for step, (ours, theirs, moved) in enumerate(zip(found, base, nudged, strict=True)):
        here &= ours["n_pos"] == theirs["n_pos"]
        there &= moved["n_pos"] == theirs["n_pos"]
        assert (~here).sum() <= may_stray, _where("n_pos", step)(f"systems {(~here).nonzero().flatten().tolist()}")
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            near, far = (mask[system_idx] if len(ours[name]) == len(system_idx) else mask for mask in (here, there))
            spread[name] = max(spread[name], _distance(moved[name][far], theirs[name][far]))
            last_place = torch.finfo(dtype).eps * _size(theirs[name])
            bound = ROUNDINGS * (step + 1) * max(spread[name], last_place)
            if name == "cell_positions":
                bound = max(bound, LOG_ROUNDINGS * (step + 1) * torch.finfo(dtype).eps * most_atoms)
            distance = _distance(ours[name][near], theirs[name][near])
            assert distance <= bound, f"{name} after step {step}: {distance:.3g} apart, bound {bound:.3g}"


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest distance, where both are finite; the same rows must hold something that is not."""
    finite = torch.isfinite(a) & torch.isfinite(b)
    broken = [~torch.isfinite(each).reshape(len(each), -1).all(dim=1) for each in (a, b)]
    assert torch.equal(*broken), "not finite in other rows"
    return (a.double() - b.double())[finite].abs().amax().item() if finite.any() else 0.0


def _size(a: torch.Tensor) -> float:
    finite = a[torch.isfinite(a)]
    return finite.double().abs().amax().item() if len(finite) else 0.0


def _where(name: str, step: int) -> Callable[[str], str]:
    return lambda text: f"{name} after step {step}: {text}"
