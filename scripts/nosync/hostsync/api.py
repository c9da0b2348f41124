"""The blocks that users write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import backends
from .events import HostSyncError
from .recorder import Recorder, allow, closed, opened, unheard
from .virtual import VirtualTensor


class host_syncs:
    """Record where the host would wait for the device.

    ``with host_syncs() as syncs: …`` gives a `Recorder`. Inside a function that torch.compile traces, the block
    does nothing (put it around the call).

    Args:
        backend: ``"virtual"``, ``"cuda"``, or None for the one in use (the GPU where there is one).
        profile: On ``cuda``, also run the profiler, which sees what torch's own counters miss. Slow: milliseconds
            for the block; the outermost block only.
    """

    forbid = False

    def __init__(self, backend: str | None = None, *, profile: bool = False) -> None:
        self._backend, self._profile = backend, profile
        self._inside: list[tuple[contextlib.ExitStack, Recorder]] = []

    def __enter__(self) -> Recorder | None:
        if torch.compiler.is_compiling():
            return None
        backend = self._backend or backends.default_backend()
        recorder = Recorder(backend, self.forbid)
        with contextlib.ExitStack() as stack:
            stack.enter_context(backends.backend_on(backend))
            if backend == backends.CUDA:
                from . import cuda

                stack.enter_context(cuda.counting(recorder, self._profile))
            opened(recorder)
            stack.callback(closed, recorder)
            self._inside.append((stack.pop_all(), recorder))
        for recorders in _REPORTS:
            recorders.append(recorder)
        return recorder

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack, recorder = self._inside.pop()
        stack.close()
        if not isinstance(error, HostSyncError):
            recorder.check("seen again at the end of the block")


class forbid_host_syncs(host_syncs):
    """Fail at the first wait, with its call site, and once more at the end of the block.

    Raises:
        HostSyncError: at the wait (on a real GPU at the end of the operator that waited).
    """

    forbid = True


class allow_host_syncs:
    """Waits in this block are recorded with the reason and not counted.

    Args:
        why: The reason, for the report. Must not be empty.

    Raises:
        ValueError: no reason given.
    """

    def __init__(self, why: str) -> None:
        if not why:
            raise ValueError("say why the host may wait here")
        self._why = why
        self._before: list[str | None] = []

    def __enter__(self) -> None:
        if not torch.compiler.is_compiling():
            self._before.append(allow(self._why))

    def __exit__(self, *exc: object) -> None:
        if not torch.compiler.is_compiling():
            allow(self._before.pop())


@contextlib.contextmanager
def use_backend(backend: str | None = None) -> Iterator[torch.device]:
    """Make `device` usable outside recorded blocks (to build inputs); records nothing."""
    with backends.backend_on(backend or backends.default_backend()):
        yield device()


def device() -> torch.device:
    """The device to build inputs on: ``cuda:0`` on both backends."""
    return torch.device("cuda", 0)


def value(tree: Any) -> Any:
    """Copies of the real values, on the CPU and detached, unrecorded. Takes a tensor or a tree of them."""
    return tree_map(_value, tree)


def _value(leaf: Any) -> Any:
    if isinstance(leaf, VirtualTensor):
        return leaf.held.detach().clone()
    if isinstance(leaf, torch.Tensor):
        with unheard():
            return leaf.detach().cpu()
    return leaf


_REPORTS: list[list[Recorder]] = []


@contextlib.contextmanager
def reporting() -> Iterator[list[Recorder]]:
    """Gather the recorder of every block that opens meanwhile."""
    recorders: list[Recorder] = []
    _REPORTS.append(recorders)
    try:
        yield recorders
    finally:
        _REPORTS.remove(recorders)
