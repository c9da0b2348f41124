"""What torch decides before an operator is dispatched: the spelling ``cuda``, and C++ that asks for CUDA tensors.

`FunctionMode` maps ``cuda`` to the virtual backend's device and back, and does, for virtual tensors, what torch does in
C++ for CUDA tensors alone.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors

from .timeline import is_pinned, pin
from .virtual import BACKEND, SHOWN, VirtualTensor, is_virtual, register


def _spell(value: Any) -> Any:
    """``cuda`` → the backend's device."""
    if isinstance(value, torch.device):
        return register() if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return register()
    return value


def _show(result: Any) -> Any:
    """The backend's device → ``cuda:0``."""
    if isinstance(result, torch.device):
        return SHOWN if result.type == BACKEND else result
    if type(result) is tuple and any(isinstance(item, torch.device) for item in result):
        return tuple(_show(item) for item in result)
    return result


def _set_item(func: Any, args: tuple, kwargs: dict) -> Any:
    """``x[i] = 1.0``: for CUDA tensors torch makes a host scalar; for other devices a device scalar."""
    target, index, value = args
    if isinstance(target, VirtualTensor) and isinstance(value, (numbers.Integral, float, complex)):  # numpy's too
        value = torch.tensor(value, dtype=target.dtype)
    return func(target, index, value)


def _cuda(func: Any, args: tuple, kwargs: dict) -> Any:
    return _to_device(*args, **kwargs)


def _to_device(tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    return tensor.to(register(), non_blocking=non_blocking, memory_format=memory_format)


def _pin_memory(func: Any, args: tuple, kwargs: dict) -> Any:
    return args[0].pin_memory() if is_virtual(args[0]) else pin(args[0].clone())


def _is_pinned(func: Any, args: tuple, kwargs: dict) -> Any:
    return not is_virtual(args[0]) and is_pinned(args[0])


def _same_kind(func: Any, args: tuple, kwargs: dict) -> Any:
    """`Module.to` sets ``param.data`` where the kinds agree; CPU and CUDA tensors agree."""
    return is_virtual(args[0]) != is_virtual(args[1]) or func(*args, **kwargs)


def _set_data(func: Any, args: tuple, kwargs: dict) -> Any:
    """``param.data = other`` between host and device keeps the parameter's identity."""
    tensor, data = args
    if is_virtual(tensor) == is_virtual(data):
        if is_virtual(tensor):
            tensor.held = data.held
            data = data.detach()
        return func(tensor, data)
    replacement = data.detach()
    if isinstance(tensor, torch.nn.Parameter):
        replacement = torch.nn.Parameter(replacement, tensor.requires_grad)
    grad, tensor.grad = tensor.grad, None
    torch.utils.swap_tensors(tensor, replacement)
    if grad is not None and is_virtual(grad) == is_virtual(tensor):
        tensor.grad = grad
    return None


def _from_data(func: Any, args: tuple, kwargs: dict) -> Any:
    """``torch.tensor([t1, t2])``: torch reads each tensor of a list."""
    kwargs = {name: _spell(value) for name, value in kwargs.items()}
    args = tuple(_read_items(arg) if isinstance(arg, (list, tuple)) else _spell(arg) for arg in args)
    pinned = kwargs.pop("pin_memory", False)
    out = func(*args, **kwargs)
    return pin(out) if pinned else out


def _read_items(data: Any) -> Any:
    if isinstance(data, VirtualTensor):
        return data.tolist()
    return [_read_items(item) for item in data] if isinstance(data, (list, tuple)) else data


def _ctc_loss(func: Any, args: tuple, kwargs: dict) -> Any:
    """torch takes the values of host lengths, but not where a subclass of tensors is among the arguments."""
    if len(args) > 3 and _is_on_host(args[2]) and _is_on_host(args[3]):
        args = (*args[:2], args[2].tolist(), args[3].tolist(), *args[4:])
    return func(*args, **kwargs)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _as_is(func: Any, args: tuple, kwargs: dict) -> Any:
    return func(*args, **kwargs)


_Handler = Callable[[Any, tuple, dict], Any]

_FUNCTIONS: dict[Any, _Handler] = {
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: _is_pinned,
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch._has_compatible_shallow_copy_type: _same_kind,
    torch.ctc_loss: _ctc_loss,
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.device: _as_is,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.asarray: _from_data,
    torch.Tensor.new_tensor: _from_data,
}


def _default_is_cuda() -> bool:
    """Whether ``torch.set_default_device("cuda")`` or ``with torch.device("cuda")`` holds; torch keeps it lowest."""
    lowest = torch._C._get_function_stack_at(0) if torch._C._len_torch_function_stack() else None
    return isinstance(lowest, DeviceContext) and lowest.device.type == "cuda"


class FunctionMode(TorchFunctionMode):
    """Maps the spelling ``cuda`` to the backend and back, and does what C++ does for CUDA tensors alone."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if _default_is_cuda() and func in _device_constructors() and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": register()}
        handler = _FUNCTIONS.get(func)
        if handler is not None:
            return handler(func, args, kwargs or {})
        if kwargs:
            kwargs = {name: _spell(value) for name, value in kwargs.items()}
            if kwargs.pop("pin_memory", False):
                return pin(func(*args, **kwargs))
        if any(type(arg) is torch.device or type(arg) is str for arg in args):
            args = tuple(_spell(arg) for arg in args)
        return _show(func(*args, **(kwargs or {})))
