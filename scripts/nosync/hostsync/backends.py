"""Turning a backend on and off: what is process-wide, what is per thread.

The virtual backend has two halves. Per thread: torch's dispatch and function modes, and backward on the calling
thread (torch keeps all three per thread). Process-wide, while any thread has it on: the ``torch.cuda`` stand-ins,
the Triton stand-ins, and compiled functions that run eagerly. Threads that the program starts meanwhile get the
per-thread half too, so that they can use the device; nothing of theirs is recorded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import backward, compiled, spoof
from . import triton as triton_stand_ins
from .rules import warn_if_unchecked
from .spoof import REAL_CUDA
from .virtual import DispatchMode, FunctionMode, register

VIRTUAL, CUDA = "virtual", "cuda"

_lock = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []
_here = threading.local()


def default_backend() -> str:
    """The backend that is on in this thread, else ``cuda`` where there is a GPU, else ``virtual``."""
    return VIRTUAL if virtual_is_on() or not REAL_CUDA() else CUDA


def virtual_is_on() -> bool:
    """Whether the calling thread uses the virtual device."""
    return getattr(_here, "depth", 0) > 0


@contextlib.contextmanager
def backend_on(backend: str) -> Iterator[None]:
    """Use a backend, so that `device` names a device that works; records nothing.

    Raises:
        ValueError: an unknown backend.
    """
    if backend not in (VIRTUAL, CUDA):
        raise ValueError(f"unknown backend {backend!r}; known: {VIRTUAL!r}, {CUDA!r}")
    if backend == CUDA:
        yield
        return
    turn_on()
    try:
        yield
    finally:
        turn_off()


def turn_on() -> None:
    """Use the virtual device in this thread; nests."""
    warn_if_unchecked()
    register()
    _enter_process()
    _enter_thread()


def turn_off() -> None:
    """Undo one `turn_on` of this thread."""
    _leave_thread()
    _leave_process()


# ------------------------------------------------------------------ per thread
def _enter_thread() -> None:
    depth = getattr(_here, "depth", 0)
    if depth == 0:
        _here.modes = contextlib.ExitStack()
        _here.modes.enter_context(torch.autograd.set_multithreading_enabled(False))
        _here.modes.enter_context(DispatchMode())
        _here.modes.enter_context(FunctionMode())
    _here.depth = depth + 1


def _leave_thread() -> None:
    _here.depth -= 1
    if _here.depth == 0:
        _here.modes.close()


# ------------------------------------------------------------------ process-wide
def _enter_process() -> None:
    global _users
    with _lock:
        if _users == 0:
            _undo.extend([_lift_cpu_tensors(), spoof.install(), triton_stand_ins.install(), compiled.install(),
                          backward.install(), _threads_join_in()])  # fmt: skip
        _users += 1


def _leave_process() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _undo:
                _undo.pop()()


def _lift_cpu_tensors() -> Callable[[], None]:
    """``torch.tensor(…, device=d)`` makes a CPU tensor and copies it, as it does for CUDA."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    return lambda: torch._C._set_only_lift_cpu_tensors(before)


def _threads_join_in() -> Callable[[], None]:
    """Threads started from now on use the virtual device too."""
    original = threading.Thread.start

    def start(thread: threading.Thread) -> Any:
        run = thread.run

        def run_on_virtual() -> None:
            _enter_thread()
            try:
                run()
            finally:
                _leave_thread()

        thread.run = run_on_virtual  # type: ignore[method-assign]
        return original(thread)

    threading.Thread.start = start  # type: ignore[method-assign]

    def restore() -> None:
        threading.Thread.start = original  # type: ignore[method-assign]

    return restore
