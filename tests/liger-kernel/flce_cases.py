"""Fused linear cross entropy (FLCE): cases, how Liger is called for them, and the same loss in plain PyTorch.

Shapes are small enough for the Triton interpreter, with sizes that no block size divides and three chunks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F

ROWS, HIDDEN, VOCAB = 11, 20, 50
SOFTCAP_VOCAB = 64
"""0.8.2's softcap counts the lanes behind the last class of a block (0.8.5 masks them): a block's size hides that."""
Z_SCALE = 1e-2
SMOOTHING = 0.1


@dataclass(frozen=True)
class Case:
    """One way to call FLCE. ``factor`` is the gradient of the loss (of each token's loss for "none")."""

    reduction: str = "mean"
    factor: float = 1.0
    bias: bool = False
    smoothing: bool = False
    class_weights: bool = False
    softcap: bool = False
    z_loss: bool = False
    accuracy: bool = False
    predicted: bool = False
    token_scaling: bool = False
    all_ignored: bool = False
    none_ignored: bool = False
    ignore_index: int = -100
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype | None = None
    accum_dtype: torch.dtype | None = None
    autocast: bool = False
    transposed: bool = False
    sliced: bool = False
    frozen_weight: bool = False

    def __str__(self) -> str:
        """The test id: what differs from the default, after the reduction and the factor."""
        parts = [self.reduction, f"x{self.factor:g}"]
        for field in dataclasses.fields(self):
            here = getattr(self, field.name)
            if field.name in ("reduction", "factor") or here == field.default:
                continue
            parts.append(field.name if here is True else f"{field.name}={here}".replace("torch.", ""))
        return "-".join(parts)


@dataclass
class Inputs:
    """``x`` [ROWS, HIDDEN], ``weight`` [VOCAB, HIDDEN], ``bias`` [VOCAB], ``target`` [ROWS], ``grad`` [] or [ROWS]."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    target: torch.Tensor
    class_weights: torch.Tensor | None
    grad: torch.Tensor

    def to(self, device: torch.device | str) -> Inputs:
        """The same values on another device; dense strides are kept."""
        moved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Inputs(**{k: v.to(device) if v is not None else None for k, v in moved.items()})


def make_inputs(
    case: Case, seed: int, rows: int = ROWS, hidden: int = HIDDEN, vocab: int | None = None, scale: float = 1.0
) -> Inputs:
    """Random CPU inputs of a case; about a fifth of the targets are ignored."""
    vocab = vocab or (SOFTCAP_VOCAB if case.softcap else VOCAB)
    gen = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if case.autocast else case.dtype
    x = torch.randn(rows, hidden, generator=gen) * scale
    weight = torch.randn(vocab, hidden, generator=gen) * scale
    target = torch.randint(0, vocab, (rows,), generator=gen)
    if case.all_ignored:
        target[:] = case.ignore_index
    elif case.none_ignored:
        target[target == case.ignore_index] = 0
    else:
        target[torch.rand(rows, generator=gen) < 0.2] = case.ignore_index
        target[3] = case.ignore_index
        target[4] = (case.ignore_index + 7) % vocab if case.ignore_index >= 0 else 5
    bias = torch.randn(vocab, generator=gen).to(dtype) if case.bias else None
    class_weights = None
    if case.class_weights:
        class_weights = (torch.rand(vocab, generator=gen) + 0.5).to(case.weight_dtype or torch.float32)
    grad = torch.full((rows,) if case.reduction == "none" else (), case.factor)
    return Inputs(x.to(dtype), weight.to(dtype), bias, target, class_weights, grad)


@dataclass
class Outputs:
    """What a call returned and left in ``.grad``; None where not asked for."""

    loss: torch.Tensor
    z_loss: torch.Tensor | None
    accuracy: torch.Tensor | None
    predicted: torch.Tensor | None
    grad_x: torch.Tensor | None = None
    grad_weight: torch.Tensor | None = None
    grad_bias: torch.Tensor | None = None

    def items(self) -> dict[str, torch.Tensor | None]:
        """Every field by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


class Call:
    """FLCE on one set of inputs, in two steps: construct (no wait is counted yet), then ``forward``, ``backward``."""

    def __init__(self, liger: ModuleType, case: Case, inputs: Inputs) -> None:
        self.case, self.inputs = case, inputs
        self.function = liger.ops.LigerFusedLinearCrossEntropyFunction
        self.x = _layout(inputs.x, case).requires_grad_()
        self.weight = inputs.weight.clone().requires_grad_(not case.frozen_weight)
        self.bias = inputs.bias.clone().requires_grad_() if inputs.bias is not None else None

    def forward(self) -> Outputs:
        """The forward pass; gradients are still None."""
        case = self.case
        with torch.autocast(self.x.device.type, dtype=case.dtype, enabled=case.autocast):
            self.returned = self.function.apply(
                self.x,
                self.weight,
                self.inputs.target,
                self.bias,
                self.inputs.class_weights,
                case.ignore_index,
                Z_SCALE if case.z_loss else 0.0,
                SMOOTHING if case.smoothing else 0.0,
                case.reduction,
                4.0 if case.softcap else None,
                case.z_loss,
                case.accum_dtype,
                case.token_scaling,
                case.accuracy,
                case.predicted,
            )
        return Outputs(*self.returned)

    def backward(self, retain_graph: bool = False) -> None:
        """The backward pass; the gradients are then on ``x``, ``weight`` and ``bias``."""
        self.returned[0].backward(self.inputs.grad, retain_graph=retain_graph)

    def outputs(self) -> Outputs:
        """Results and gradients, after ``backward``."""
        bias_grad = self.bias.grad if self.bias is not None else None
        return Outputs(*(_detached(t) for t in self.returned), self.x.grad, self.weight.grad, bias_grad)


def _detached(t: torch.Tensor | None) -> torch.Tensor | None:
    return t.detach() if t is not None else None


def _layout(x: torch.Tensor, case: Case) -> torch.Tensor:
    if case.transposed:
        return x.t().contiguous().t().detach()
    if case.sliced:
        return torch.cat([x, x], dim=1)[:, : x.shape[1]].detach()
    return x.clone()


def run(liger: ModuleType, case: Case, inputs: Inputs) -> Outputs:
    """Forward and backward of a case."""
    call = Call(liger, case, inputs)
    call.forward()
    call.backward()
    return call.outputs()


def reference(case: Case, inputs: Inputs) -> Outputs:
    """The same loss in PyTorch, float64, on the CPU."""
    x, weight = (t.double().requires_grad_() for t in (inputs.x, inputs.weight))
    bias = inputs.bias.double().requires_grad_() if inputs.bias is not None else None
    logits = F.linear(x, weight, bias)
    if case.softcap:
        logits = 4.0 * torch.tanh(logits / 4.0)
    used = inputs.target != case.ignore_index
    class_weights = inputs.class_weights.double() if inputs.class_weights is not None else None
    smoothing = SMOOTHING if case.smoothing else 0.0
    options = {"ignore_index": case.ignore_index, "label_smoothing": smoothing, "reduction": "none"}
    token_loss = F.cross_entropy(logits, inputs.target, weight=class_weights, **options)
    token_z = Z_SCALE * logits.logsumexp(-1).square() * used if case.z_loss else torch.zeros_like(token_loss)
    count = used.sum().double()
    if case.reduction == "mean" and not case.all_ignored:
        token_loss = token_loss / (class_weights[inputs.target[used]].sum() if case.class_weights else count)
        token_z = token_z / count
    token_loss = token_loss + token_z
    if case.token_scaling:
        safe = inputs.target.masked_fill(~used, 0)
        scaling = logits.detach().softmax(-1).gather(-1, safe[:, None])[:, 0].masked_fill(~used, 0.0)
        token_loss, token_z = token_loss * scaling, token_z * scaling
    per_token = case.reduction == "none"
    best = logits.detach().argmax(-1)
    hits = ((best == inputs.target) & used).double()
    loss = token_loss if per_token else token_loss.sum()
    loss.backward(inputs.grad.double())
    return Outputs(
        loss.detach(),
        (token_z if per_token else token_z.sum()).detach() if case.z_loss else None,
        (hits if per_token else hits.sum() / count) if case.accuracy else None,
        best.masked_fill(~used, -1) if case.predicted else None,
        x.grad,
        None if case.frozen_weight else weight.grad,
        bias.grad if bias is not None else None,
    )


SEED_MATRIX = [
    Case(reduction, factor, bias, accuracy=True, **option)
    for reduction in ("sum", "none")
    for factor in (1.0, 0.37)
    for bias in (False, True)
    for option in ({}, {"smoothing": True}, {"class_weights": True})
]
"""The 24 cases of the pull request that the series began as: sum and none."""

MEAN_MATRIX = [
    Case("mean", factor, bias, accuracy=True, **option)
    for factor in (1.0, 0.37)
    for bias in (False, True)
    for option in ({}, {"smoothing": True}, {"class_weights": True})
]
"""The same 12 for the mean."""

OPTIONS = [
    Case("mean", 0.37, smoothing=True, class_weights=True, bias=True),
    Case("sum", 0.37, smoothing=True, class_weights=True),
    Case("none", 0.37, smoothing=True, class_weights=True),
    Case("mean", 0.37, softcap=True),
    Case("sum", softcap=True, predicted=True),
    Case("mean", 0.37, z_loss=True, smoothing=True),
    Case("none", z_loss=True, class_weights=True),
    Case("mean", predicted=True, accuracy=True),
    Case("mean", 0.37, token_scaling=True, z_loss=True),
    Case("sum", token_scaling=True, softcap=True),
    Case("none", 0.37, token_scaling=True),
    Case("mean", 0.37, token_scaling=True, all_ignored=True),
    Case("mean", 0.37, all_ignored=True, class_weights=True, bias=True),
    Case("sum", all_ignored=True, accuracy=True),
    Case("none", all_ignored=True, predicted=True),
    Case("mean", 0.37, ignore_index=2, accuracy=True),
    Case("sum", ignore_index=2, class_weights=True),
    Case("none", ignore_index=2, predicted=True),
    Case("mean", 0.37, none_ignored=True, class_weights=True),
    Case("mean", 0.37, dtype=torch.bfloat16, bias=True),
    Case("sum", 0.37, dtype=torch.bfloat16, class_weights=True, weight_dtype=torch.bfloat16),
    Case("mean", dtype=torch.float16, accum_dtype=torch.float32, bias=True),
    Case("mean", 0.37, dtype=torch.bfloat16, accum_dtype=torch.float32),
    Case("mean", 0.37, autocast=True, dtype=torch.bfloat16),
    Case("sum", autocast=True, dtype=torch.bfloat16, bias=True),
    Case("mean", 0.37, transposed=True),
    Case("sum", 0.37, sliced=True),
    Case("mean", 0.37, frozen_weight=True),
    Case("none", 0.37, frozen_weight=True, bias=True),
]
"""Every other option, each with the reductions where it means something different."""

ALL = SEED_MATRIX + MEAN_MATRIX + OPTIONS

TOLERANCES = {torch.float32: (2e-5, 2e-4), torch.bfloat16: (6e-2, 6e-2), torch.float16: (8e-3, 8e-3)}
"""(absolute, relative), by the dtype of the projection."""


def assert_close(got: Outputs, want: Outputs, case: Case, note: str = "") -> None:
    """Compare CPU outputs with ``reference``; a gradient's absolute bound is of its largest element.

    Raises:
        AssertionError: names the field, the case and ``note``.
    """
    absolute, relative = TOLERANCES[case.dtype]
    for name, expected in want.items().items():
        actual = got.items()[name]
        if expected is None:
            assert actual is None, f"{name} of {case} is not None {note}"
            continue
        assert actual is not None, f"{name} of {case} is None {note}"
        if name == "predicted":
            _assert_predicted(actual, expected, case, note)
            continue
        size = float(expected.abs().max()) if name.startswith("grad") else 1.0
        torch.testing.assert_close(
            actual.double(),
            expected,
            atol=absolute * max(size, 1e-6),
            rtol=relative,
            equal_nan=True,
            msg=lambda m, name=name: f"{name} of {case} {note}\n{m}",
        )


def _assert_predicted(actual: torch.Tensor, expected: torch.Tensor, case: Case, note: str) -> None:
    assert actual.dtype == torch.int64, f"predicted of {case} is {actual.dtype} {note}"
    assert torch.equal(actual, expected), f"predicted of {case}: {actual} instead of {expected} {note}"
