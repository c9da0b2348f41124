"""Counting on a real GPU.

Three sources, each blind to something:

- *sync-debug*: ``torch.cuda.set_sync_debug_mode("warn")``. Its warnings, on the thread of the block, become events.
  Blind to waits for events and the device, and to libraries below torch.
- *explicit waits*: ``torch.cuda.synchronize``, ``Event.synchronize`` and ``Stream.synchronize`` are wrapped.
- *profiler* (``profile=True``): the CUDA runtime's own synchronize calls. What the other two did not announce
  becomes events of kind ``library``, at the operator that ran.

(torch's GPU trace hooks see waits too, with the Python stack in place. They are not used: once on, they run Python
whenever device memory is freed, and a Python error that passes through C++ at that moment is lost.)

`capturable` is a proof of another kind: a function that can be captured as a CUDA graph waits for nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .calls import Call
from .events import Kind
from .hints import sync_free_form
from .nesting import PerProcess, PerThread
from .profiling import operator_label, profiling
from .recorder import Recorder, allowed_reason, current_node, listening, record, unheard
from .rules import rules_for, waits, warn_if_unchecked
from .sites import Site, user_site
from .spoof import REAL_CUDA
from .virtual import registered

_SYNC_DEBUG_TEXT = "called a synchronizing CUDA operation"


@contextlib.contextmanager
def counting(recorder: Recorder, profile: bool) -> Iterator[None]:
    """Fill the recorder from this thread's work on the GPU.

    Raises:
        RuntimeError: there is no GPU, or the virtual backend was used in this process.
    """
    if not REAL_CUDA():
        raise RuntimeError("the 'cuda' backend needs a GPU that torch can use; 'virtual' needs none")
    if registered():
        raise RuntimeError(
            "the virtual backend was used in this process, and torch now takes it for the accelerator: count on "
            "the GPU in a process of its own, or before (pytest: --host-syncs-backend cuda)"
        )
    warn_if_unchecked()
    recorder.cross_checks["sync_debug"] = 0
    with unheard():
        torch.cuda.synchronize()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process.on())
        stack.enter_context(_thread.on())
        if profile:
            stack.enter_context(profiling(recorder))
        yield


# ------------------------------------------------------------------ which operator it was
class _Wait(NamedTuple):
    """A wait that the table expects of an operator that ran."""

    operator: str
    kind: Kind
    why: str
    site: Site
    node: str


class _Operators(threading.local):
    """What ran in this thread. Torch delivers a warning when the Python call that contains the operator returns."""

    def __init__(self) -> None:
        self.last = ""
        self.last_node = ""
        self.expected: deque[_Wait] = deque(maxlen=64)
        self.explicit = False

    def of_a_wait_at(self, site: Site) -> _Wait:
        """The expected wait at this place that has not been seen yet; else the last operator."""
        for wait in self.expected:
            if wait.site == site:
                self.expected.remove(wait)
                return wait
        why = "the operator synchronizes the stream"
        return _Wait(self.last or "cuda", "read", why, site, self.last_node)


_here = _Operators()


class _OperatorMode(TorchDispatchMode):
    """Notes which operators run, and the waits that the table expects of them."""

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        _here.last, _here.last_node = func.name(), current_node()
        rules = rules_for(func)
        if rules:
            call = Call(func, args, kwargs, lambda t: t.is_cuda, lambda t: t.is_pinned(), ("cuda",))
            for rule, count in waits(rules, call):
                if not rule.soft and rule.kind != "library":
                    wait = _Wait(func.name(), rule.kind, rule.why, user_site(), _here.last_node)
                    _here.expected.extend([wait] * count)
        with operator_label(func.name()):
            return func(*args, **kwargs)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled functions stay compiled under the block

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# ------------------------------------------------------------------ sync-debug and explicit waits
def _arm_sync_debug() -> Callable[[], None]:
    """Count sync-debug warnings. The mode is process-wide: other threads' warnings are dropped while a block is open,
    unless the program had armed the mode itself."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first call of a process warns about itself
        torch.cuda.set_sync_debug_mode("warn")
    show = warnings._showwarnmsg  # type: ignore[attr-defined]

    def count_or_show(message: Any) -> None:
        if _SYNC_DEBUG_TEXT not in str(message.message) or (mode != 0 and not listening()):
            show(message)
        else:
            _warned()

    # catch_warnings and pytest.warns replace showwarning, not this; the filter lets every repetition through
    warnings._showwarnmsg = count_or_show  # type: ignore[attr-defined]
    warnings.filterwarnings("always", message=f".*{_SYNC_DEBUG_TEXT}")
    added = warnings.filters[0]

    def disarm() -> None:
        torch.cuda.set_sync_debug_mode(mode)
        warnings._showwarnmsg = show  # type: ignore[attr-defined]
        if added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]
            warnings._filters_mutated()  # type: ignore[attr-defined]

    return disarm


def _warned() -> None:
    """A sync-debug warning of this thread. Raising here raises out of the call that waited."""
    recorders = listening()
    if not recorders:
        return
    if allowed_reason() is None:
        for recorder in recorders:
            recorder.cross_checks["sync_debug"] = recorder.cross_checks.get("sync_debug", 0) + 1
    if not _here.explicit:
        wait = _here.of_a_wait_at(user_site())
        record(wait.operator, wait.kind, why=wait.why, instead=sync_free_form(wait.operator, wait.kind), node=wait.node)


def _wrap_explicit_waits() -> Callable[[], None]:
    places = (
        (torch._C, "_cuda_synchronize", "torch.cuda.synchronize"),
        (torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
        (torch.cuda.Event, "synchronize", "event.synchronize"),
        (torch.cuda.Stream, "synchronize", "stream.synchronize"),
    )
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in places if hasattr(owner, name)]
    for owner, name, shown in places:
        if hasattr(owner, name):
            setattr(owner, name, _reporting(getattr(owner, name), shown))

    def restore() -> None:
        for owner, name, original in saved:
            setattr(owner, name, original)

    return restore


def _reporting(original: Callable[..., Any], shown: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        why = f"the code asks to wait ({shown})"
        record(shown, "explicit", why=why, instead=sync_free_form(shown, "explicit"))
        before, _here.explicit = _here.explicit, True
        try:
            with operator_label(shown):
                return original(*args, **kwargs)
        finally:
            _here.explicit = before

    return wait


_thread = PerThread(lambda: (torch.autograd.set_multithreading_enabled(False), _OperatorMode()))
_process = PerProcess(_arm_sync_debug, _wrap_explicit_waits)


# ------------------------------------------------------------------ capture
@dataclasses.dataclass(frozen=True)
class Capture:
    """Whether a function could be captured as a CUDA graph, and whether a replay gives the same values.

    Attributes:
        captured: The capture succeeded: nothing in the function waits for the device.
        equal: The replayed outputs equal the eager ones bitwise (NaN equals NaN).
        reason: What went wrong, else empty.
    """

    captured: bool
    equal: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.captured and self.equal


def capturable(function: Callable[[], Any], warm_up: int = 3) -> Capture:
    """Capture ``function()`` as a CUDA graph, replay it and compare with an eager call.

    A host read, a pageable copy or any wait is illegal during capture, so this is the strictest proof. The function
    must give the same values each time (no state of its own, no random numbers); its outputs are a tree of tensors.

    Raises:
        RuntimeError: there is no GPU.
    """
    if not REAL_CUDA():
        raise RuntimeError("capturing a CUDA graph needs a GPU")
    expected = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), function())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = function()
    except Exception as error:
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()
        return Capture(False, False, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    graph.replay()
    torch.cuda.synchronize()
    pairs = zip(tree_leaves(expected), tree_leaves(captured), strict=True)
    equal = all(_same(a, b) for a, b in pairs)
    return Capture(True, equal, "" if equal else "the replay gives other values than the eager call")


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return a == b
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
