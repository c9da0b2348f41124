"""Python errors out of backward on the virtual device.

While torch's engine runs a C++ node for a Python backend, a Python error must not unwind through it: the engine's
stream guard calls Python again on the way out, and the process ends. So the error is set aside here, the operator
returns something that torch refuses with an error of its own, and the call of the engine raises what was set aside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

_here = threading.local()

REFUSED = object()
"""No operator may return this; torch raises in C++."""


def must_set_aside() -> bool:
    """Whether the engine runs a C++ node in this thread right now (a Python node passes errors on safely)."""
    node = torch._C._current_autograd_node()
    return node is not None and not isinstance(node, BackwardCFunction)


def set_aside(error: BaseException) -> Any:
    """Keep the error for the engine's caller; returns what the operator must return."""
    _here.error = error
    return REFUSED


def _raising(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return original(*args, **kwargs)
        except BaseException:
            error = getattr(_here, "error", None)
            _here.error = None
            if error is not None:
                raise error from None
            raise

    return run_backward


def install() -> Callable[[], None]:
    """Let the calls of the engine raise what was set aside; returns what undoes it."""
    original = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = _raising(original)  # type: ignore[attr-defined]

    def restore() -> None:
        torch.autograd._engine_run_backward = original  # type: ignore[attr-defined]

    return restore
