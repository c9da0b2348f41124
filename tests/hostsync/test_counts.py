"""Counts of calls that no recorded idiom holds, read off torch's sources."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from nosync.hostsync import host_syncs, use_backend, value
from nosync.hostsync.calls import Call, host_operands


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with use_backend("virtual") as device:
        yield device


def count(run: Callable[[], object]) -> int:
    with host_syncs("virtual") as syncs:
        run()
    return syncs.count


@pytest.mark.parametrize(
    "number", [2, 2.0, True, np.int64(2), np.int32(2), np.float64(2)], ids=lambda n: type(n).__name__
)
def test_a_number_is_assigned_as_a_host_scalar(gpu: torch.device, number: float) -> None:
    x, mask, index = torch.zeros(3, 2, device=gpu), torch.ones(3, 2, device=gpu) > 0, torch.arange(2, device=gpu)
    assert count(lambda: x.__setitem__(0, number)) == 0
    assert count(lambda: x.__setitem__(mask, number)) == 0
    assert count(lambda: x.__setitem__(index, number)) == 1
    assert count(lambda: x.__setitem__((0, 0), number)) == 1
    assert value(x)[0].tolist() == [number, number]


def test_a_complex_number_is_assigned_as_a_host_scalar(gpu: torch.device) -> None:
    x = torch.zeros(3, dtype=torch.complex64, device=gpu)
    assert count(lambda: x.__setitem__(x == 0, 1j)) == 0
    assert count(lambda: x.__setitem__(0, 2j)) == 1
    assert value(x).tolist() == [2j, 1j, 1j]


def test_isin_of_many_sorts(gpu: torch.device) -> None:
    x = torch.arange(64, device=gpu)
    assert count(lambda: torch.isin(x, x[:17])) == 0
    assert count(lambda: torch.isin(x, x[:18])) == 2
    assert count(lambda: torch.isin(1, x)) == 2
    assert count(lambda: torch.isin(x, 1)) == 0
    assert count(lambda: torch.isin(x, x, assume_unique=True)) == 0
    assert count(lambda: torch.isin(x[:0], x)) == 0


def test_where_copies_each_host_scalar(gpu: torch.device) -> None:
    x, host = torch.ones(3, device=gpu), torch.tensor(0.0)
    assert count(lambda: torch.where(torch.tensor(True), x, x)) == 1
    assert count(lambda: torch.where(torch.tensor(True), x, host)) == 2
    assert count(lambda: torch.where(x > 0, x, host, out=torch.empty_like(x))) == 1
    assert count(lambda: torch.where(x > 0, x, x, out=torch.empty_like(x))) == 0
    assert count(lambda: torch.where(x > 0, x, 0.0)) == 0
    args = (torch.tensor(True), host, host)  # on the `cuda` backend the rules see operators of the host too
    assert (
        host_operands(Call(torch.ops.aten.where.self, args, {}, lambda t: t.is_cuda, torch.is_tensor, ("cuda",))) == 0
    )


def test_nothing_is_copied_of_an_empty_tensor(gpu: torch.device) -> None:
    empty, pinned = torch.empty(0, device=gpu), torch.empty(0).pin_memory()
    for run in (
        lambda: torch.tensor([], device=gpu),
        lambda: empty.cpu(),
        lambda: empty.tolist(),
        lambda: empty.copy_(torch.empty(0)),
        lambda: torch.empty(0).copy_(empty),
        lambda: torch._foreach_copy_([empty], [torch.empty(0)]),
        lambda: pinned.copy_(empty, non_blocking=True).sum(),
        lambda: torch.repeat_interleave(torch.empty(0, dtype=torch.long, device=gpu)),
    ):
        assert count(run) == 0


def test_equal_looks_at_no_value_where_it_need_not(gpu: torch.device) -> None:
    x = torch.ones(3, 2, device=gpu)
    assert count(lambda: torch.equal(x, x)) == 0
    assert count(lambda: torch.equal(x, x.view(3, 2))) == 0
    assert count(lambda: torch.equal(x[:0], torch.ones(0, 2, device=gpu))) == 0
    assert count(lambda: torch.equal(x, x.clone())) == 1
    assert count(lambda: torch.equal(x[0], x[1])) == 1


def test_cuda_takes_non_blocking_by_position(gpu: torch.device) -> None:
    pinned = torch.ones(3).pin_memory()
    assert count(lambda: pinned.cuda(0, True)) == 0
    assert count(lambda: pinned.cuda(0, non_blocking=True)) == 0
    assert count(lambda: pinned.cuda(0, False)) == 1


def test_onto_the_meta_device_nothing_is_copied(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu)
    assert count(lambda: x.to("meta")) == 0
    assert count(lambda: torch.empty(3, device="meta").copy_(x)) == 0
    assert x.to("meta").device.type == "meta"


@pytest.mark.parametrize("parameter", [False, True])
def test_a_shallow_copy_shares_its_memory(gpu: torch.device, parameter: bool) -> None:
    x = torch.ones(3, device=gpu)
    x = torch.nn.Parameter(x) if parameter else x
    with host_syncs("virtual") as syncs:
        y = copy.copy(x)
        with torch.no_grad():
            y.zero_()
    assert (type(y), y.requires_grad) == (type(x), x.requires_grad)
    assert syncs.count == 0
    assert value(x).tolist() == [0, 0, 0]


def test_a_deep_copy_has_the_gradient(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu, requires_grad=True)
    (x * 2).sum().backward()
    with host_syncs("virtual") as syncs:
        y = copy.deepcopy(x)
        x.grad.zero_()  # type: ignore[union-attr]
    assert syncs.count == 0
    assert value(y.grad).tolist() == [2, 2, 2]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_loss_takes_lengths_on_the_host(gpu: torch.device, reduction: str) -> None:
    scores, targets = torch.randn(8, 2, 5).log_softmax(-1), torch.ones(2, 3, dtype=torch.long)
    lengths = torch.tensor([8, 8]), torch.tensor([3, 3])
    expected = torch.nn.functional.ctc_loss(scores, targets, *lengths, reduction=reduction)
    seen = torch.nn.functional.ctc_loss(scores.to(gpu), targets.to(gpu), *lengths, reduction=reduction)
    torch.testing.assert_close(value(seen), expected)
