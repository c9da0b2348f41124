"""The loss of a training step, 15 tasks over five datasets: waits and collectives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
from uma import DATASETS, Uma, five_datasets, perf_check_tasks

from nosync.hostsync import forbid_host_syncs, host_syncs, value

needs_collectives = pytest.mark.needs_series("uma-loss-collectives")
# Per task: a mask copied for each of the five datasets, and for the five atom-level tasks a repeat of two waits for
# each dataset; compute_loss adds the atom count of the five and the waits of the 15 losses (test_loss_waits).
WAITS_OF_MASKS = 15 * 5 + 5 * 5 * 2
WAITS_OF_LOSS = WAITS_OF_MASKS + 5 + 5 * 2 + 5 * 12 + 5 * 2


@pytest.mark.base_only
def test_base_waits(uma: Uma, device: torch.device) -> None:
    tasks, spec = perf_check_tasks(uma), five_datasets()
    batch, predictions = spec.make(uma, device), spec.predict(device)
    with host_syncs() as masks:
        uma.unit.get_output_masks(batch, tasks)
    with host_syncs() as losses:
        uma.unit.compute_loss(tasks, predictions, batch)
    assert (masks.count, losses.count) == (WAITS_OF_MASKS, WAITS_OF_LOSS), masks.table() + losses.table()


@pytest.mark.fails_on_base
@needs_collectives
def test_output_masks_do_not_wait(uma: Uma, device: torch.device) -> None:
    tasks, spec = perf_check_tasks(uma), five_datasets()
    batch = spec.make(uma, device)
    with forbid_host_syncs():
        masks = uma.unit.get_output_masks(batch, tasks)
    expected = uma.unit.get_output_masks(spec.make(uma), tasks)
    assert masks.keys() == expected.keys() and len(masks) == 15 * (1 + len(DATASETS))
    for key, mask in expected.items():
        assert torch.equal(value(masks[key]), mask), key


@pytest.mark.fails_on_base
@needs_collectives
def test_step_does_not_wait(uma: Uma, device: torch.device) -> None:
    tasks, spec = perf_check_tasks(uma), five_datasets()
    batch, predictions = spec.make(uma, device), spec.predict(device)
    with forbid_host_syncs():
        losses = uma.unit.compute_loss(tasks, predictions, batch)
        sum(losses.values()).backward()
    on_host = spec.predict()
    expected = uma.unit.compute_loss(tasks, on_host, spec.make(uma))
    sum(expected.values()).backward()
    for task in tasks:
        torch.testing.assert_close(value(losses[task.name]), expected[task.name].detach())
        assert expected[task.name] > 0
        grad = predictions[task.name][task.property].grad
        torch.testing.assert_close(value(grad), on_host[task.name][task.property].grad)


@pytest.mark.fails_on_base
@needs_collectives
def test_step_of_two_ranks_has_one_all_reduce_and_does_not_wait(
    uma: Uma, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one of two ranks that hold the same batch: the all-reduce doubles its tensor."""
    reduced = []

    def all_reduce(tensor: torch.Tensor, group: object = None) -> None:
        reduced.append(tensor.numel())
        tensor.mul_(2)

    monkeypatch.setattr(uma.distutils, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    tasks, spec = perf_check_tasks(uma), five_datasets()
    batch, predictions = spec.make(uma, device), spec.predict(device)
    with host_syncs() as syncs:
        losses = uma.unit.compute_loss(tasks, predictions, batch)
    assert (reduced, syncs.count) == ([len(tasks)], 0), syncs.table()
    monkeypatch.undo()
    alone = uma.unit.compute_loss(tasks, spec.predict(), spec.make(uma))
    for task in tasks:
        torch.testing.assert_close(value(losses[task.name]), alone[task.name].detach())
