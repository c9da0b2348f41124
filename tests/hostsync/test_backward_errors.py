"""Errors of Python code that backward calls arrive as they do on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from nosync.hostsync import HostSyncError, forbid_host_syncs, use_backend


@pytest.fixture(params=["cpu", "virtual"])
def x(request: pytest.FixtureRequest) -> Iterator[torch.Tensor]:
    with use_backend("virtual"):
        yield torch.ones(2, 2, device="cpu" if request.param == "cpu" else "cuda", requires_grad=True)


def fails(*args: Any) -> Any:
    raise ValueError("mine") from KeyError("cause")


def stops(*args: Any) -> Any:
    raise KeyboardInterrupt


def reads(first: Any, *args: Any) -> None:
    float((first if isinstance(first, torch.Tensor) else first[0]).detach().sum())


def with_tensor_hook(x: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    x.register_hook(hook)
    return x * 2


def with_accumulate_hook(x: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(hook)
    return x * 2


def with_node_hook(x: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    y = x * 2
    assert y.grad_fn is not None
    y.grad_fn.register_hook(hook)
    return y


def with_unpack_hook(x: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, hook):
        return x**3


def with_recomputation(x: torch.Tensor, hook: Callable[..., Any]) -> torch.Tensor:
    calls = iter((lambda a: None, hook))

    def forward(a: torch.Tensor) -> torch.Tensor:
        next(calls)(a)
        return a**3

    return checkpoint(forward, x, use_reentrant=False)


WAYS = [with_tensor_hook, with_accumulate_hook, with_node_hook, with_unpack_hook, with_recomputation]


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_hook(x: torch.Tensor, way: Callable[..., torch.Tensor]) -> None:
    y = way(x, fails).sum()
    with pytest.raises(ValueError, match="mine") as caught:
        y.backward()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("way", WAYS)
def test_an_interruption_in_a_hook(x: torch.Tensor, way: Callable[..., torch.Tensor]) -> None:
    y = way(x, stops).sum()
    with pytest.raises(KeyboardInterrupt):
        y.backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_in_a_hook_is_forbidden(way: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(HostSyncError, match="float") as caught, forbid_host_syncs("virtual"):
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        way(x, reads).sum().backward()
    assert "seen again" not in str(caught.value)


@pytest.mark.parametrize("way", WAYS[:3])
def test_an_error_of_an_operator_in_a_hook(x: torch.Tensor, way: Callable[..., torch.Tensor]) -> None:
    y = way(x, lambda *_: torch.ones(2, 2, device=x.device) @ torch.ones(7, 7, device=x.device)).sum()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        y.backward()


def test_an_error_that_the_hook_handles_keeps_its_type(x: torch.Tensor) -> None:
    seen = []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        try:
            torch.linalg.inv(grad * 0)
        except torch.linalg.LinAlgError as error:
            seen.append(error)
        return grad

    x.register_hook(hook)
    (x * 2).sum().backward()
    assert seen


def test_a_handled_error_does_not_come_back(x: torch.Tensor) -> None:
    def hook(grad: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError):
            grad.view(77)
        return grad

    x.register_hook(hook)
    (x * 2).sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones((), device=x.device).backward()


def test_an_inner_backward_fails_and_the_outer_one_does_not(x: torch.Tensor) -> None:
    def hook(grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad(), pytest.raises(ValueError, match="mine"):
            with_tensor_hook(torch.ones(2, device=x.device, requires_grad=True), fails).sum().backward()
        return grad

    x.register_hook(hook)
    (x * 2).sum().backward()
    assert x.grad is not None
