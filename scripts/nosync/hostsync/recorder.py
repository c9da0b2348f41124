"""Who records what: one `Recorder` per block, seen by the thread and the asyncio task that opened it.

The open blocks hang on a context variable, so an asyncio task opened elsewhere does not see them; a task that the
block itself starts inherits them and counts as the block's. A thread never sees another thread's blocks, even
where it inherits the context (``asyncio.to_thread``). Backward runs on the calling thread inside a block (see
`nosync.hostsync.backends`), so autograd's work is the caller's.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .events import Event, HostSyncError, Kind
from .sites import Site, short_names, user_site

_OPEN: contextvars.ContextVar[tuple[Recorder, ...]] = contextvars.ContextVar("host_sync_recorders", default=())
_ALLOWED: contextvars.ContextVar[str | None] = contextvars.ContextVar("host_sync_allowed", default=None)


class Recorder:
    """The events of one block, in order.

    Attributes:
        events: Everything that was seen: counted, allowed and soft.
        backend: ``"virtual"`` or ``"cuda"``.
        cross_checks: What other counters saw on a real GPU: ``{"sync_debug": 3, "profiler": 4}``; empty on virtual.
        launches: Names of the Triton kernels launched in the block (virtual backend).
        pageable_copies: Copies from or to pageable memory (``cuda`` with ``profile=True``).
        blocked_ms: Milliseconds that the host was blocked, by call site (``cuda`` with ``profile=True``).
        profiled: Synchronize calls that the profiler saw, by call site (``cuda`` with ``profile=True``).
        spans: The block's timeline (``cuda`` with ``profile=True``): kind (``host``: the block, ``wait``, ``device``),
            start and length in milliseconds from the block's start, name.
    """

    def __init__(self, backend: str, forbid: bool = False) -> None:
        self.events: list[Event] = []
        self.backend = backend
        self.forbid = forbid
        self.cross_checks: dict[str, int] = {}
        self.launches: list[str] = []
        self.pageable_copies = 0
        self.blocked_ms: dict[Site, float] = {}
        self.profiled: dict[Site, int] = {}
        self.spans: list[tuple[str, float, float, str]] = []
        self._thread = threading.get_ident()
        self._closed = False

    @property
    def count(self) -> int:
        """Waits that count: neither allowed nor soft."""
        return sum(event.count for event in self.counted)

    @property
    def counted(self) -> list[Event]:
        """The events behind `count`."""
        return [event for event in self.events if event.counted]

    @property
    def allowed(self) -> list[Event]:
        """Events inside `allow_host_syncs`, each with its reason."""
        return [event for event in self.events if event.allowed is not None and not event.soft]

    def by_site(self) -> dict[tuple[str, int, str, str], int]:
        """Counted waits by (file name, line, operator, kind), largest first. Files of one name are told apart by their
        folders."""
        names = short_names(event.file for event in self.counted)
        sums: dict[tuple[str, int, str, str], int] = {}
        for event in self.counted:
            operator = event.operator + (f" <{event.node}>" if event.node else "")
            key = (names[event.file], event.line, operator, event.kind)
            sums[key] = sums.get(key, 0) + event.count
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def table(self) -> str:
        """The counted sites, largest first; then what was allowed, what is soft, and what other counters saw."""
        rows = [f"{self.count} host syncs in {len(self.counted)} events ({self.backend})"]
        rows += [f"  {n:4d}  {file}:{line}  {op} [{kind}]" for (file, line, op, kind), n in self.by_site().items()]
        rows += [f"        {event}" for event in self.allowed]
        rows += [f"        {event}" for event in self.events if event.soft]
        if any(seen != self.count for seen in self.cross_checks.values()):
            seen_by = ", ".join(f"{name} {n}" for name, n in self.cross_checks.items())
            rows.append(f"  the counters disagree: recorded {self.count}, {seen_by}")
        return "\n".join(rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "backend": self.backend,
            "count": self.count,
            "cross_checks": self.cross_checks,
            "events": [event.as_dict() for event in self.events],
            "launches": self.launches,
        }

    def json(self) -> str:
        """`as_dict` as text."""
        return json.dumps(self.as_dict(), indent=1)

    def listens(self) -> bool:
        """Whether the calling thread's events belong here."""
        return not self._closed and threading.get_ident() == self._thread

    def add(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def add_blocked(self, site: Site, milliseconds: float) -> None:
        """Add one wait to the time that the host was blocked at a call site."""
        self.blocked_ms[site] = self.blocked_ms.get(site, 0.0) + milliseconds
        self.profiled[site] = self.profiled.get(site, 0) + 1

    def check(self, note: str = "") -> None:
        """Raise for what was seen, in a block that forbids.

        Raises:
            HostSyncError: the block forbids and an event counts.
        """
        __tracebackhide__ = True
        if self.forbid and self.counted:
            raise HostSyncError(self.counted, note)

    def close(self) -> None:
        """Ignore what comes later (a task that outlives its block)."""
        self._closed = True


def listening() -> list[Recorder]:
    """The open blocks of this thread and task, outermost first."""
    return [recorder for recorder in _OPEN.get() if recorder.listens()]


def opened(recorder: Recorder) -> None:
    """Make the recorder the innermost open block of this task."""
    _OPEN.set((*_OPEN.get(), recorder))


def closed(recorder: Recorder) -> None:
    """Close the recorder and forget it in this task."""
    recorder.close()
    _OPEN.set(tuple(other for other in _OPEN.get() if other is not recorder))


def allow(reason: str | None) -> str | None:
    """Set the reason under which events are allowed in this task; returns the former one."""
    before = _ALLOWED.get()
    _ALLOWED.set(reason)
    return before


def record(
    operator: str,
    kind: Kind,
    count: int = 1,
    *,
    why: str = "",
    instead: str = "",
    soft: bool = False,
    node: str | None = None,
) -> None:
    """Report one event to every block of the caller.

    Args:
        node: Name of the autograd node that ran the operator, ``""`` in forward; ``None``: the one that runs now.

    Raises:
        HostSyncError: in a block that forbids.
    """
    recorders = listening()
    if not recorders:
        return
    node = current_node() if node is None else node
    site = user_site()
    event = Event(
        operator=operator,
        kind=kind,
        count=count,
        file=site.file,
        line=site.line,
        function=site.function,
        phase="backward" if node else "forward",
        node=node,
        why=why,
        instead=instead,
        allowed=_ALLOWED.get(),
        soft=soft,
    )
    __tracebackhide__ = True
    for recorder in recorders:
        recorder.add(event)
    for recorder in reversed(recorders):
        recorder.check()


def current_node() -> str:
    """Name of the autograd node that this thread runs; empty outside backward."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def allowed_reason() -> str | None:
    """The reason of the `allow_host_syncs` around the caller, if any."""
    return _ALLOWED.get()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """The detector's own waits: no block hears what the caller does in here."""
    before = _OPEN.get()
    _OPEN.set(())
    try:
        yield
    finally:
        _OPEN.set(before)


def launched(kernel: str) -> None:
    """Note a Triton launch in the caller's blocks."""
    for recorder in listening():
        recorder.launches.append(kernel)
