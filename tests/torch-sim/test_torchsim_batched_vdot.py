"""batched_vdot: sums, errors, and no wait."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch_sim.math import batched_vdot
from two_trees import PackageCopy

from nosync.hostsync import forbid_host_syncs, value


def vdot(function: Any, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, n_systems: int) -> torch.Tensor:
    """Call either tree's form: the base reads the number of systems from the index."""
    takes_number = "n_systems" in inspect.signature(function).parameters
    return function(x, y, index, n_systems) if takes_number else function(x, y, index)


def inputs(
    generator: torch.Generator, n_systems: int, max_atoms: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two vectors per atom, (n_atoms, 3), and the sorted system index; 1 to ``max_atoms`` atoms a system."""
    n_atoms = torch.randint(1, max_atoms + 1, (n_systems,), generator=generator)
    index = torch.repeat_interleave(torch.arange(n_systems), n_atoms)
    x, y = torch.randn(2, len(index), 3, generator=generator, dtype=dtype)
    return x, y, index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n_systems", "max_atoms"), [(1, 1), (1, 64), (7, 5), (100, 64)])
def test_equals_base_and_float64(
    both_trees: tuple[PackageCopy, PackageCopy],
    generator: torch.Generator,
    n_systems: int,
    max_atoms: int,
    dtype: torch.dtype,
) -> None:
    x, y, index = inputs(generator, n_systems, max_atoms, dtype)
    results = []
    for copy in both_trees:
        with copy.active() as package:
            results.append(vdot(package.math.batched_vdot, x, y, index, n_systems))
    base, patched = results
    assert patched.dtype == dtype
    assert torch.equal(patched, base)
    products = x.double() * y.double()
    exact = torch.stack([products[index == system].sum() for system in range(n_systems)])
    # a sum of n rounded products is off by at most n + 1 roundings of the sum of their sizes
    sizes = torch.stack([products[index == system].abs().sum() for system in range(n_systems)])
    n_terms = 3 * torch.bincount(index) + 1
    assert ((patched.double() - exact).abs() <= n_terms * torch.finfo(dtype).eps * sizes).all()


def test_unsorted_index_and_empty_systems(generator: torch.Generator) -> None:
    x, y, index = inputs(generator, 4, 6, torch.float64)
    order = torch.randperm(len(index), generator=generator)
    spread = vdot(batched_vdot, x[order], y[order], 2 * index[order], 9)
    assert spread.shape == (9,)
    torch.testing.assert_close(spread[0:8:2], vdot(batched_vdot, x, y, index, 4), rtol=1e-13, atol=1e-13)
    assert spread[1::2].tolist() == [0.0] * 4
    assert spread[8] == 0.0


def test_no_entities() -> None:
    empty = torch.zeros(0, 3)
    assert vdot(batched_vdot, empty, empty, torch.zeros(0, dtype=torch.long), 3).tolist() == [0.0] * 3


def test_nan_stays_in_its_system() -> None:
    x = torch.ones(4, 3)
    x[1, 2] = torch.nan
    result = vdot(batched_vdot, x, x, torch.tensor([0, 1, 2, 2]), 3)
    assert result.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "index_shape"),
    [
        ((3,), (3,), (3,)),
        ((3, 3, 1), (3, 3, 1), (3,)),
        ((3, 3), (3, 2), (3,)),
        ((3, 3), (2, 3), (3,)),
        ((3, 3), (3, 3), (2,)),
        ((3, 3), (3, 3), (3, 1)),
    ],
)
def test_shapes_that_do_not_fit(
    device: torch.device, x_shape: tuple[int, ...], y_shape: tuple[int, ...], index_shape: tuple[int, ...]
) -> None:
    x, y = torch.zeros(x_shape, device=device), torch.zeros(y_shape, device=device)
    index = torch.zeros(index_shape, dtype=torch.long, device=device)
    with forbid_host_syncs(), pytest.raises(ValueError, match="Invalid input shapes"):
        vdot(batched_vdot, x, y, index, 1)


@pytest.mark.parametrize("bad", [-1, -3, 2, 1000])
def test_index_out_of_range(bad: int) -> None:
    """On the CPU alone: on a GPU it is a device-side assertion, which ends the process's context."""
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="out of bounds"):
        vdot(batched_vdot, x, x, torch.tensor([0, 1, bad]), 2)


@pytest.mark.parametrize("n_systems", [-1, 1.5, None])
def test_number_of_systems_that_is_none(n_systems: Any) -> None:
    x = torch.ones(3, 3)
    with pytest.raises((RuntimeError, TypeError)):
        vdot(batched_vdot, x, x, torch.zeros(3, dtype=torch.long), n_systems)


def test_index_of_floats() -> None:
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="int64"):
        vdot(batched_vdot, x, x, torch.zeros(3), 1)


@pytest.mark.fails_on_base
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_does_not_wait(device: torch.device, generator: torch.Generator, dtype: torch.dtype) -> None:
    x, y, index = inputs(generator, 5, 7, dtype)
    expected = vdot(batched_vdot, x, y, index, 5)
    placed = [tensor.to(device) for tensor in (x, y, index)]
    with forbid_host_syncs():
        result = vdot(batched_vdot, *placed, 5)
    torch.testing.assert_close(value(result), expected)
