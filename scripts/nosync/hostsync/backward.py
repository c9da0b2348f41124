"""Python errors out of backward on the virtual device.

An error that Python code raises while torch's engine runs a C++ node (an operator, a hook, an unpacking of saved
tensors) unwinds through the engine's stream guard, which asks the backend for its device type: Python is called with
the error set, and the process would end. So the answer takes the error off, and the call of the engine raises it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

_here = threading.local()


def _answer(address: int | None, *_: Any) -> Any:
    """Keep the error that was set, if any, for the engine's caller; the device type."""
    if address is not None:
        _here.error = ctypes.cast(address, ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(_here.error))  # the reference that the C function handed over
    return torch._C._autograd.DeviceType.PrivateUse1


_type = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyErr_GetRaisedException", ctypes.pythonapi))
_type.errcheck = _answer  # type: ignore[assignment]  # runs once the error is off


class DeviceGuard(torch._C._acc.DeviceGuard):
    """The backend's device guard; all but the type is torch's."""

    type_ = _type


def _raising(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        _here.error = None
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            raised = error
        finally:
            taken, _here.error = _here.error, None
        raise taken or raised

    return run_backward


def install() -> Callable[[], None]:
    """Let the calls of the engine raise what was taken off; returns what undoes it."""
    original = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = _raising(original)  # type: ignore[attr-defined]

    def restore() -> None:
        torch.autograd._engine_run_backward = original  # type: ignore[attr-defined]

    return restore
