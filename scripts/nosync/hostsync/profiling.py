"""The profiler's view of one block: every synchronize call of the CUDA runtime, with the place that made it.

While a block is profiled, each operator and each explicit wait runs inside a label that names it and its call site.
Synchronize calls beyond those that torch announced were made by libraries below it.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .events import Event
from .recorder import Recorder, allowed_reason, unheard
from .sites import UNKNOWN, Site, user_site

SYNC_CALLS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
)
"""Runtime and driver calls in which the host waits."""

_GAP_MS = 0.002  # shorter ones between kernels cannot be seen in a picture of a step

_REGION = "nosync.region"
_LABEL = "nosync.op "

_active: list[Recorder] = []


class _Label(NamedTuple):
    """What ran around a synchronize call."""

    operator: str
    site: Site
    allowed: str | None


@contextlib.contextmanager
def operator_label(operator: str) -> Iterator[None]:
    """Label what runs inside with the operator and its call site, where a block is profiled."""
    if not _active:
        yield
        return
    with torch.profiler.record_function(_LABEL + json.dumps([operator, *user_site(), allowed_reason()])):
        yield


@contextlib.contextmanager
def profiling(recorder: Recorder) -> Iterator[None]:
    """Profile the block; afterwards add hidden waits, the profiler's count and blocked time to the recorder. Does
    nothing inside a block that is profiled already."""
    if _active:
        yield
        return
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        with unheard():
            torch.cuda.synchronize()
        try:
            with torch.profiler.record_function(_REGION):
                _active.append(recorder)
                try:
                    yield
                finally:
                    _active.remove(recorder)
        finally:
            with unheard():
                torch.cuda.synchronize()
    _evaluate(recorder, profile.events())


def _evaluate(recorder: Recorder, events: Any) -> None:
    on_cpu = torch.autograd.DeviceType.CPU
    region = next((event for event in events if event.name == _REGION and event.device_type == on_cpu), None)
    if region is None:
        return
    inside = sorted((e for e in events if _within(e, region)), key=lambda e: e.time_range.start)
    labels = [event for event in inside if event.name.startswith(_LABEL) and event.device_type == on_cpu]
    starts = [label.time_range.start for label in labels]
    calls = [(event, _around(labels, starts, event)) for event in inside if event.name.startswith(SYNC_CALLS)]
    recorder.cross_checks["profiler"] = sum(label.allowed is None for _, label in calls)
    recorder.pageable_copies = sum("Memcpy" in event.name and "Pageable" in event.name for event in inside)
    for call, label in calls:
        recorder.add_blocked(label.site, (call.time_range.end - call.time_range.start) / 1000)
    recorder.spans = _spans(region, calls, events)
    for label, call_name, count in _hidden(recorder, calls):
        recorder.add(_library_wait(label, call_name, count))


def _spans(region: Any, calls: list[tuple[Any, _Label]], events: Any) -> list[tuple[str, float, float, str]]:
    """The block, its waits, and what the device did of it; kernels without a gap between them are one span."""
    zero = region.time_range.start
    spans = [("host", 0.0, (region.time_range.end - zero) / 1000, "the block")]
    for call, label in calls:
        where = f"{os.path.basename(label.site.file)}:{label.site.line} {label.operator}"
        spans.append(("wait", *_place(call, zero), where))
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA and e.time_range.start >= zero]
    work: list[tuple[str, float, float, str]] = []
    for event in sorted(on_device, key=lambda event: event.time_range.start):
        start, length = _place(event, zero)
        if work and start - work[-1][1] - work[-1][2] <= _GAP_MS:
            _, first, _, name = work.pop()
            work.append(("device", first, start + length - first, name))
        else:
            work.append(("device", start, length, event.name[:60]))
    return spans + work


def _place(event: Any, zero: float) -> tuple[float, float]:
    return (event.time_range.start - zero) / 1000, (event.time_range.end - event.time_range.start) / 1000


def _within(event: Any, region: Any) -> bool:
    return region.time_range.start <= event.time_range.start <= region.time_range.end


def _around(labels: list[Any], starts: list[float], call: Any) -> _Label:
    """The innermost of the labels, which are sorted by their starts, around a call."""
    at = call.time_range.start
    before = labels[: bisect.bisect_right(starts, at)]
    label = next((label for label in reversed(before) if at <= label.time_range.end), None)
    if label is None:
        return _Label("", UNKNOWN, None)
    operator, *site, allowed = json.loads(label.name[len(_LABEL) :])
    return _Label(operator, Site(*site), allowed)


def _hidden(recorder: Recorder, calls: list[tuple[Any, _Label]]) -> list[tuple[_Label, str, int]]:
    """(label, runtime call, number) of the calls that no event announced, where the most are missing first."""
    announced: Counter[tuple[str, int, str]] = Counter()
    for event in recorder.events:
        if not event.soft:
            announced[(event.file, event.line, event.operator)] += event.count
    missing = len(calls) - announced.total()
    seen = Counter(label for _, label in calls)
    names = {label: call.name for call, label in calls}
    excess = {label: n - announced[(label.site.file, label.site.line, label.operator)] for label, n in seen.items()}
    found = []
    for label, more in sorted(excess.items(), key=lambda item: -item[1]):
        count = min(more, missing)
        if count > 0:
            found.append((label, names[label], count))
            missing -= count
    return found


def _library_wait(label: _Label, call: str, count: int) -> Event:
    return Event(
        operator=label.operator or call,
        kind="library",
        count=count,
        file=label.site.file,
        line=label.site.line,
        function=label.site.function,
        why=f"{call}, which torch does not announce; seen by the profiler",
        allowed=label.allowed,
    )
