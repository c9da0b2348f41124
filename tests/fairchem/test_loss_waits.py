"""One task's loss, forward and backward: how often the host waits for the device."""

from __future__ import annotations

import pytest
import torch
from uma import Uma

from nosync.hostsync import forbid_host_syncs, host_syncs, value

NATOMS = (3, 5, 1, 4)
# reduction, loss class, level: waits of the base's forward, as published for this pull request
CASES = {
    "mean of energies": ("mean", "PerAtomMAELoss", "system", 2),
    "sum of energies": ("sum", "PerAtomMAELoss", "system", 2),
    "per structure of forces": ("per_structure", "L2NormLoss", "atom", 12),
}
each_case = pytest.mark.parametrize(("reduction", "loss_class", "level", "waits"), CASES.values(), ids=CASES)


def inputs(level: str, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """pred, target, mask and natoms of a task, the mask without one entry and one structure."""
    generator = torch.Generator().manual_seed(0)
    rows, width = (sum(NATOMS), 3) if level == "atom" else (len(NATOMS), 1)
    mask = torch.ones(rows, dtype=torch.bool)
    mask[1] = False
    if level == "atom":
        mask[3:8] = False
    pred, target = (torch.randn(rows, width, generator=generator) for _ in range(2))
    on_device = [x.to(device) for x in (pred, target, mask, torch.tensor(NATOMS))]
    on_device[0].requires_grad_()
    return tuple(on_device)


def make_loss(uma: Uma, reduction: str, loss_class: str) -> torch.nn.Module:
    return uma.loss.DDPMTLoss(getattr(uma.loss, loss_class)(), reduction=reduction, coefficient=10)


@pytest.mark.base_only
@each_case
def test_base_waits(uma: Uma, device: torch.device, reduction: str, loss_class: str, level: str, waits: int) -> None:
    loss, args = make_loss(uma, reduction, loss_class), inputs(level, device)
    with host_syncs() as forward:
        result = loss(*args)
    with host_syncs() as backward:
        result.backward()
    assert (forward.count, backward.count) == (waits, 0), forward.table() + backward.table()


@pytest.mark.fails_on_base
@each_case
def test_loss_does_not_wait(
    uma: Uma, device: torch.device, reduction: str, loss_class: str, level: str, waits: int
) -> None:
    loss, args = make_loss(uma, reduction, loss_class), inputs(level, device)
    with forbid_host_syncs():
        result = loss(*args)
        result.backward()
    on_host = inputs(level, "cpu")
    expected = loss(*on_host)
    expected.backward()
    torch.testing.assert_close(value(result), expected.detach())
    torch.testing.assert_close(value(args[0].grad), on_host[0].grad)


@pytest.mark.fails_on_base
@each_case
def test_loss_that_is_not_finite_does_not_wait(
    uma: Uma, device: torch.device, reduction: str, loss_class: str, level: str, waits: int
) -> None:
    loss, (pred, *args) = make_loss(uma, reduction, loss_class), inputs(level, "cpu")
    pred.data[0, 0] = torch.nan
    pred, *args = (x.detach().to(device) for x in (pred, *args))
    with forbid_host_syncs():
        result = loss(pred, *args)
    assert value(result) == 0


@pytest.mark.fails_on_base
def test_subclass_that_counts_on_the_host_pays_for_its_own_read_only(uma: Uma, device: torch.device) -> None:
    class HostCount(uma.loss.DDPMTLoss):
        def mean(self, input, mult_mask, num_samples, loss, natoms):
            return self._ddp_mean(3, loss.sum())

    loss, args = HostCount(uma.loss.PerAtomMAELoss()), inputs("system", device)
    with forbid_host_syncs():
        loss(*args)
