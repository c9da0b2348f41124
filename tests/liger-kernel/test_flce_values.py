"""FLCE on the patched tree gives the base's values, bit for bit where the arithmetic is the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from flce_cases import MEAN_MATRIX, OPTIONS, SEED_MATRIX, Case, Inputs, make_inputs, run
from interpreted import prepared
from losses_cases import CROSS_ENTROPY, FUSED_KL, OTHERS, LossCall, LossCase
from two_trees import PackageCopy, base_and_patched

from nosync.hostsync import value

TREES = base_and_patched("liger_kernel")
ULP = 2.0**-23


def flce(copy: PackageCopy, case: Case, inputs: Inputs) -> dict[str, torch.Tensor | None]:
    """The results of one tree, on the CPU."""
    with copy.active() as liger:
        outputs = run(prepared(liger), case, inputs)
        return {name: value(result) for name, result in outputs.items().items()}


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equal to the bit, NaN included."""
    if a is None or b is None:
        return a is b
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


COMPARED = [case for case in [*MEAN_MATRIX[-6:], *SEED_MATRIX[7:9], *OPTIONS] if case.factor != 1.0 or case.predicted]
REORDERED = [case for case in COMPARED if case.class_weights and case.reduction == "mean" and not case.none_ignored]
BITWISE = [case for case in COMPARED if case not in REORDERED]


@pytest.mark.parametrize("case", BITWISE, ids=str)
def test_bitwise_the_bases(kernels_run: torch.device, case: Case, seed: int) -> None:
    """Loss, z-loss, tokens and every gradient; token accuracy to one unit in the last place (see the patch)."""
    if case.transposed and "X_col_stride" not in (TREES[0].path / "liger_kernel/ops/utils.py").read_text():
        pytest.skip("this base writes past the end of a transposed gradient; its values are checked against PyTorch")
    inputs = make_inputs(case, seed).to(kernels_run)
    base, patched = (flce(copy, case, inputs) for copy in TREES)
    for name, want in base.items():
        if name == "accuracy" and want is not None:
            torch.testing.assert_close(patched[name], want, rtol=ULP, atol=0, equal_nan=True, msg=f"seed {seed}")
        else:
            assert same_bits(patched[name], want), f"{name} of {case}, seed {seed}"


@pytest.mark.parametrize("case", REORDERED, ids=str)
def test_class_weights_are_summed_in_another_order(kernels_run: torch.device, case: Case, seed: int) -> None:
    """Zeros stand where targets are ignored: the sum of n weights of at most 1.5 is off by n ulps at the most."""
    inputs = make_inputs(case, seed).to(kernels_run)
    base, patched = (flce(copy, case, inputs) for copy in TREES)
    bound = inputs.target.numel() * ULP
    for name, want in base.items():
        if want is not None:
            torch.testing.assert_close(
                patched[name], want, rtol=4 * bound, atol=bound * float(want.abs().max()), equal_nan=True
            )


def loss_results(copy: PackageCopy, case: LossCase, tensors: list[torch.Tensor], factor: float) -> list[torch.Tensor]:
    """Loss, gradients of a backward, and of a second one."""
    with copy.active() as liger:
        call = LossCall(prepared(liger), case, tensors, factor)
        call.forward()
        call.backward(retain_graph=True)
        first = [grad.clone() for grad in call.grads()]
        call.backward()
        return [value(t) for t in (call.loss.detach(), *first, *call.grads())]


SAME = [
    case
    for case in [*CROSS_ENTROPY, *OTHERS, *FUSED_KL]
    if case.name != "tvd all ignored" and not (case.name == "ce weighted" and case.options["reduction"] == "mean")
]


@pytest.mark.parametrize("case", SAME, ids=str)
def test_the_losses_bitwise_the_bases(kernels_run: torch.device, case: LossCase, seed: int) -> None:
    """Two backwards: the second one as on the base, which scales twice where it scales in place."""
    if (
        case.module == "fused_linear_kl_div"
        and not (TREES[0].path / "liger_kernel/ops/fused_linear_kl_div.py").exists()
    ):
        pytest.skip("this base has no fused_linear_kl_div")
    tensors = [t.to(kernels_run) for t in case.tensors(torch.Generator().manual_seed(seed))]
    base, patched = (loss_results(copy, case, tensors, 0.37) for copy in TREES)
    for number, (got, want) in enumerate(zip(patched, base, strict=True)):
        assert same_bits(got, want), f"result {number} of {case}, seed {seed}"


def test_other_implementations_get_scalars(liger: ModuleType, device: torch.device, monkeypatch: Any) -> None:
    """CuTe DSL divides on the host: it gets numbers, for every reduction; the Triton implementation gets tensors."""
    module = liger.ops.fused_linear_cross_entropy
    if not hasattr(module, "dispatch"):
        pytest.skip("this base has no backend dispatch")
    from liger_kernel.backends import dispatch

    seen: list[tuple[Any, ...]] = []

    def recording(op: str, *args: Any, impl: str, mode: Any) -> Any:
        seen.append(args[8:11])
        return dispatch(op, *args, impl="nvidia-triton", mode=mode)

    monkeypatch.setattr(module, "dispatch", recording)
    results = {}
    for impl in ("nvidia-cutedsl", "nvidia-triton", None):
        for reduction in ("mean", "sum"):
            case = Case(reduction, smoothing=True, class_weights=True)
            inputs = make_inputs(case, 0).to(device)
            options = (None, inputs.class_weights, -100, 0.0, 0.1, reduction, None, False, None, False, False, False)
            out = module.LigerFusedLinearCrossEntropyFunction.apply(
                inputs.x.clone().requires_grad_(), inputs.weight, inputs.target, *options, impl, None
            )
            results[impl, reduction] = value(out[0])
            if impl == "nvidia-cutedsl":
                assert all(isinstance(n, (int, float)) for n in seen[-1]), seen[-1]
            elif impl == "nvidia-triton":
                assert all(n is None or isinstance(n, torch.Tensor) for n in seen[-1]), seen[-1]
    for (_, reduction), got in results.items():
        assert same_bits(got, results[None, reduction])
