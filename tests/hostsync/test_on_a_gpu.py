"""What only a real GPU can show: capture, hidden waits with their place, blocked time."""

from __future__ import annotations

import pytest
import torch

from nosync.hostsync import host_syncs
from nosync.hostsync.cuda import capturable


@pytest.fixture
def v(device: torch.device, request: pytest.FixtureRequest) -> torch.Tensor:
    if request.node.callspec.params["device"] != "cuda":
        pytest.skip("needs a GPU")
    return torch.arange(6.0, device=device)


def test_sync_free_code_is_capturable(v: torch.Tensor) -> None:
    result = capturable(lambda: {"sum": v.sum(), "kept": torch.where(v > 2, v, torch.nan)})
    assert result, result.reason


def test_backward_is_capturable(v: torch.Tensor) -> None:
    w = v.clone().requires_grad_()
    result = capturable(lambda: torch.autograd.grad((w * w).sum(), w))
    assert result, result.reason


@pytest.mark.parametrize(
    "wait",
    [
        lambda v: v.sum().item(),
        lambda v: v[v > 2],
        lambda v: torch.tensor([1.0, 2.0], device=v.device),
        lambda v: torch.cuda.synchronize(),
    ],
    ids=["item", "mask", "tensor", "synchronize"],
)
def test_code_that_waits_is_not(v: torch.Tensor, wait: object) -> None:
    result = capturable(lambda: wait(v))  # type: ignore[operator]
    assert not result.captured
    assert result.reason
    assert v.sum().item() == 15.0  # the GPU is usable afterwards


def test_a_replay_with_other_values_is_seen(v: torch.Tensor) -> None:
    result = capturable(lambda: v.add_(1).clone())
    assert result.captured
    assert not result.equal
    assert "other values" in result.reason


def test_hidden_waits_have_their_place(v: torch.Tensor) -> None:
    rows = torch.stack([v, v])
    with host_syncs(profile=True) as syncs:
        torch.unique(rows, dim=0)
    assert syncs.cross_checks["sync_debug"] == 0
    assert syncs.cross_checks["profiler"] == syncs.count > 0
    assert {event.kind for event in syncs.counted} == {"library"}
    assert {key[0] for key in syncs.by_site()} == {"test_on_a_gpu.py"}
    assert "the counters disagree" in syncs.table()


def test_blocked_time_is_given_by_site(v: torch.Tensor) -> None:
    big = torch.ones(4096, 4096, device=v.device)
    with host_syncs(profile=True) as syncs:
        for _ in range(20):
            big = big @ big
        big.sum().item()
    (event,) = syncs.counted
    milliseconds = {site.line: ms for site, ms in syncs.blocked_ms.items()}
    assert milliseconds[event.line] > 1.0  # 20 products of 4096 x 4096 matrices are queued before the read
