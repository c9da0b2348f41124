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

import torch

from . import backward, compiled, files, spoof
from . import triton as triton_stand_ins
from .functions import FunctionMode
from .nesting import PerProcess, PerThread
from .rules import warn_if_unchecked
from .spoof import REAL_CUDA
from .virtual import DispatchMode, register

VIRTUAL, CUDA = "virtual", "cuda"


def default_backend() -> str:
    """The backend that is on in this thread, else ``cuda`` where there is a GPU, else ``virtual``."""
    return VIRTUAL if virtual_is_on() or not REAL_CUDA() else CUDA


def virtual_is_on() -> bool:
    """Whether the calling thread uses the virtual device."""
    return _thread.depth > 0


@contextlib.contextmanager
def backend_on(backend: str) -> Iterator[None]:
    """Use a backend, so that `device` names a device that works; records nothing; nests.

    Raises:
        ValueError: an unknown backend.
    """
    if backend not in (VIRTUAL, CUDA):
        raise ValueError(f"unknown backend {backend!r}; known: {VIRTUAL!r}, {CUDA!r}")
    if backend == CUDA:
        yield
        return
    warn_if_unchecked()
    register()
    with _process.on(), _thread.on():
        yield


def _lift_cpu_tensors() -> Callable[[], None]:
    """``torch.tensor(…, device=d)`` makes a CPU tensor and copies it, as it does for CUDA."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    return lambda: torch._C._set_only_lift_cpu_tensors(before)


def _threads_join_in() -> Callable[[], None]:
    """Threads started from now on use the virtual device too."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        run = self.run

        def run_on_virtual() -> None:
            with _thread.on():
                run()

        self.run = run_on_virtual  # type: ignore[method-assign]
        original(self)

    threading.Thread.start = start  # type: ignore[method-assign]

    def restore() -> None:
        threading.Thread.start = original  # type: ignore[method-assign]

    return restore


_thread = PerThread(lambda: (torch.autograd.set_multithreading_enabled(False), DispatchMode(), FunctionMode()))
_process = PerProcess(
    _lift_cpu_tensors,
    spoof.install,
    triton_stand_ins.install,
    compiled.install,
    backward.install,
    files.install,
    _threads_join_in,
)
