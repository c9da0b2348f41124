"""Triton kernels on the virtual device.

Under ``TRITON_INTERPRET=1`` (set before the kernels are decorated) they really run, on the CPU values, through
Triton's interpreter. Otherwise a launch is counted and does nothing: the host's part of the code is checked, the
values are not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .recorder import launched
from .virtual import VirtualTensor


def _held(value: Any) -> Any:
    return value.held if isinstance(value, VirtualTensor) else value


def _name(kernel: Any) -> str:
    return getattr(getattr(kernel, "fn", kernel), "__name__", "?")


def _uses_virtual(args: tuple, kwargs: dict) -> bool:
    return any(isinstance(value, VirtualTensor) for value in (*args, *kwargs.values()))


def _interpreted(original: Callable[..., Any]) -> Callable[..., Any]:
    """`GridExecutor.__call__` on the CPU values."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _uses_virtual(args, kwargs):
            return original(self, *args, **kwargs)
        launched(getattr(self.fn, "__name__", "?"))
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return original(self, *map(_held, args), **{name: _held(value) for name, value in kwargs.items()})

    return call


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """`JITFunction.run` that only counts."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _uses_virtual(args, kwargs):
            return original(self, *args, **kwargs)
        launched(_name(self))
        return None

    return run


def _untuned(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Autotuner.run` with its first configuration: there is nothing to time."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _uses_virtual(args, kwargs):
            return original(self, *args, **kwargs)
        return self.fn.run(*args, **{**self.configs[0].all_kwargs(), **kwargs})

    return run


def install() -> Callable[[], None]:
    """Put the stand-ins in place where triton is installed; returns what takes them out."""
    if importlib.util.find_spec("triton") is None:
        return lambda: None
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

    changes = [
        (GridExecutor, "__call__", _interpreted),
        (JITFunction, "run", _counted),
        (Autotuner, "run", _untuned),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, change in changes:
        setattr(owner, name, change(getattr(owner, name)))

    def restore() -> None:
        for owner, name, value in saved:
            setattr(owner, name, value)

    return restore
