"""The virtual device: tensors that say ``cuda:0`` and hold real CPU values.

A `VirtualTensor` is a wrapper whose dispatch device is a Python backend of torch (PrivateUse1) and which holds a CPU
tensor. Every operator on it runs on the CPU tensor, so values, control flow, backward and optimizers are real; before
it runs, the rules say whether a CUDA device would make the host wait.

Three parts meet: `VirtualTensor` (the tensor), `DispatchMode` (operators that only name the device, such as
``torch.zeros(3, device="cuda")``) and, in `nosync.hostsync.functions`, `FunctionMode` (what torch decides before an
operator is dispatched). `nosync.hostsync.backends` turns them on and off.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from . import autocast, streams
from .backward import DeviceGuard
from .calls import Call, done_by_the_stream
from .device_only import HOST_OUTPUTS, IMPLEMENTATIONS
from .files import reduced
from .hints import sync_free_form
from .recorder import listening, record
from .rules import Rule, rules_for, waits
from .timeline import TIMELINE, is_pinned, pin

aten = torch.ops.aten

BACKEND = "vgpu"
SHOWN = torch.device("cuda", 0)
_DEVICE_TYPES = (BACKEND, "cuda")
_ROOMY = 1 << 48  # bytes of a wrapper's (null) storage: in-place metadata changes never run out of it

_WAITING_KINDS = ("read", "shape", "d2h", "h2d", "check", "library")


class _DeviceModule:
    """What torch asks of a Python backend's device module; the rest is ``torch.cuda``'s answer: the stand-in's while
    the device is on, and torch's own otherwise (no GPU, where there is none)."""

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


@functools.cache
def register() -> torch.device:
    """Register the backend with torch, once per process and for good; returns its device.

    From then on torch takes it for the process's accelerator: a real GPU in the same process loses pinned memory and
    backward. `registered` tells.
    """
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(BACKEND, _DeviceModule(), device_guard=DeviceGuard())
    autocast.register(BACKEND)
    with torch._C.DisableTorchFunction():
        return torch.device(BACKEND, 0)


def registered() -> bool:
    """Whether the backend was registered in this process."""
    return register.cache_info().currsize > 0


# ------------------------------------------------------------------ the tensor
class VirtualTensor(torch.Tensor):
    """A tensor that claims to be on ``cuda:0``.

    Args:
        held: The CPU tensor with the values. Views of it are views of the same storage.
    """

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> VirtualTensor:
        dense = held.layout is torch.strided
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride() if dense else make_contiguous_strides_for(held.size()),
            storage_offset=held.storage_offset() if dense else 0,
            dtype=held.dtype,
            layout=held.layout,
            device=register(),
            requires_grad=False,
            storage_size=_ROOMY,
        )
        wrapper.held = held
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatch(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return SHOWN

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return self

    def pin_memory(self, *args: Any) -> torch.Tensor:
        raise RuntimeError("cannot pin a device tensor: only dense CPU tensors can be pinned")

    def is_pinned(self, *args: Any) -> bool:
        return False

    def record_stream(self, stream: Any) -> None:
        pass

    def tolist(self) -> Any:
        return self.item() if self.dim() == 0 else self.cpu().tolist()

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __copy__(self) -> torch.Tensor:
        return _like(self, VirtualTensor(self.held.detach()))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = _like(self, VirtualTensor(self.held.clone()))
            if self.grad is not None:
                memo[id(self)].grad = copy.deepcopy(self.grad, memo)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduced(self)


def _like(original: VirtualTensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a leaf, a parameter where the original is one."""
    if isinstance(original, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, original.requires_grad)
    return tensor.requires_grad_(original.requires_grad)


def is_virtual(value: Any) -> bool:
    """Whether the value is a tensor on the virtual device."""
    return isinstance(value, VirtualTensor)


# ------------------------------------------------------------------ operators
class _Plan(NamedTuple):
    """What dispatch must know about an operator, looked up once."""

    rules: tuple[Rule, ...]
    run: Callable[..., Any]
    pinning: Callable[[torch.Tensor], Any] | None
    host_outputs: tuple[int, ...]
    returns_argument: bool
    changes_view: bool
    is_view: bool
    same_device: bool
    takes_value: bool
    indexes: bool
    copies: bool


# fmt: off
_ONE_DEVICE = {f"aten::{name}" for name in (
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "cat", "dot", "mm", "mv", "stack", "linear",
    "convolution", "equal", "isin", "gather", "take", "index_add", "index_add_", "index_copy", "index_copy_",
    "index_fill", "index_fill_", "index_select", "index_reduce_", "scatter", "scatter_", "scatter_add",
    "scatter_add_", "scatter_reduce", "scatter_reduce_", "masked_select", "masked_scatter", "masked_scatter_",
    "embedding", "_embedding_bag", "bucketize", "searchsorted", "nll_loss_forward", "nll_loss2d_forward",
    "native_layer_norm", "native_batch_norm", "native_group_norm", "_cdist_forward", "_linalg_solve_ex",
    "grid_sampler_2d",
)}
# fmt: on
"""Operators that take one device, beside the pointwise ones."""

_INDEXING = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


@functools.cache
def _plan(func: OpOverload) -> _Plan:
    schema = func._schema
    return _Plan(
        rules=rules_for(func),
        run=IMPLEMENTATIONS.get(func, func),
        pinning=_PINNING.get(func),
        host_outputs=HOST_OUTPUTS.get(func, ()),
        returns_argument=_returns_argument(func),
        changes_view=torch.Tag.inplace_view in func.tags,
        is_view=func.is_view or func is aten.detach.default,
        same_device=torch.Tag.pointwise in func.tags or schema.name in _ONE_DEVICE,
        takes_value="values" in {arg.name for arg in schema.arguments} and "index_put" in schema.name,
        indexes=schema.name in _INDEXING,
        copies=schema.name in ("aten::copy_", "aten::_to_copy", "prims::device_put"),
    )


def _returns_argument(func: OpOverload) -> bool:
    """Whether a result may be an argument itself (in-place, ``out=``)."""
    aliased = any(result.alias_info is not None for result in func._schema.returns)
    return func._schema.is_mutable or (aliased and not func.is_view) or func is aten.lift_fresh.default


class _Arguments:
    """Unwraps arguments; remembers which wrapper holds which tensor and which host tensors were seen."""

    def __init__(self) -> None:
        self.virtual: list[VirtualTensor] = []
        self.host: list[torch.Tensor] = []

    def unwrap(self, value: Any) -> Any:
        if isinstance(value, VirtualTensor):
            self.virtual.append(value)
            return value.held
        if isinstance(value, torch.Tensor):
            self.host.append(value)
            return value
        if type(value) in (list, tuple):
            return type(value)([self.unwrap(item) for item in value])
        return value


def dispatch(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operator: report its waits, run it on the CPU values, wrap what belongs on the device.

    Raises:
        HostSyncError: the operator waits, in a block that forbids.
        RuntimeError: host and device tensors meet in an operator that takes one device only.
    """
    __tracebackhide__ = True
    seen = _Arguments()
    host_args = [seen.unwrap(arg) for arg in args]
    host_kwargs = {name: seen.unwrap(value) for name, value in kwargs.items()} if kwargs else {}
    device = host_kwargs.get("device")
    to_device = device is not None and device.type in _DEVICE_TYPES
    touches_device = bool(seen.virtual) or to_device
    plan = _plan(func)
    if touches_device:
        if plan.same_device and seen.host:
            _require_one_device(func, seen.host)
        if plan.indexes and not isinstance(args[0], VirtualTensor):
            _require_host_indices(func)
        if plan.takes_value and not isinstance(args[2], VirtualTensor):
            _require_one_device(func, [args[2]])
        if plan.rules and (TIMELINE.waiting or listening()):
            _report(plan.rules, func, args, kwargs)
    if TIMELINE.waiting and seen.host and not plan.is_view and listening():
        _report_race(plan, func, args, kwargs, seen.host)
    if plan.pinning is not None:
        return plan.pinning(host_args[0])
    wants_pinned = host_kwargs.pop("pin_memory", None)
    if to_device:
        host_kwargs["device"] = _CPU
    out = plan.run(*host_args, **host_kwargs)
    if not touches_device or (device is not None and not to_device):
        return _left_on_host(func, args, kwargs, out, bool(seen.virtual), bool(wants_pinned))
    if func is aten.copy_.default and not isinstance(args[0], VirtualTensor):
        if kwargs.get("non_blocking") or (len(args) > 2 and args[2]):
            _async_copy_into(args[0])
        return args[0]
    if plan.changes_view:
        _update_wrapper(args[0])
    known = {id(tensor.held): tensor for tensor in seen.virtual} if plan.returns_argument else {}
    if plan.host_outputs:
        stay = plan.host_outputs
        return tuple(item if i in stay else _wrap(item, known, seen.host) for i, item in enumerate(out))
    return _wrap(out, known, seen.host)


_CPU = torch.device("cpu")


def _wrap(out: Any, known: dict[int, VirtualTensor], host: list[torch.Tensor]) -> Any:
    """Wrap the tensors of a result; an argument that is returned comes back as itself."""
    if isinstance(out, torch.Tensor):
        if isinstance(out, VirtualTensor):
            return out
        if known:
            wrapper = known.get(id(out))
            if wrapper is not None:
                return wrapper
            if any(out is tensor for tensor in host):
                return out
        return VirtualTensor(out)
    if isinstance(out, (list, tuple)):
        return type(out)([_wrap(item, known, host) for item in out])
    return out


def _left_on_host(
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    from_device: bool,
    wants_pinned: bool,
) -> Any:
    """A result that stays a host tensor: pin it where asked, track an asynchronous copy into it."""
    if not isinstance(out, torch.Tensor):
        return out
    if from_device and func is aten._to_copy.default and kwargs.get("non_blocking"):
        _async_copy_into(pin(out))  # torch allocates pinned memory for .to("cpu", non_blocking=True)
    elif wants_pinned:
        pin(out)
    return out


def _async_copy_into(host: torch.Tensor) -> None:
    if is_pinned(host):  # into pageable memory the driver returns only when the copy is done
        TIMELINE.copy_started(host, streams.current_id())


def _update_wrapper(wrapper: Any) -> None:
    """Carry an in-place change of shape over to the wrapper."""
    if isinstance(wrapper, VirtualTensor):
        held = wrapper.held
        with no_dispatch():
            aten.as_strided_(wrapper, held.size(), held.stride(), held.storage_offset())


def _report(rules: tuple[Rule, ...], func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    __tracebackhide__ = True
    call = Call(func, args, kwargs, is_virtual, is_pinned, _DEVICE_TYPES)
    for rule, count in waits(rules, call):
        if not rule.soft and rule.kind in _WAITING_KINDS:
            TIMELINE.host_waits_for_stream(streams.current_id())
        record(
            func.name(),
            rule.kind,
            count,
            why=rule.why,
            instead=sync_free_form(func.name(), rule.kind),
            soft=rule.soft,
        )


def _report_race(
    plan: _Plan, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], host: list[torch.Tensor]
) -> None:
    __tracebackhide__ = True
    by_stream = plan.copies and done_by_the_stream(Call(func, args, kwargs, is_virtual, is_pinned, _DEVICE_TYPES))
    if TIMELINE.unfinished(host, streams.current_id() if by_stream else None):
        why = "read before the copy into this buffer is known to be complete"
        record(func.name(), "race", why=why, instead=sync_free_form(func.name(), "race"))


def _require_one_device(func: OpOverload, host: list[torch.Tensor]) -> None:
    """A host tensor with dimensions is an error, as on a GPU."""
    if any(tensor.dim() > 0 and tensor.device.type == "cpu" for tensor in host):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(in {func.name()}, seen by the virtual device)"
        )


def _require_host_indices(func: OpOverload) -> None:
    raise RuntimeError(
        "indices should be either on cpu or on the same device as the indexed tensor (cpu) "
        f"(in {func.name()}, seen by the virtual device)"
    )


def _pin_copy(host: torch.Tensor) -> torch.Tensor:
    return pin(host.clone())


_PINNING: dict[OpOverload, Callable[[torch.Tensor], Any]] = {
    aten._pin_memory.default: _pin_copy,
    aten.pin_memory.default: _pin_copy,
    aten.is_pinned.default: is_pinned,
}


class DispatchMode(TorchDispatchMode):
    """Catches operators on host tensors too: those that name the device, and reads of host buffers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles under the mode, and the default imports the whole compiler

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatch(func, args, kwargs or {})
