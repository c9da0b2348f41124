"""The other losses: no wait but the one that validates targets, PyTorch's values, and a second backward."""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from losses_cases import CROSS_ENTROPY, FUSED_KL, OTHERS, LossCall, LossCase, in_float64, reference

from nosync.hostsync import forbid_host_syncs, host_syncs, value

FACTORS = [1.0, 0.37]


def made(liger: ModuleType, device: torch.device, case: LossCase, factor: float, seed: int) -> LossCall:
    """The call on fresh inputs."""
    if importlib.util.find_spec(f"{liger.__name__}.ops.{case.module}") is None:
        pytest.skip(f"this base has no {case.module}")
    tensors = case.tensors(torch.Generator().manual_seed(seed))
    return LossCall(liger, case, [t.to(device) for t in tensors], factor)


def assert_pytorchs(call: LossCall, seed: int, what: str = "") -> None:
    """The loss and the leaves' gradients are PyTorch's."""
    tensors = call.case.tensors(torch.Generator().manual_seed(seed))
    loss, grads = reference(call.case, tensors, call.factor)
    for name, got, want in zip(
        ["loss", "first gradient", "second gradient"], [call.loss.detach(), *call.grads()], [loss, *grads], strict=False
    ):
        bound = 2e-5 * max(float(want.abs().max()), 1e-9)
        note = f"{what}{name} of {call.case}, seed {seed}"
        torch.testing.assert_close(
            value(got).double(), want, atol=bound, rtol=2e-4, msg=lambda m, note=note: f"{note}\n{m}"
        )


@pytest.mark.fails_on_base
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("case", OTHERS + FUSED_KL, ids=str)
def test_no_wait(liger: ModuleType, device: torch.device, case: LossCase, factor: float, seed: int) -> None:
    """Forward and backward never wait, and the values are PyTorch's."""
    call = made(liger, device, case, factor, seed)
    with forbid_host_syncs():
        call.forward()
        call.backward()
    assert_pytorchs(call, seed)


@pytest.mark.fails_on_base
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("case", CROSS_ENTROPY, ids=str)
def test_cross_entropy_reads_once_for_its_check(
    liger: ModuleType, device: torch.device, case: LossCase, factor: float, seed: int
) -> None:
    """A target out of bounds is an AssertionError, upstream's contract: one read, and none in the backward."""
    call = made(liger, device, case, factor, seed)
    with host_syncs() as syncs:
        call.forward()
    assert syncs.count == case.checks, syncs.table()
    with forbid_host_syncs():
        call.backward()
    assert_pytorchs(call, seed)


@pytest.mark.parametrize("target", [50, -1])
def test_cross_entropy_still_refuses_targets(liger: ModuleType, device: torch.device, target: int) -> None:
    """The message names the target, as before."""
    case = CROSS_ENTROPY[0]
    tensors = case.tensors(torch.Generator().manual_seed(0))
    tensors[1][2] = target
    call = LossCall(liger, case, [t.to(device) for t in tensors], 1.0)
    with pytest.raises(AssertionError, match="out of bounds"):
        call.forward()


# Where every label is ignored, the base's tvd divides by zero: `test_the_base_divides_by_zero`.
RUN_ON_BASE = [case for case in OTHERS if case.name != "tvd all ignored"]


@pytest.mark.fails_on_base
@pytest.mark.parametrize("case", [*CROSS_ENTROPY, *RUN_ON_BASE, *FUSED_KL], ids=str)
def test_a_second_backward(liger: ModuleType, device: torch.device, case: LossCase, seed: int) -> None:
    """With retain_graph and a gradient of 1.0, the second backward gives the first one's gradients."""
    call = made(liger, device, case, 1.0, seed)
    call.forward()
    with forbid_host_syncs():
        call.backward(retain_graph=True)
        first = [grad.clone() for grad in call.grads()]
        call.backward(retain_graph=True)
    for got, want in zip(call.grads(), first, strict=True):
        assert torch.equal(value(got), value(want)), f"{case} seed {seed}"
    assert_pytorchs(call, seed, "second backward: ")


OUT_OF_PLACE = [case for case in RUN_ON_BASE if case.module in ("jsd", "kl_div", "tvd")]


@pytest.mark.fails_on_base
@pytest.mark.parametrize("case", OUT_OF_PLACE, ids=str)
def test_a_second_backward_with_another_gradient(
    liger: ModuleType, device: torch.device, case: LossCase, seed: int
) -> None:
    """jsd, kl_div and tvd do not scale what they saved: the second backward may have another gradient."""
    call = made(liger, device, case, 0.37, seed)
    call.forward()
    with forbid_host_syncs():
        call.backward(retain_graph=True)
        call.grad, call.factor = call.grad * (-1.5 / 0.37), -1.5
        call.backward()
    assert_pytorchs(call, seed, "second backward: ")


@pytest.mark.parametrize("case", OUT_OF_PLACE, ids=str)
def test_the_gradient_is_differentiable_in_its_factor(
    liger: ModuleType, device: torch.device, case: LossCase, seed: int
) -> None:
    """As for a learned weight of the loss, or a Hessian-vector product of a function of it."""
    call = made(liger, device, case, 0.37, seed)
    second = in_the_factor(call.forward(), call.leaves, call.grad)
    loss, leaves = in_float64(case, case.tensors(torch.Generator().manual_seed(seed)))
    expected = in_the_factor(loss, leaves, torch.full(loss.shape, 0.37, dtype=torch.float64))
    torch.testing.assert_close(value(second).double(), expected, atol=2e-5, rtol=2e-4)


def in_the_factor(loss: torch.Tensor, leaves: list[torch.Tensor], factor: torch.Tensor) -> torch.Tensor:
    """The derivative of the gradient's sum with respect to the factor of the loss."""
    (first,) = torch.autograd.grad(loss, leaves, factor.requires_grad_(), create_graph=True)
    return torch.autograd.grad(first.sum(), factor)[0]


@pytest.mark.parametrize("known", ["nvidia-triton", "another"])
def test_other_implementations_get_a_number(
    liger: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """kl_loss_and_grad of the fused KL divergence: only the Triton implementation gets a tensor as scale."""
    case = next(case for case in FUSED_KL if case.options["reduction"] == "mean")
    call = made(liger, device, case, 1.0, 0)
    module = liger.ops.fused_linear_kl_div
    scales: list[Any] = []

    def recording(op: str, *args: Any) -> Any:
        scales.append(args[-1])
        return dispatch(op, *args)

    dispatch = module.dispatch
    monkeypatch.setattr(module, "dispatch", recording)
    if known == "another":
        monkeypatch.setattr(module, "resolve_impl", lambda *_, **__: SimpleNamespace(impl_name=known), raising=False)
    call.forward()
    expected = torch.Tensor if known == "nvidia-triton" else float
    assert all(isinstance(scale, expected) for scale in scales)
    assert scales
    call.backward()
    assert_pytorchs(call, 0)


@pytest.mark.base_only
def test_the_base_waits(liger: ModuleType, device: torch.device) -> None:
    """Cross entropy reads the count and checks twice; the others read the count; each backward reads its gradient."""
    counts = {}
    for case in [CROSS_ENTROPY[0], *RUN_ON_BASE]:
        call = made(liger, device, case, 0.37, 0)
        with host_syncs() as forward:
            call.forward()
        with host_syncs() as backward:
            call.backward()
        counts[str(case)] = (forward.count, backward.count)
    assert counts.pop("ce-reduction=mean") == (3, 2)
    unlabelled = {name for name in counts if "no labels" in name or name.startswith("kl_div")}
    # the gradient of "none" is no scalar: torch.equal tells it from 1.0 by its size, and only the copy of 1.0 waits
    expected = {name: (0 if name in unlabelled else 1, 1 if "none" in name else 2) for name in counts}
    assert counts == expected


@pytest.mark.base_only
def test_the_base_divides_by_zero(liger: ModuleType, device: torch.device) -> None:
    """tvd with every label ignored; the patched tree gives a loss of zero (`test_no_wait`)."""
    call = made(liger, device, next(case for case in OTHERS if case.name == "tvd all ignored"), 1.0, 0)
    with pytest.raises(ZeroDivisionError):
        call.forward()
