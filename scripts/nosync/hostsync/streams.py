"""Streams and events of the virtual device: stand-ins for ``torch.cuda.Stream`` and ``torch.cuda.Event``.

They carry no work. They say what the host has waited for (see `nosync.hostsync.timeline`) and report explicit waits.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .hints import sync_free_form
from .recorder import record
from .timeline import TIMELINE, Clock

_ids = itertools.count(1)
_here = threading.local()


def _explicit(operator: str, why: str) -> None:
    record(operator, "explicit", why=why, instead=sync_free_form(operator, "explicit"))


class Event:
    """A point on a stream. Work on the virtual device is complete at once, so `query` is True."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._clock: Clock | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._clock = TIMELINE.stream_clock((stream or current()).id)

    def wait(self, stream: Stream | None = None) -> None:
        if self._clock is not None:
            TIMELINE.stream_waits((stream or current()).id, self._clock)

    def query(self) -> bool:
        if self._clock is not None:
            TIMELINE.host_waits(self._clock)
        return True

    def synchronize(self) -> None:
        _explicit("event.synchronize", "the host waits for the event")
        if self._clock is not None:
            TIMELINE.host_waits(self._clock)

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class Stream:
    """A queue of device work."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device, self.priority = torch.device("cuda", 0), priority
        self.id = next(_ids)
        self.cuda_stream = self.id
        self.stream_id = self.id
        self.device_index = 0
        self._before: list[Stream] = []

    def synchronize(self) -> None:
        _explicit("stream.synchronize", "the host waits for all work on the stream")
        TIMELINE.host_waits_for_stream(self.id)

    def query(self) -> bool:
        TIMELINE.host_waits_for_stream(self.id)
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Stream) -> None:
        TIMELINE.stream_waits(self.id, TIMELINE.stream_clock(stream.id))

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before.append(current())
        set_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_current(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


DEFAULT = Stream()


def current(device: Any = None) -> Stream:
    """The calling thread's current stream."""
    return getattr(_here, "stream", DEFAULT)


def current_id() -> int:
    """Its number."""
    return current().id


def set_current(stream: Stream) -> None:
    """Make the stream the calling thread's current one."""
    _here.stream = stream


@contextlib.contextmanager
def on(stream: Stream | None) -> Iterator[None]:
    """``torch.cuda.stream(s)``."""
    if stream is None:
        yield
        return
    with stream:
        yield


def synchronize_device(device: Any = None) -> None:
    """``torch.cuda.synchronize()``."""
    _explicit("torch.cuda.synchronize", "the host waits for all work on the device")
    TIMELINE.host_waits_for_all()
