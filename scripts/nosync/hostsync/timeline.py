"""What the host may read: streams, events and asynchronous copies of the virtual device, as vector clocks.

Nothing runs later on the virtual device. What is tracked is what the host *knows*: an asynchronous copy into a host
buffer is a tick of its stream; the buffer may be read once the host has waited for that tick, directly or through
an event or a stream that waited for it. Reading earlier is a race on a real device, reported as an event of kind
``race``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

Clock = dict[int, int]


def _merge(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        clock[stream] = max(clock.get(stream, 0), tick)


class _Copy(NamedTuple):
    """An asynchronous copy into a host buffer. Holds the storage, so that its address stays its own."""

    storage: torch.UntypedStorage
    first: int
    end: int
    stream: int
    tick: int

    def reaches(self, first: int, end: int) -> bool:
        return first < self.end and self.first < end


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The tensor's first byte in its storage, and the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    first = tensor.storage_offset()
    return first * tensor.element_size(), (first + last + 1) * tensor.element_size()


class Timeline:
    """Which asynchronous copies the host knows to be complete."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[int, Clock] = {}
        self._host: Clock = {}
        self._pending: dict[int, list[_Copy]] = {}  # by the address of the storage

    @property
    def waiting(self) -> bool:
        """Whether a copy is queued that the host has not waited for."""
        return bool(self._pending)

    def copy_started(self, host: torch.Tensor, stream: int) -> None:
        """An asynchronous copy into the host tensor is queued on the stream."""
        storage = host.untyped_storage()
        first, end = _bytes_of(host)
        with self._lock:
            clock = self._streams.setdefault(stream, {})
            clock[stream] = clock.get(stream, 0) + 1
            copy = _Copy(storage, first, end, stream, clock[stream])
            self._pending.setdefault(storage.data_ptr(), []).append(copy)

    def stream_clock(self, stream: int) -> Clock:
        """What is queued on the stream so far (for an event recorded now)."""
        with self._lock:
            return dict(self._streams.get(stream, {}))

    def stream_waits(self, stream: int, clock: Clock) -> None:
        """The stream's later work runs after the clock."""
        with self._lock:
            _merge(self._streams.setdefault(stream, {}), clock)

    def host_waits(self, clock: Clock) -> None:
        """The host has waited for the clock."""
        with self._lock:
            _merge(self._host, clock)
            left = {
                address: [copy for copy in copies if self._host.get(copy.stream, 0) < copy.tick]
                for address, copies in self._pending.items()
            }
            self._pending = {address: copies for address, copies in left.items() if copies}

    def host_waits_for_stream(self, stream: int) -> None:
        """A blocking operator on the stream, or the stream's synchronize."""
        if self._pending:
            self.host_waits(self.stream_clock(stream))

    def host_waits_for_all(self) -> None:
        """The device's synchronize."""
        with self._lock:
            self._pending.clear()
            for clock in self._streams.values():
                _merge(self._host, clock)

    def unfinished(self, leaves: Iterable[Any], reader: int | None = None) -> bool:
        """Whether a host tensor among the leaves has bytes of a copy that the reader has not waited for.

        Args:
            reader: The stream that reads (or writes) them; None: the host.
        """
        if not self._pending:
            return False
        known = self._host if reader is None else self.stream_clock(reader)
        return any(
            isinstance(leaf, torch.Tensor)
            and leaf.device.type == "cpu"
            and leaf.layout is torch.strided
            and leaf.numel() > 0
            and self._has_pending_bytes(leaf, known)
            for leaf in leaves
        )

    def _has_pending_bytes(self, host: torch.Tensor, known: Clock) -> bool:
        copies = self._pending.get(host.untyped_storage().data_ptr(), ())
        return any(known.get(copy.stream, 0) < copy.tick and copy.reaches(*_bytes_of(host)) for copy in copies)


TIMELINE = Timeline()

_PINNED = WeakIdKeyDictionary()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Declare a host tensor page-locked; returns it."""
    _PINNED[tensor.untyped_storage()] = True
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the host tensor's storage was declared page-locked."""
    return tensor.layout is torch.strided and tensor.untyped_storage() in _PINNED
