"""The patched loss against the base's: the same bits, forward and backward, on random and on odd batches.

On a GPU a sum over a structure's atoms runs in no fixed order. The batches there have at most two atoms a
structure, whose sum has the same bits in either order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from uma import DATASETS, BatchSpec, Uma, batch_spec, perf_check_tasks, places, same_bits

DTYPES = (torch.float32, torch.float64)
# Sizes of the structures and their datasets; "fixed": structures whose atoms are all fixed.
BATCHES: dict[str, dict[str, Any]] = {
    "one atom": {"natoms": (1,), "datasets": ("omol",)},
    "one system": {"natoms": (2,), "datasets": ("omat",)},
    "a dataset absent": {"natoms": (2, 1, 2, 1, 2), "datasets": ("oc20", "omol", "omat", "odac", "omol")},
    "no free atoms in a structure": {
        "natoms": (2, 1, 2, 2, 1, 2),
        "datasets": ("oc20", "omol", "oc20", "odac", "omc", "oc20"),
        "fixed": lambda i: i in (0, 4),
    },
    "no free atoms": {"natoms": (2, 2, 1), "datasets": ("oc20", "omol", "oc20"), "fixed": lambda i: True},
}
LARGER = {"natoms": (7, 1, 12, 3, 5, 9, 4, 2, 6, 11), "datasets": DATASETS * 2, "fixed": lambda i: i == 2}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """per_structure accumulates in the default dtype and refuses a loss of another one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def step(uma: Uma, spec: BatchSpec, place: str, tasks: list[Any] | None = None) -> dict[str, torch.Tensor]:
    """Losses and gradients of one step, by name; gradients under ``grad of <task>``."""
    tasks = tasks or perf_check_tasks(uma)
    predictions = spec.predict(place)
    losses = uma.unit.compute_loss(tasks, predictions, spec.make(uma, place))
    sum(losses.values()).backward()
    grads = {f"grad of {task.name}": predictions[task.name][task.property].grad for task in tasks}
    return {name: x.detach().cpu() for name, x in (losses | grads).items()}


def assert_same(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], seed: int) -> None:
    assert old.keys() == new.keys()
    for name, value in old.items():
        assert same_bits(value, new[name]), f"{name}, NOSYNC_SEED={seed}: {value} on the base, {new[name]} patched"


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES)
def test_step_has_the_bits_of_the_base(
    base: Uma, patched: Uma, shape: dict[str, Any], bad: float | None, dtype: torch.dtype, place: str, seed: int
) -> None:
    spec = batch_spec(torch.Generator().manual_seed(seed), dtype=dtype, bad=bad, **shape)
    with default_dtype(dtype):
        assert_same(step(base, spec, place), step(patched, spec, place), seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_batches_have_the_bits_of_the_base(base: Uma, patched: Uma, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with default_dtype(dtype):
        for _ in range(10):
            spec = batch_spec(generator, dtype=dtype, **LARGER)
            old = step(base, spec, "cpu")
            assert_same(old, step(patched, spec, "cpu"), seed)
            assert all(old[f"{dataset}_energy"] > 0 for dataset in DATASETS)


# loss class: shapes of the prediction (and the target) and of the mask that DDPMTLoss takes
SHAPES = {
    "energy": ("PerAtomMAELoss", (5, 1), (5,)),
    "energy of one system": ("MAELoss", (1, 1), (1,)),
    "stress": ("MAELoss", (5, 9), (5, 9)),
    "stress of one system, mask of the system": ("MSELoss", (1, 9), (1,)),
    "forces, mask of the atoms": ("L2NormLoss", (10, 3), (10,)),
    "forces by component": ("MSELoss", (10, 3), (10, 3)),
    "forces of three atoms, mask of the atoms": ("MAELoss", (3, 3), (3,)),
    "nothing": ("MAELoss", (0, 9), (0, 9)),
}


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("loss_class", "shape", "mask_shape"), SHAPES.values(), ids=SHAPES)
def test_one_loss_has_the_bits_of_the_base(
    base: Uma,
    patched: Uma,
    loss_class: str,
    shape: tuple[int, ...],
    mask_shape: tuple[int, ...],
    reduction: str,
    dtype: torch.dtype,
    place: str,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for share in (0.0, 0.5, 0.9, 1.0):
        mask = torch.rand(mask_shape, generator=generator) < share
        results = []
        pred, target = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
        for uma in (base, patched):
            leaf = pred.to(place).clone().requires_grad_()
            loss = uma.loss.DDPMTLoss(getattr(uma.loss, loss_class)(), reduction=reduction, coefficient=10)
            result = loss(leaf, target.to(place), mask.to(place), torch.tensor([2] * 5, device=place))
            result.backward()
            results.append({"loss": result.detach().cpu(), "grad": leaf.grad.cpu()})
        assert_same(*results, seed)


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_count_divides_as_a_python_number(patched: Uma, dtype: torch.dtype, place: str, seed: int) -> None:
    losses = torch.randn(64, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(place)
    exact_only = place == "cuda" and dtype == torch.float32  # CUDA rounds the reciprocal from float64 there
    for number in (*range(1, 40), 1021, 65521, 2**24, *(() if exact_only else (2**24 + 1, 2**31 + 1))):
        count = torch.tensor(number, device=place)
        for loss in losses[:8]:
            assert same_bits(patched.loss._divide_by_count(loss, count).cpu(), (loss / number).cpu()), (loss, number)


def test_half_precision_loss_divides_as_a_python_number(patched: Uma) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        loss = torch.tensor(3000.0, dtype=dtype)
        for number in (3, 7, 1021, 70001):
            quotient = patched.loss._divide_by_count(loss, torch.tensor(number))
            assert quotient.dtype == dtype and torch.equal(quotient, loss / number)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loss_that_is_not_finite_becomes_what_nan_to_num_makes_of_it(
    base: Uma, patched: Uma, value: float, dtype: torch.dtype
) -> None:
    limits = torch.finfo(dtype)
    expected = 0.0 if math.isnan(value) else limits.max if value > 0 else limits.min
    results = []
    for uma in (base, patched):

        class Constant(torch.nn.Module):
            def forward(self, pred: torch.Tensor, target: torch.Tensor, natoms: torch.Tensor) -> torch.Tensor:
                return pred * 0 + value

        pred = torch.ones(4, 1, dtype=dtype, requires_grad=True)
        loss = uma.loss.DDPMTLoss(Constant(), reduction="sum")
        result = loss(pred, torch.ones(4, dtype=dtype), torch.ones(4, dtype=torch.bool), torch.ones(4))
        result.backward()
        results.append({"loss": result.detach(), "grad": pred.grad})
    assert results[1]["loss"] == expected
    assert_same(*results, seed=0)


def test_subclasses_and_other_losses_have_the_bits_of_the_base(base: Uma, patched: Uma, seed: int) -> None:
    spec = batch_spec(torch.Generator().manual_seed(seed), **LARGER)
    results = []
    for uma in (base, patched):
        tasks = perf_check_tasks(uma)
        for task, make in zip(tasks, (_twice_the_mean, _counts_on_the_host, _own_mean, _no_ddp) * 4, strict=False):
            if task.level == "system":
                task.loss_fn = make(uma.loss, task.loss_fn.loss_fn)
        results.append(step(uma, spec, "cpu", tasks))
    assert_same(*results, seed)


def _twice_the_mean(loss: Any, loss_fn: torch.nn.Module) -> torch.nn.Module:
    class Twice(loss.DDPMTLoss):
        def mean(self, input, mult_mask, num_samples, loss, natoms):
            return 2 * super().mean(input, mult_mask, num_samples, loss, natoms)

    return Twice(loss_fn)


def _counts_on_the_host(loss: Any, loss_fn: torch.nn.Module) -> torch.nn.Module:
    class HostCount(loss.DDPMTLoss):
        def _reduction(self, input, mult_mask, loss, natoms):
            return self._ddp_mean(int(mult_mask.sum()) + 1, loss.sum())

    return HostCount(loss_fn)


def _own_mean(loss: Any, loss_fn: torch.nn.Module) -> torch.nn.Module:
    class OwnMean(loss.DDPMTLoss):
        def _ddp_mean(self, num_samples, loss):
            return loss / max(num_samples, 1)

    return OwnMean(loss_fn)


def _no_ddp(loss: Any, loss_fn: torch.nn.Module) -> torch.nn.Module:
    class Plain(torch.nn.Module):
        def forward(self, pred, target, mult_mask, natoms):
            return (
                loss_fn(pred, target.view(pred.shape).nan_to_num(0, 0, 0), natoms) * mult_mask.view(pred.shape)
            ).sum()

    return Plain()
