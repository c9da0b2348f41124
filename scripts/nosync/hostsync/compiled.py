"""``torch.compile`` on the virtual device: compiled functions run eagerly, and the report says so.

A compiled region cannot be seen into: the compiler fuses operators and drops the modes. Eagerly the same Python code
runs, so its waits are seen, but a wait that the compiled form alone has (or lacks) is not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from .recorder import record

_WHY = "torch.compile: the region ran eagerly on the virtual device; the compiled form itself is not covered"


def _note(name: str) -> None:
    record(f"torch.compile({name})", "not-covered", 1, why=_WHY, soft=True)


def _eager_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` that keeps the function and notes its calls."""

    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **kwargs)
        if isinstance(model, torch.nn.Module) or not callable(model):
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


def install() -> Callable[[], None]:
    """Make compiled functions run eagerly; returns what undoes it."""
    saved: list[tuple[Any, str, Any]] = [(torch, "compile", torch.compile)]
    torch.compile = _eager_compile(torch.compile)  # type: ignore[assignment]
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and hasattr(dynamo, "_callback_from_stance"):
        saved.append((dynamo, "_callback_from_stance", dynamo._callback_from_stance))
        dynamo._callback_from_stance = _eager_callback(dynamo._callback_from_stance)  # type: ignore[attr-defined]

    def restore() -> None:
        for owner, name, value in saved:
            setattr(owner, name, value)

    return restore
