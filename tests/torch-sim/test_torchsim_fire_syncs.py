"""FIRE's own code waits for nothing; the base's waits are counted.

Waits are attributed to the source line that makes them: those of the series `fire`. What a step waits for elsewhere,
and the operators of linear algebra in fire.py itself, other series remove: test_torchsim_step_syncs.py.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
import torch
import torch_sim
from torchsim_batches import FILTERS, FLAVORS, random_batch, start, swap_in

from nosync.hostsync import Event, host_syncs

STEPS = ("first", "later", "some-nan")
# Operators that wait inside: without another operator, no rearrangement of FIRE removes them. fire.py of 0.6.1
# calls both, that of 0.6.2 the second.
LINEAR_ALGEBRA = ("torch.linalg.solve(", "torch.matrix_exp(")
# Per later step of 3 systems, on both bases (a Frechet step's total depends on the values).
TOTAL_ON_BASE = {
    ("vv_fire", None): 27,
    ("vv_fire", "unit"): 30,
    ("ase_fire", None): 29,
    ("ase_fire", "unit"): 41,
}
OWN_ON_BASE = {"vv_fire": 25, "ase_fire": 27}


@pytest.mark.fails_on_base
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_step_has_no_wait_of_its_own(
    device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None, kind: str
) -> None:
    syncs = record_step(device, generator, flavor, cell_filter, kind)
    assert not own(syncs), syncs.table()


@pytest.mark.fails_on_base
@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_init_has_no_wait_of_its_own(
    device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None
) -> None:
    batch = random_batch(generator, 3, 6, torch.float64).to(device)
    with host_syncs() as syncs:
        start(torch_sim, batch, flavor, cell_filter)
    assert not own(syncs), syncs.table()


@pytest.mark.base_only
@pytest.mark.parametrize("kind", ["later", "some-nan"])
@pytest.mark.parametrize(("flavor", "cell_filter"), TOTAL_ON_BASE)
def test_base_waits_in_total(
    device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None, kind: str
) -> None:
    syncs = record_step(device, generator, flavor, cell_filter, kind)
    assert syncs.count == TOTAL_ON_BASE[flavor, cell_filter], syncs.table()


@pytest.mark.base_only
@pytest.mark.parametrize("cell_filter", FILTERS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_base_waits_of_its_own(
    device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None
) -> None:
    syncs = record_step(device, generator, flavor, cell_filter, "later")
    assert sum(event.count for event in own(syncs)) == OWN_ON_BASE[flavor], syncs.table()


def record_step(
    device: torch.device, generator: torch.Generator, flavor: str, cell_filter: str | None, kind: str
) -> Any:
    """The waits of one step of 3 systems: the first, a later one, or one with a system freshly swapped in."""
    batch = random_batch(generator, 3, 6, torch.float64).to(device)
    state, model = start(torch_sim, batch, flavor, cell_filter)
    if kind != "first":
        for _ in range(2):
            state = torch_sim.fire_step(state, model, fire_flavor=flavor)
    if kind == "some-nan":
        swap_in(state, [1])
    with host_syncs() as syncs:
        torch_sim.fire_step(state, model, fire_flavor=flavor)
    return syncs


def own(syncs: Any) -> list[Event]:
    """The waits of fire.py and of batched_vdot, linear algebra aside."""
    return [event for event in syncs.counted if _is_own(event)]


def _is_own(event: Event) -> bool:
    path = PurePath(event.file)
    if path.parts[-2:] == ("torch_sim", "math.py"):
        return event.function == "batched_vdot"
    if path.parts[-3:] != ("torch_sim", "optimizers", "fire.py"):
        return False
    return not any(call in event.source for call in LINEAR_ALGEBRA)
