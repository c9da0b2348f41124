"""One operator call, as the rules look at it, and the conditions that rules are made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

_MASK_TYPES = (torch.bool, torch.uint8)


@functools.cache
def _positions(func: OpOverload) -> dict[str, tuple[int, Any]]:
    """Argument name -> (position, default)."""
    return {arg.name: (i, arg.default_value) for i, arg in enumerate(func._schema.arguments)}


class Call:
    """A view of ``func(*args, **kwargs)``.

    Args:
        on_device: Whether a tensor lives on the device.
        is_pinned: Whether a host tensor is page-locked.
        device_types: Device types that mean the device, e.g. ``("cuda",)``.
    """

    def __init__(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        on_device: Callable[[torch.Tensor], bool],
        is_pinned: Callable[[torch.Tensor], bool],
        device_types: tuple[str, ...],
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.on_device, self.is_pinned, self.device_types = on_device, is_pinned, device_types

    def arg(self, name: str) -> Any:
        """The value of an argument by its name in the schema; its default where it is not given; None where the
        overload has no such argument."""
        if name in self.kwargs:
            return self.kwargs[name]
        position, default = _positions(self.func).get(name, (len(self.args), None))
        return self.args[position] if position < len(self.args) else default

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, lists included."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    def indices(self) -> list[torch.Tensor]:
        """The index tensors of an indexing operator."""
        return [index for index in self.arg("indices") if index is not None]


# ------------------------------------------------------------------ conditions: does the operator wait?
Condition = Callable[[Call], bool]
Weight = Callable[[Call], int]


def device_value(name: str) -> Condition:
    """The named argument is a tensor on the device, whose value the operator reads."""
    return lambda call: isinstance(call.arg(name), torch.Tensor) and call.on_device(call.arg(name))


def given(name: str) -> Condition:
    """The named argument is a tensor."""
    return lambda call: isinstance(call.arg(name), torch.Tensor)


def missing(name: str) -> Condition:
    """The named argument is not given."""
    return lambda call: call.arg(name) is None


def present(name: str) -> Condition:
    """The named argument is given."""
    return lambda call: call.arg(name) is not None


def true(name: str) -> Condition:
    """The named flag is set."""
    return lambda call: bool(call.arg(name))


def false(name: str) -> Condition:
    """The named flag is not set."""
    return lambda call: not call.arg(name)


def equal_bounds(call: Call) -> bool:
    """``histc`` without bounds: it takes them from the data."""
    return call.arg("min") == call.arg("max")


def values_decide(call: Call) -> bool:
    """Must ``equal`` look at values? Not for other sizes, for empty tensors, nor for a tensor and itself."""
    first, second = call.arg("self"), call.arg("other")
    return bool(first.shape == second.shape) and first.numel() > 0 and not _same_memory(first, second)


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.layout is second.layout is torch.strided
        and first.dtype == second.dtype
        and first.stride() == second.stride()
        and first.data_ptr() == second.data_ptr()
        and (first.is_conj(), first.is_neg()) == (second.is_conj(), second.is_neg())
    )


def not_empty(call: Call) -> bool:
    """The first argument has elements."""
    return call.args[0].numel() > 0


# ------------------------------------------------------------------ copies
class _Transfer(NamedTuple):
    """What a copying operator copies."""

    source: torch.Tensor
    destination: torch.Tensor | None
    to_device: bool
    to_host: bool
    non_blocking: bool


def _transfer(call: Call) -> _Transfer:
    """The copy that the operator makes; of nothing, and onto the meta device, to neither device nor host."""
    source, non_blocking = call.args[0], bool(call.arg("non_blocking"))
    destination = None
    if call.func._schema.name == "aten::copy_":
        source, destination = call.args[1], call.args[0]
        to_device, to_host = call.on_device(destination), destination.device.type == "cpu"
    elif call.arg("device") is None:
        to_device, to_host = call.on_device(source), not call.on_device(source)
    else:
        kind = torch.device(call.arg("device")).type
        to_device, to_host = kind in call.device_types, kind == "cpu"
    some = (source if destination is None else destination).numel() > 0
    return _Transfer(source, destination, to_device and some, to_host and some, non_blocking)


def blocking_to_host(call: Call) -> bool:
    """Device to host, and the host waits for the bytes."""
    copy = _transfer(call)
    return call.on_device(copy.source) and copy.to_host and not copy.non_blocking


def blocking_to_device(call: Call) -> bool:
    """Host to device, and the host waits until the bytes are taken."""
    copy = _transfer(call)
    return not call.on_device(copy.source) and copy.to_device and not copy.non_blocking


def pageable_to_host(call: Call) -> bool:
    """Declared non-blocking, but the host buffer is pageable: the driver returns only when the copy is done."""
    copy = _transfer(call)
    into_pageable = copy.destination is not None and not call.is_pinned(copy.destination)
    return call.on_device(copy.source) and copy.to_host and copy.non_blocking and into_pageable


def pageable_to_device(call: Call) -> bool:
    """Declared non-blocking, but the driver must stage pageable (or pinned and strided) host memory."""
    copy = _transfer(call)
    staged = not call.is_pinned(copy.source) or not copy.source.is_contiguous()
    return not call.on_device(copy.source) and copy.to_device and copy.non_blocking and staged


def done_by_the_stream(call: Call) -> bool:
    """Whether a copying operator leaves a host buffer to the device: it is page-locked, and the host does not wait."""
    copy = _transfer(call)
    host = copy.destination if call.on_device(copy.source) else copy.source
    crosses = copy.to_host if call.on_device(copy.source) else copy.to_device
    return crosses and copy.non_blocking and host is not None and call.is_pinned(host) and host.is_contiguous()


def crossing_pairs(call: Call) -> int:
    """How many pairs of a ``_foreach_copy_`` cross between host and device, when it blocks."""
    if call.arg("non_blocking"):
        return 0
    pairs = zip(call.args[0], call.args[1], strict=True)
    return sum(call.on_device(a) != call.on_device(b) and a.numel() > 0 for a, b in pairs)


# ------------------------------------------------------------------ indexing
def is_mask(tensor: torch.Tensor) -> bool:
    """A boolean (or byte) index."""
    return tensor.dtype in _MASK_TYPES


def device_masks(call: Call) -> int:
    """Boolean masks on the device: each becomes ``nonzero``, whose size the host must know."""
    if _becomes_masked_fill(call):
        return 0
    return sum(is_mask(index) and call.on_device(index) for index in call.indices())


def host_indices(call: Call) -> int:
    """Index tensors on the host: each is copied to the device, and waited for. A host mask is not: torch turns it
    into indices on the host, and copies those through pinned memory."""
    if not call.on_device(call.args[0]):
        return 0
    return sum(not is_mask(index) and not call.on_device(index) for index in call.indices())


def host_value(call: Call) -> bool:
    """``x[i] = v`` with a 0-dim host tensor ``v``, copied to the device (one with dimensions is an error)."""
    value = call.arg("values")
    return call.on_device(call.args[0]) and not call.on_device(value) and not _becomes_masked_fill(call)


def host_operands(call: Call) -> int:
    """``torch.where(m, x, v)`` with 0-dim host tensors: each is copied to the device."""
    operands = [call.arg(name) for name in ("condition", "self", "other")]
    if not any(map(call.on_device, call.tensors())):
        return 0
    return sum(not call.on_device(operand) for operand in operands)


def _becomes_masked_fill(call: Call) -> bool:
    """``x[mask] = host scalar``: torch rewrites it to ``masked_fill_``, which does not wait."""
    value = call.arg("values")
    if value is None or call.arg("accumulate") or call.on_device(value) or value.numel() != 1:
        return False
    indices = call.indices()
    return len(indices) == 1 and is_mask(indices[0]) and call.on_device(indices[0])


# ------------------------------------------------------------------ counts that follow the arguments
def device_bounds(*names: str) -> Weight:
    """How many of the named arguments are device tensors."""
    return lambda call: sum(device_value(name)(call) for name in names)


def per_matrix(waits: int) -> Weight:
    """So many waits for each matrix of a batch."""
    return lambda call: waits * _matrices(call)


def _matrices(call: Call) -> int:
    return math.prod(call.args[0].shape[:-2])


def _is_large(call: Call) -> bool:
    """More than 32 rows or columns: cuSOLVER has no batched algorithm, and each matrix is waited for."""
    return max(call.args[0].shape[-2:]) > 32


def eigh_library_waits(call: Call) -> int:
    """None for a batch of small matrices, one for a single small matrix, three for each large one."""
    return 3 * _matrices(call) if _is_large(call) else int(_matrices(call) == 1)


def svd_library_waits(call: Call) -> int:
    """None for small matrices, three for each large one."""
    return 3 * _matrices(call) if _is_large(call) else 0


def unique_dim_waits(call: Call) -> int:
    """More where the inverse or the counts are asked for."""
    return 3 + 3 * bool(call.arg("return_inverse")) + bool(call.arg("return_counts"))


_DEGREE_BOUNDS = {  # 1-norms up to which matrix_exp uses a Taylor polynomial of degree 1, 2, 4, 8, 12
    torch.float32: (
        1.192092800768788e-07,
        5.978858893805233e-04,
        5.116619363445086e-02,
        0.5800524627688768,
        1.46166,
    ),
    torch.float64: (
        2.220446049250313e-16,
        2.580956802971767e-08,
        3.397168839976962e-04,
        0.04991228871,
        0.29961589138,
    ),
}
_DEGREE_WAITS = (2, 2, 4, 6, 3, 6)


def matrix_exp_waits(call: Call) -> int:
    """Batches take the highest degree at once. For a single matrix its norm, read on the host, chooses the degree,
    and the coefficients of some degrees are copied from the host."""
    matrix = call.args[0]
    if matrix.shape[-1] < 2:
        return 0
    if _matrices(call) != 1:
        return 3
    held = getattr(matrix, "held", None)
    if held is None:
        return _DEGREE_WAITS[-1]
    norm = float(held.abs().sum(-2).max())
    bounds = _DEGREE_BOUNDS.get(held.real.dtype, _DEGREE_BOUNDS[torch.float64])
    return _DEGREE_WAITS[sum(norm > bound for bound in bounds)]


def isin_waits(call: Call) -> int:
    """With many test elements it sorts, which takes the unique ones of both sides."""
    elements, tests = call.arg("elements"), call.arg("test_elements")
    number = elements.numel() if isinstance(elements, torch.Tensor) else 1
    few = not isinstance(tests, torch.Tensor) or tests.numel() < int(10 * number**0.145)
    return 0 if few or number == 0 or call.arg("assume_unique") else 2


def bincount_reads(call: Call) -> int:
    """The minimum (not for unsigned input) and the maximum."""
    return 0 if not not_empty(call) else 1 if call.args[0].dtype == torch.uint8 else 2
