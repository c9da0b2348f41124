"""The other losses: how Liger is called for each, and the same loss in plain PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

ROWS, HIDDEN, VOCAB = 7, 20, 50
IGNORED = -100


@dataclass(frozen=True)
class LossCase:
    """One loss with one set of options; ``module`` is where it stands in ``liger_kernel.ops``.

    ``tensors`` makes the leaves (differentiable ones first, ``n_leaves`` of them) from a generator; ``call`` gives
    Liger's loss of them, ``reference`` PyTorch's. ``checks`` is how often the loss reads to validate its input.
    """

    name: str
    module: str
    tensors: Callable[[torch.Generator], list[torch.Tensor]]
    n_leaves: int
    call: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    checks: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


class LossCall:
    """A loss on one set of inputs: ``forward``, then ``backward`` once or more."""

    def __init__(self, liger: ModuleType, case: LossCase, tensors: list[torch.Tensor], factor: float) -> None:
        self.module, self.case = importlib.import_module(f"{liger.__name__}.ops.{case.module}"), case
        self.leaves = [t.clone().requires_grad_() for t in tensors[: case.n_leaves]]
        self.others = tensors[case.n_leaves :]
        self.factor = factor

    def forward(self) -> torch.Tensor:
        """The loss."""
        self.loss = self.case.call(self.module, *self.leaves, *self.others, **self.case.options)
        self.grad = torch.full(self.loss.shape, self.factor, device=self.loss.device, dtype=self.loss.dtype)
        return self.loss

    def backward(self, retain_graph: bool = False) -> None:
        """The gradients, into ``leaves``; those of an earlier backward are dropped first."""
        for leaf in self.leaves:
            leaf.grad = None
        self.loss.backward(self.grad, retain_graph=retain_graph)

    def grads(self) -> list[torch.Tensor]:
        """The gradients of the leaves."""
        return [leaf.grad for leaf in self.leaves]


def in_float64(case: LossCase, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss in PyTorch, float64, on the CPU, and its leaves."""
    leaves = [t.double().requires_grad_() for t in tensors[: case.n_leaves]]
    others = [t.double() if t.is_floating_point() else t for t in tensors[case.n_leaves :]]
    return case.reference(*leaves, *others, **case.options), leaves


def reference(case: LossCase, tensors: list[torch.Tensor], factor: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss and the leaves' gradients in PyTorch, float64, on the CPU."""
    loss, leaves = in_float64(case, tensors)
    loss.backward(torch.full(loss.shape, factor, dtype=torch.float64))
    return loss.detach(), [leaf.grad for leaf in leaves]


def _labels(gen: torch.Generator, kind: str) -> torch.Tensor:
    labels = torch.randint(0, VOCAB, (ROWS,), generator=gen)
    if kind == "all ignored":
        labels[:] = IGNORED
    elif kind == "some ignored":
        labels[1::3] = IGNORED
    return labels


def _logits(gen: torch.Generator) -> torch.Tensor:
    return torch.randn(ROWS, VOCAB, generator=gen)


def _probs(gen: torch.Generator) -> torch.Tensor:
    return _logits(gen).softmax(-1)


def _projection(gen: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(ROWS, HIDDEN, generator=gen) * 0.3, torch.randn(VOCAB, HIDDEN, generator=gen) * 0.3]


def _kept(per_row: torch.Tensor, labels: torch.Tensor | None, reduction: str = "batchmean") -> torch.Tensor:
    """Sum of the rows that are not ignored, over their number ("batchmean") and the vocabulary ("mean")."""
    used = torch.ones(ROWS, dtype=torch.bool) if labels is None else labels != IGNORED
    total = per_row.masked_fill(~used, 0.0).sum()
    if reduction == "sum":
        return total
    return total / max(int(used.sum()), 1) / (VOCAB if reduction == "mean" else 1)


# Cross entropy


def _ce(module: ModuleType, x: torch.Tensor, labels: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
    weight = rest[0] if rest else None
    smoothing, reduction = options.get("smoothing", 0.0), options["reduction"]
    function = module.LigerCrossEntropyFunction
    # The gradient is written over the input: give it a copy that is no leaf.
    return function.apply(x * 1.0, labels, weight, IGNORED, 0.0, smoothing, reduction, None, False, True)[0]


def _ce_reference(x: torch.Tensor, labels: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
    weight, reduction = (rest[0] if rest else None), options["reduction"]
    if bool((labels == IGNORED).all()):
        return (x * 0.0).sum()
    return F.cross_entropy(
        x, labels, weight, ignore_index=IGNORED, reduction=reduction, label_smoothing=options.get("smoothing", 0.0)
    )


def _ce_case(name: str, kind: str, weighted: bool = False, **options: Any) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        made = [_logits(gen), _labels(gen, kind)]
        return [*made, torch.rand(VOCAB, generator=gen) + 0.5] if weighted else made

    return LossCase(name, "cross_entropy", tensors, 1, _ce, _ce_reference, checks=1, options=options)


# Jensen-Shannon divergence


def _triton(module: ModuleType) -> tuple[str, ...]:
    """Name the implementation, where the base has several: another may be there that takes a scalar."""
    return ("nvidia-triton",) if hasattr(module, "dispatch") else ()


def _jsd_rows(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Per row, of log-probabilities."""
    if beta in (0.0, 1.0):
        p, q = (teacher, student) if beta == 0.0 else (student, teacher)
        return (p.exp() * (p - q)).sum(-1)
    mixed = (beta * teacher.exp() + (1 - beta) * student.exp()).log()
    of_teacher, of_student = teacher.exp() * (teacher - mixed), student.exp() * (student - mixed)
    return (beta * of_teacher + (1 - beta) * of_student).sum(-1)


def _jsd(module: ModuleType, *tensors: torch.Tensor, beta: float) -> torch.Tensor:
    labels = tensors[2] if len(tensors) > 2 else None
    return module.LigerJSDFunction.apply(tensors[0], tensors[1], labels, beta, IGNORED, *_triton(module))


def _jsd_reference(*tensors: torch.Tensor, beta: float) -> torch.Tensor:
    labels = tensors[2] if len(tensors) > 2 else None
    return _kept(_jsd_rows(tensors[0], tensors[1], beta), labels)


def _jsd_case(name: str, kind: str | None, beta: float) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        made = [_logits(gen).log_softmax(-1), _logits(gen).log_softmax(-1)]
        return [*made, _labels(gen, kind)] if kind else made

    return LossCase(name, "jsd", tensors, 1, _jsd, _jsd_reference, options={"beta": beta})


def _fused_jsd(module: ModuleType, *tensors: torch.Tensor, beta: float) -> torch.Tensor:
    student, weight, teacher, teacher_weight, labels = tensors
    rest = (None, *_triton(module)) if _triton(module) else ()
    function = module.LigerFusedLinearJSDFunction
    return function.apply(student, weight, teacher, teacher_weight, labels, beta, IGNORED, 2.0, *rest)


def _fused_jsd_reference(*tensors: torch.Tensor, beta: float) -> torch.Tensor:
    student, weight, teacher, teacher_weight, labels = tensors
    logs = [(a @ b.t() / 2.0).log_softmax(-1) for a, b in ((student, weight), (teacher, teacher_weight))]
    return _kept(_jsd_rows(*logs, beta), labels)


def _fused_jsd_case(name: str, kind: str, beta: float) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        return [*_projection(gen), *_projection(gen), _labels(gen, kind)]

    return LossCase(name, "fused_linear_jsd", tensors, 2, _fused_jsd, _fused_jsd_reference, options={"beta": beta})


# Kullback-Leibler divergence


def _kl(module: ModuleType, predicted: torch.Tensor, true: torch.Tensor, reduction: str) -> torch.Tensor:
    return module.LigerKLDivLossFunction.apply(predicted, true, reduction)


def _kl_reference(predicted: torch.Tensor, true: torch.Tensor, reduction: str) -> torch.Tensor:
    return F.kl_div(predicted, true, reduction=reduction)


def _kl_case(name: str, reduction: str) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        return [_logits(gen).log_softmax(-1), _probs(gen)]

    return LossCase(name, "kl_div", tensors, 1, _kl, _kl_reference, options={"reduction": reduction})


def _fused_kl(module: ModuleType, *tensors: torch.Tensor, reduction: str) -> torch.Tensor:
    student, weight, target = tensors[:3]
    labels = tensors[3] if len(tensors) > 3 else None
    return module.LigerFusedLinearKLDivFunction.apply(student, weight, target, labels, reduction, IGNORED)


def _fused_kl_reference(*tensors: torch.Tensor, reduction: str) -> torch.Tensor:
    student, weight, target = tensors[:3]
    labels = tensors[3] if len(tensors) > 3 else None
    rows = (target * (target.log() - (student @ weight.t()).log_softmax(-1))).sum(-1)
    return _kept(rows, labels, reduction)


def _fused_kl_case(name: str, kind: str | None, reduction: str) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        made = [*_projection(gen), _probs(gen)]
        return [*made, _labels(gen, kind)] if kind else made

    return LossCase(
        name, "fused_linear_kl_div", tensors, 2, _fused_kl, _fused_kl_reference, options={"reduction": reduction}
    )


# Total variation distance


def _tvd(module: ModuleType, *tensors: torch.Tensor, reduction: str) -> torch.Tensor:
    labels = tensors[2] if len(tensors) > 2 else None
    return module.LigerTVDLossFunction.apply(tensors[0], tensors[1], labels, reduction, IGNORED)


def _tvd_reference(*tensors: torch.Tensor, reduction: str) -> torch.Tensor:
    labels = tensors[2] if len(tensors) > 2 else None
    distance = 0.5 * (tensors[0] - tensors[1]).abs()
    if reduction == "none":
        return distance if labels is None else distance.masked_fill((labels == IGNORED)[:, None], 0.0)
    return _kept(distance.sum(-1), labels, reduction)


def _tvd_case(name: str, kind: str | None, reduction: str) -> LossCase:
    def tensors(gen: torch.Generator) -> list[torch.Tensor]:
        made = [_probs(gen), _probs(gen)]
        return [*made, _labels(gen, kind)] if kind else made

    return LossCase(name, "tvd", tensors, 1, _tvd, _tvd_reference, options={"reduction": reduction})


CROSS_ENTROPY = [
    _ce_case("ce", "some ignored", reduction="mean"),
    _ce_case("ce", "some ignored", reduction="sum"),
    _ce_case("ce", "some ignored", reduction="none"),
    _ce_case("ce weighted", "some ignored", weighted=True, reduction="mean", smoothing=0.1),
    _ce_case("ce weighted", "none ignored", weighted=True, reduction="mean"),
    _ce_case("ce weighted", "some ignored", weighted=True, reduction="sum", smoothing=0.1),
    _ce_case("ce all ignored", "all ignored", reduction="mean"),
]
OTHERS = [
    _jsd_case("jsd", "some ignored", 0.5),
    _jsd_case("jsd", "some ignored", 0.0),
    _jsd_case("jsd no labels", None, 1.0),
    _jsd_case("jsd all ignored", "all ignored", 0.1),
    _fused_jsd_case("fused_linear_jsd", "some ignored", 0.5),
    _fused_jsd_case("fused_linear_jsd", "some ignored", 0.0),
    _kl_case("kl_div", "batchmean"),
    _kl_case("kl_div", "mean"),
    _kl_case("kl_div", "sum"),
    _kl_case("kl_div", "none"),
    _tvd_case("tvd", "some ignored", "batchmean"),
    _tvd_case("tvd", "some ignored", "mean"),
    _tvd_case("tvd", "some ignored", "none"),
    _tvd_case("tvd no labels", None, "sum"),
    _tvd_case("tvd all ignored", "all ignored", "batchmean"),
]
FUSED_KL = [
    _fused_kl_case("fused_linear_kl_div", "some ignored", "batchmean"),
    _fused_kl_case("fused_linear_kl_div", "some ignored", "mean"),
    _fused_kl_case("fused_linear_kl_div", None, "sum"),
    _fused_kl_case("fused_linear_kl_div all ignored", "all ignored", "batchmean"),
]
"""Not in 0.8.2."""
