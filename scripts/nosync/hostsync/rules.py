"""What waits, as a table.

A row says: this operator, under this condition, makes the host wait so many times on a CUDA device, and this is how
we know. To add a rule: one row here and one idiom in tests/hostsync/idioms.py (its count is recorded on a GPU).

A row names one overload (``aten::index.Tensor``) or, without the dot, all of them. Rows of one operator add up.
An operator without a row waits once if torch itself tags it as data dependent, and never otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterator

import torch
from torch._ops import OpOverload

from . import calls as c
from .events import Kind

CHECKED = {
    "2.11": "counts recorded on an H200",
    "2.13": "sources and binaries read, virtual backend run",
}
"""torch versions that the table was checked against, and how."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row.

    Attributes:
        operator: ``aten::name`` (all overloads) or ``aten::name.overload``.
        kind: What kind of wait, see `nosync.hostsync.events.KINDS`.
        weight: Number of waits, fixed or from the call's arguments.
        why: Why it waits, one phrase for the message.
        source: How we know.
        when: The condition on the call; always, if None.
        soft: May block in the driver, but is no wait by itself.
    """

    operator: str
    kind: Kind
    weight: int | c.Weight
    why: str
    source: str
    when: c.Condition | None = None
    soft: bool = False

    def waits(self, call: c.Call) -> int:
        """How many waits this row gives for the call."""
        if self.when is not None and not self.when(call):
            return 0
        return self.weight if isinstance(self.weight, int) else self.weight(call)


_H200 = "recorded on an H200"
_COPY = "ATen/native/cuda/Copy.cu: memcpy_and_sync unless non_blocking; " + _H200
_MEXP = "ATen/native/LinearAlgebra.cpp: mexp_impl; " + _H200
_INDEX = "ATen/native/TensorAdvancedIndexing.cpp: expandTensors, make_info; " + _H200
_LINALG = "ATen/native/BatchLinearAlgebra.cpp: _linalg_check_errors; " + _H200
_RANGE = "ATen/native/cuda/RangeFactories.cu: item()"
_PROFILER = "profiler on an H200; sync-debug sees nothing"
_THRUST = "thrust waits for its own results"
_SIZE = "the size of the result is read back"
_MAGMA = "copies to the host and info; MAGMA itself waits dozens of times more for each matrix"
_INFO = "the factorisation's info is read back to raise on failure"


def _copies(operator: str) -> list[Rule]:
    return [
        Rule(operator, "d2h", 1, "blocking copy to the host", _COPY, c.blocking_to_host),
        Rule(operator, "h2d", 1, "blocking copy from pageable or pinned host memory", _COPY, c.blocking_to_device),
        Rule(operator, "d2h", 1, "non-blocking copy into pageable memory", _COPY, c.pageable_to_host, soft=True),
        Rule(operator, "h2d", 1, "non-blocking copy from pageable memory", _COPY, c.pageable_to_device, soft=True),
    ]


def _index_put(operator: str) -> list[Rule]:
    return [
        Rule(operator, "shape", c.device_masks, "a boolean mask becomes nonzero, whose size is read back", _INDEX),
        Rule(operator, "h2d", c.host_indices, "a host index is copied to the device", _INDEX),
        Rule(operator, "h2d", 1, "a host value is copied to the device", _INDEX, c.host_value),
    ]


# fmt: off
TABLE: tuple[Rule, ...] = (
    # reads of a value
    Rule("aten::_local_scalar_dense", "read", 1, "the value is read (item, float, int, bool, if)", _H200),
    Rule("aten::item", "read", 1, "the value is read (item, float, int, bool, if)", _H200),
    Rule("aten::is_nonzero", "read", 1, "the value is read for a branch", _H200),
    Rule("aten::equal", "read", 1, "the comparison returns a Python bool", _H200, c.values_decide),
    Rule("aten::allclose", "read", 1, "the comparison returns a Python bool", _H200),
    Rule("aten::masked_fill", "read", 1, "the fill value is read", _H200, c.device_value("value")),
    Rule("aten::masked_fill_", "read", 1, "the fill value is read", _H200, c.device_value("value")),
    Rule("aten::index_fill", "read", 1, "the fill value is read", _H200, c.device_value("value")),
    Rule("aten::index_fill_", "read", 1, "the fill value is read", _H200, c.device_value("value")),
    Rule("aten::linspace", "read", c.device_bounds("start", "end"), "a bound is read", _RANGE),
    Rule("aten::logspace", "read", c.device_bounds("start", "end"), "a bound is read", _RANGE),
    Rule("aten::quantize_per_tensor_dynamic", "read", 1, "the range is read", "quantized/QTensor.cpp: item()"),
    # results whose size depends on values
    Rule("aten::nonzero", "shape", 1, _SIZE, _H200),
    Rule("aten::masked_select", "shape", 1, _SIZE, _H200),
    Rule("aten::_unique", "shape", 1, _SIZE, _H200),
    Rule("aten::_unique2", "shape", 1, _SIZE, _H200),
    Rule("aten::unique_consecutive", "shape", 1, _SIZE, _H200, c.missing("dim")),
    Rule("aten::unique_consecutive", "library", 2, _THRUST, _PROFILER, c.present("dim")),
    Rule("aten::unique_dim", "library", c.unique_dim_waits, _THRUST, _PROFILER),
    Rule("aten::unique_dim_consecutive", "library", 2, _THRUST, "as unique_consecutive(dim=)"),
    Rule("aten::isin", "shape", c.isin_waits, "the unique elements of both sides are taken to sort them",
         "ATen/native/TensorCompare.cpp: isin_sorting"),
    Rule("aten::masked_scatter_backward", "shape", 1, _SIZE, _H200),
    Rule("aten::bincount", "shape", c.bincount_reads, "minimum and maximum are read", _H200),
    Rule("aten::histc", "shape", 2, "without bounds, minimum and maximum are read", _H200, c.equal_bounds),
    Rule("aten::repeat_interleave.Tensor", "shape", 2, "the sum and the sign of repeats are read", _H200,
         lambda call: call.arg("output_size") is None and c.not_empty(call)),
    Rule("aten::_padded_dense_to_jagged_forward", "shape", 1, _SIZE, "its calls, read off the binary",
         c.missing("total_L")),
    # checks on the host
    Rule("aten::_linalg_check_errors", "check", 1, _INFO, _LINALG),
    Rule("aten::linalg_inv_ex", "check", 1, _INFO, _LINALG, c.true("check_errors")),
    Rule("aten::linalg_cholesky_ex", "check", 1, _INFO, _LINALG, c.true("check_errors")),
    Rule("aten::linalg_lu_factor_ex", "check", 1, _INFO, _LINALG, c.true("check_errors")),
    Rule("aten::linalg_ldl_factor_ex", "check", 1, _INFO, _LINALG, c.true("check_errors")),
    Rule("aten::_linalg_solve_ex", "check", 1, _INFO, _LINALG, c.true("check_errors")),
    Rule("aten::linalg_ldl_factor_ex", "library", c.per_matrix(3), "cuSOLVER waits for each matrix", _PROFILER),
    Rule("aten::_linalg_eigh", "check", 1, _INFO, _LINALG),
    Rule("aten::_linalg_eigh", "library", c.eigh_library_waits, "cuSOLVER waits", _PROFILER + ", float32"),
    Rule("aten::cholesky_inverse", "library", 1, "the library waits", _PROFILER),
    Rule("aten::cholesky_solve", "library", 1, "the library waits", _PROFILER),
    Rule("aten::linalg_pinv.atol_rtol_tensor", "check", 2, "convergence and info of the SVD are read back", _H200),
    Rule("aten::_linalg_svd", "check", 2, "convergence and info are read back", _LINALG),
    Rule("aten::_linalg_svd", "library", c.svd_library_waits, "cuSOLVER waits", _PROFILER + ", float32"),
    Rule("aten::linalg_eig", "check", 3, _MAGMA, _LINALG),
    Rule("aten::_linalg_eigvals", "check", 3, _MAGMA, _LINALG),
    Rule("aten::linalg_lstsq", "check", 1, _INFO, _LINALG),
    Rule("aten::cholesky", "check", 1, _INFO, _LINALG),
    Rule("aten::linalg_matrix_exp", "check", c.matrix_exp_waits, "the norms choose the degree on the host", _MEXP),
    Rule("aten::matrix_exp", "check", c.matrix_exp_waits, "the norms choose the degree on the host", _MEXP),
    Rule("aten::segment_reduce", "check", 2, "the lengths are checked on the host", _H200, c.false("unsafe")),
    Rule("aten::searchsorted", "check", 2, "the sorter's range is read", "Bucketization.cu", c.given("sorter")),
    Rule("aten::bucketize", "check", 2, "the sorter's range is read", "Bucketization.cu", c.given("sorter")),
    # copies
    *_copies("aten::_to_copy"),
    *_copies("aten::copy_"),
    *_copies("prims::device_put"),
    Rule("aten::_foreach_copy_", "h2d", c.crossing_pairs, "blocking copies between host and device", _COPY),
    Rule("aten::_ctc_loss.Tensor", "d2h", 7, "lengths are copied to the host and back", _H200 + ", batch of 2"),
    Rule("aten::where.self", "h2d", c.host_operands, "a host value is copied to the device", _H200),
    Rule("aten::where.self_out", "h2d", c.host_operands, "a host value is copied to the device", "as where.self"),
    Rule("aten::normal.Tensor_Tensor", "read", 2, "the sign of std is checked twice", _H200),
    Rule("aten::normal.float_Tensor", "read", 2, "the sign of std is checked twice", "as normal.Tensor_Tensor"),
    # sparse
    Rule("aten::_coalesce", "library", 5, _THRUST, _PROFILER),
    Rule("aten::_sparse_addmm", "library", 5, "the operand is coalesced: " + _THRUST, _PROFILER),
    Rule("aten::_to_sparse", "read", 1, "the number of non-zeros is read back", _H200),
    Rule("aten::_to_sparse_csr", "read", 2, "the number of non-zeros is read back", _H200),
    # indexing
    Rule("aten::index.Tensor", "shape", c.device_masks, "a boolean mask becomes nonzero, whose size is read back",
         _INDEX),
    Rule("aten::index.Tensor", "h2d", c.host_indices, "a host index is copied to the device", _INDEX),
    Rule("aten::_unsafe_index.Tensor", "shape", c.device_masks, "a boolean mask becomes nonzero", _INDEX),
    Rule("aten::_unsafe_index.Tensor", "h2d", c.host_indices, "a host index is copied to the device", _INDEX),
    *_index_put("aten::index_put"),
    *_index_put("aten::index_put_"),
    *_index_put("aten::_index_put_impl_"),
    *_index_put("aten::_unsafe_index_put"),
    # tagged as data dependent by torch, and yet no wait
    Rule("aten::fill_.Tensor", "read", 0, "device value: a kernel; host value: no device read", _H200),
    Rule("aten::fill.Tensor", "read", 0, "device value: a kernel; host value: no device read", _H200),
)
# fmt: on

_TAGGED = Rule("*", "shape", 1, "torch tags it as data dependent", "torch.Tag")
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@functools.cache
def rules_for(func: OpOverload) -> tuple[Rule, ...]:
    """The rows of an operator; the catch-all row where torch tags it and no row names it."""
    names = (func._schema.name, func.name())
    rows = tuple(rule for rule in TABLE if rule.operator in names)
    if not rows and any(tag in func.tags for tag in _TAGS):
        return (_TAGGED,)
    return rows


def waits(rules: tuple[Rule, ...], call: c.Call) -> Iterator[tuple[Rule, int]]:
    """The rows that hold for the call, with their number of waits."""
    for rule in rules:
        count = rule.waits(call)
        if count:
            yield rule, count


class UncheckedTorchWarning(UserWarning):
    """The rules were not checked against this torch version."""


@functools.cache
def warn_if_unchecked(version: str = torch.__version__) -> bool:
    """Warn once where the table was not checked against this torch version; True if it was."""
    if ".".join(version.split(".")[:2]) in CHECKED:
        return True
    checked = ", ".join(CHECKED)
    warnings.warn(
        f"the host-sync rules were not checked against torch {version} (checked: {checked}); counts may differ",
        UncheckedTorchWarning,
        stacklevel=2,
    )
    return False
