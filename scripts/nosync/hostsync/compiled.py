"""``torch.compile`` on the virtual device: compiled functions run eagerly, and the report says so.

A compiled region cannot be seen into: the compiler fuses operators and drops the modes. Eagerly the same Python code
runs, so its waits are seen, but a wait that the compiled form alone has (or lacks) is not.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .recorder import record
from .virtual import VirtualTensor

_WHY = "torch.compile: the region ran eagerly on the virtual device; the compiled form itself is not covered"


def _note(name: str) -> None:
    record(f"torch.compile({name})", "not-covered", 1, why=_WHY, soft=True)


def _eager_compile(original: Callable[..., Any], hook_dynamo: Callable[[], None]) -> Callable[..., Any]:
    """`torch.compile` that keeps the function and notes its calls."""

    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **kwargs)
        if isinstance(model, torch.nn.Module) or not callable(model):
            importlib.import_module("torch._dynamo")
            hook_dynamo()
            return original(model, **kwargs)

        @functools.wraps(model)
        def eager(*args: Any, **kw: Any) -> Any:
            _note(getattr(model, "__name__", "?"))
            return model(*args, **kw)

        return eager

    return compile_


def _eager_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo's choice of callback for a function compiled earlier: none, that is eager."""

    def choose(callback: Any) -> Any:
        if callback in (None, False):
            return original(callback)
        _note("compiled earlier")
        return None

    return choose


def _refusing_export(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export.export`, of what is on the CPU alone."""

    def export(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = [*mod.parameters(), *mod.buffers()] if isinstance(mod, torch.nn.Module) else []
        if any(isinstance(leaf, VirtualTensor) for leaf in tree_leaves((state, args, kwargs))):
            raise NotImplementedError("the virtual device cannot be traced by torch.export: export a module on the CPU")
        return original(mod, *args, **kwargs)

    return export


def install() -> Callable[[], None]:
    """Make compiled functions run eagerly; returns what undoes it."""
    saved: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, change: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        saved.append((owner, name, original))
        setattr(owner, name, change(original))

    def hook_dynamo() -> None:
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if hasattr(dynamo, "_callback_from_stance") and not any(owner is dynamo for owner, *_ in saved):
            replace(dynamo, "_callback_from_stance", _eager_callback)

    def restore() -> None:
        for owner, name, value in saved:
            setattr(owner, name, value)

    hook_dynamo()
    replace(torch, "compile", lambda original: _eager_compile(original, hook_dynamo))
    replace(torch.export, "export", _refusing_export)
    return restore
