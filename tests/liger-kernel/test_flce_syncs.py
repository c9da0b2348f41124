"""FLCE waits nowhere, for every reduction and option, and gives PyTorch's values."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from flce_cases import (
    ALL,
    MEAN_MATRIX,
    OPTIONS,
    SEED_MATRIX,
    Call,
    Case,
    Outputs,
    assert_close,
    make_inputs,
    reference,
)

from nosync.hostsync import forbid_host_syncs, host_syncs, value


def on_cpu(outputs: Outputs) -> Outputs:
    """Copies of the results on the CPU, unrecorded."""
    return Outputs(**{name: value(result) for name, result in outputs.items().items()})


def test_the_matrix_is_the_pull_requests() -> None:
    """24 cases for sum and none, 12 more for the mean, and no case twice."""
    assert (len(SEED_MATRIX), len(MEAN_MATRIX)) == (24, 12)
    assert len(set(map(str, ALL))) == len(ALL) == 36 + len(OPTIONS)


@pytest.mark.fails_on_base
@pytest.mark.parametrize("case", ALL, ids=str)
def test_no_wait_and_pytorchs_values(liger: ModuleType, device: torch.device, case: Case, seed: int) -> None:
    """Forward and backward never wait; loss, gradients, z-loss, accuracy and tokens are PyTorch's."""
    inputs = make_inputs(case, seed)
    call = Call(liger, case, inputs.to(device))
    with forbid_host_syncs():
        call.forward()
        call.backward()
    assert_close(on_cpu(call.outputs()), reference(case, inputs), case, f"seed {seed}")


@pytest.mark.fails_on_base
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_a_second_backward_does_not_wait(
    liger: ModuleType, device: torch.device, reduction: str, factor: float, seed: int
) -> None:
    """With retain_graph: no wait; for a gradient of 1.0 (and for "none") the second gradient is the first one.

    FLCE scales the saved gradients in place, upstream too, so with another gradient the second one is scaled twice.
    """
    case = Case(reduction, factor, bias=True)
    inputs = make_inputs(case, seed)
    call = Call(liger, case, inputs.to(device))
    with forbid_host_syncs():
        call.forward()
        call.backward(retain_graph=True)
    first = on_cpu(call.outputs())
    for leaf in (call.x, call.weight, call.bias):
        leaf.grad = None
    with forbid_host_syncs():
        call.backward()
    again = 1.0 if reduction == "none" else factor
    second = on_cpu(call.outputs())
    for name in ("grad_x", "grad_weight", "grad_bias"):
        got, want = second.items()[name], first.items()[name] * again
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n} seed {seed}\n{m}")


@pytest.mark.fails_on_base
def test_the_forward_alone_does_not_wait(liger: ModuleType, device: torch.device, seed: int) -> None:
    """Without gradients (evaluation), the forward takes another path through the kernel."""
    case = Case("mean", smoothing=True, class_weights=True, accuracy=True)
    inputs = make_inputs(case, seed)
    call = Call(liger, case, inputs.to(device))
    with torch.no_grad(), forbid_host_syncs():
        outputs = call.forward()
    want = reference(case, inputs)
    want.grad_x = want.grad_weight = None
    assert_close(on_cpu(outputs), want, case, f"seed {seed}")


BASE_COUNTS = [
    (Case("mean", 0.37), 1, 2),
    (Case("sum", 0.37), 1, 2),
    (Case("none", 0.37), 1, 1),
    (Case("mean"), 1, 2),
    (Case("sum", accuracy=True, bias=True), 1, 2),
]


@pytest.mark.base_only
@pytest.mark.parametrize(("case", "forward", "backward"), BASE_COUNTS, ids=str)
def test_the_base_waits_this_often(
    liger: ModuleType, device: torch.device, case: Case, forward: int, backward: int
) -> None:
    """The base's waits, counted: the same on an H200 under sync-debug."""
    call = Call(liger, case, make_inputs(case, 0).to(device))
    with host_syncs() as in_forward:
        call.forward()
    with host_syncs() as in_backward:
        call.backward()
    assert in_forward.count == forward, in_forward.table()
    assert in_backward.count == backward, in_backward.table()


@pytest.mark.base_only
def test_the_base_waits_more_often_with_options(liger: ModuleType, device: torch.device) -> None:
    """Class weights cost three waits more (a selection and two sums), token scaling two or more for each chunk."""
    plain, weights, scaling = (
        Case("mean"),
        Case("mean", class_weights=True),
        Case("mean", token_scaling=True),
    )
    counts = []
    for case in (plain, weights, scaling):
        call = Call(liger, case, make_inputs(case, 0).to(device))
        with host_syncs() as syncs:
            call.forward()
        counts.append(syncs.count)
    assert counts[1] == counts[0] + 3, counts
    assert counts[2] >= counts[0] + 2 * 3, counts
