"""vesin's neighbor list of a batch: as many waits for 12 systems as for one, and the base's pairs and shifts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from two_trees import PackageCopy

from nosync.hostsync import host_syncs, value

LISTS = ("vesin_nl", "vesin_nl_ts")
# how the base copies what vesin returns
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
COPIES = 4  # positions, cell, pbc, system_idx
Both = tuple[PackageCopy, PackageCopy]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor]


def inputs(generator: torch.Generator, n_systems: int, dtype: torch.dtype, most_atoms: int = 8) -> Inputs:
    """Positions in and out of the cell, skewed cells, pbc, the cutoff and system_idx of systems of 1 to 8 atoms."""
    n_atoms = torch.randint(1, most_atoms + 1, (n_systems,), generator=generator)
    cell = 4.0 * torch.eye(3, dtype=dtype) + 0.5 * torch.randn(n_systems, 3, 3, generator=generator, dtype=dtype)
    system_idx = torch.arange(n_systems).repeat_interleave(n_atoms)
    positions = 6.0 * torch.randn(len(system_idx), 3, generator=generator, dtype=dtype)
    pbc = torch.rand(n_systems, 3, generator=generator) > 0.3
    return positions, cell, pbc, 3.0, system_idx


def on(device: torch.device, given: Inputs) -> Inputs:
    """The tensors on the device."""
    return tuple(each.to(device) if isinstance(each, torch.Tensor) else each for each in given)  # type: ignore[return-value]


@pytest.mark.fails_on_base
@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_waits_do_not_grow_with_the_batch(
    device: torch.device, generator: torch.Generator, name: str, self_interaction: bool
) -> None:
    from torch_sim import neighbors

    for n_systems in (1, 12):
        given = on(device, inputs(generator, n_systems, torch.float32))
        with host_syncs() as syncs:
            getattr(neighbors, name)(*given, self_interaction)
        assert syncs.count <= COPIES, syncs.table()


@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n_systems", [1, 2, 40])
@pytest.mark.parametrize("name", LISTS)
def test_pairs_and_shifts_are_the_bases(
    both_trees: Both, generator: torch.Generator, name: str, n_systems: int, dtype: torch.dtype, self_interaction: bool
) -> None:
    given = inputs(generator, n_systems, dtype)
    assert_same(*(listed(copy, name, given, self_interaction) for copy in both_trees))


@pytest.mark.parametrize("name", LISTS)
def test_as_the_base_in_the_corners(both_trees: Both, generator: torch.Generator, name: str) -> None:
    """One cell for one system, no pair, systems without atoms, no volume, not contiguous, a cutoff tensor."""
    positions, cell, pbc, cutoff, system_idx = inputs(generator, 3, torch.float64)
    alone = positions[system_idx == 0]
    corners: dict[str, Any] = {
        "2-d cell": (alone, cell[0], pbc[0], cutoff, torch.zeros(len(alone), dtype=torch.long)),
        "stacked cells": (positions, cell.reshape(9, 3), pbc.reshape(9), cutoff, system_idx),
        "no pair": (1e3 * positions, cell, torch.zeros_like(pbc), 1e-3, system_idx),
        "a gap": (positions, cell[[0, 0, 1, 1, 2]], pbc[[0, 0, 1, 1, 2]], cutoff, 2 * system_idx),
        "no volume": (positions, torch.zeros_like(cell), torch.zeros_like(pbc), cutoff, system_idx),
        "not contiguous": (positions.mT.contiguous().mT, cell.mT, pbc, cutoff, system_idx),
        "tensor cutoff": (positions, cell, pbc, torch.tensor(cutoff), system_idx),
        "int32 system_idx": (positions, cell, pbc, cutoff, system_idx.int()),
    }
    for corner, given in corners.items():
        base, patched = (listed(copy, name, given, True) for copy in both_trees)
        assert_same(base, patched, corner)


@pytest.mark.parametrize("name", LISTS)
def test_positions_with_gradient(both_trees: Both, generator: torch.Generator, name: str) -> None:
    positions, *rest = inputs(generator, 4, torch.float64)
    given: Any = (positions.requires_grad_(), *rest)
    found = [listed(copy, name, given, False) for copy in both_trees]
    assert_same(*found)
    assert not found[1][2].requires_grad


@pytest.mark.parametrize("name", LISTS)
def test_on_the_device(both_trees: Both, device: torch.device, generator: torch.Generator, name: str) -> None:
    """What is listed on the device is what is listed on the CPU, in the same place and dtype as the base's."""
    given = inputs(generator, 6, torch.float64)
    placed = listed(both_trees[1], name, on(device, given), True)
    theirs = listed(both_trees[0], name, on(device, given), True)
    assert [each.device for each in placed] == [each.device for each in theirs]
    assert_same([value(each) for each in theirs], [value(each) for each in placed])
    assert_same(listed(both_trees[1], name, given, True), [value(each) for each in placed])


def listed(copy: PackageCopy, name: str, given: Inputs, self_interaction: bool) -> list[torch.Tensor]:
    """Pairs, their systems and shifts, by one copy of torch_sim."""
    with copy.active() as package:
        return list(getattr(package.neighbors, name)(*given, self_interaction))


def assert_same(base: list[torch.Tensor], patched: list[torch.Tensor], where: str = "") -> None:
    """Bit by bit, in the same order; dtype too."""
    for name, theirs, ours in zip(("mapping", "system_mapping", "shifts_idx"), base, patched, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda text, name=name: f"{where} {name}: {text}")
