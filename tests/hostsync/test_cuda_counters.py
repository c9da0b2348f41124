"""The counters of the ``cuda`` backend on a stubbed driver: who counts what, on which thread."""

from __future__ import annotations

import contextlib
import json
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nosync.hostsync import (
    Event,
    HostSyncError,
    allow_host_syncs,
    cuda,
    forbid_host_syncs,
    host_syncs,
    profiling,
)
from nosync.hostsync.recorder import Recorder
from nosync.hostsync.sites import Site

_library = torch.library.Library("hostsync_fake", "DEF")
_library.define("waits(Tensor x) -> Tensor")


class Driver:
    """Stands for the CUDA runtime: a wait on the stream warns, as torch's does."""

    def __init__(self) -> None:
        self.mode = 0

    def set_mode(self, mode: Any) -> None:
        self.mode = {"warn": 1}.get(mode, mode)

    def wait(self) -> None:
        if self.mode:
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=2)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(cuda, "REAL_CUDA", lambda: True)
    monkeypatch.setattr(cuda, "registered", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: torch._C._cuda_synchronize())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: driver.mode)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", driver.set_mode)
    with torch.library._scoped_library("hostsync_fake", "IMPL") as library:
        library.impl("waits", lambda x: (driver.wait(), x.clone())[1], "CPU")
        yield driver


def waits() -> torch.Tensor:
    return torch.ops.hostsync_fake.waits(torch.ones(3))


@pytest.mark.parametrize("action", ["always", "ignore", "default"])
def test_sync_debug_is_counted_under_any_filter(driver: Driver, action: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with host_syncs("cuda") as syncs:
            for _ in range(3):
                waits()
    assert (syncs.count, syncs.cross_checks) == (3, {"sync_debug": 3})
    assert {event.operator for event in syncs.events} == {"hostsync_fake::waits"}
    assert driver.mode == 0


def test_inside_warning_capture(driver: Driver) -> None:
    with host_syncs("cuda") as syncs, pytest.warns(UserWarning, match="mine") as caught:
        warnings.warn("mine", stacklevel=1)
        waits()
    assert syncs.cross_checks == {"sync_debug": 1}
    assert len(caught) == 1


def test_explicit_waits_are_seen_where_sync_debug_is_blind(driver: Driver) -> None:
    with host_syncs("cuda") as syncs:
        torch.cuda.synchronize()
    assert [event.kind for event in syncs.events] == ["explicit"]
    assert "the counters disagree: recorded 1, sync_debug 0" in syncs.table()


def test_forbid_raises_at_the_operator(driver: Driver) -> None:
    reached = []
    with pytest.raises(HostSyncError), forbid_host_syncs("cuda"):
        with contextlib.suppress(Exception):
            waits()
        reached.append(1)
    assert not reached


def test_allowed_counts_nowhere(driver: Driver) -> None:
    with host_syncs("cuda") as syncs, allow_host_syncs("log"):
        waits()
    assert (syncs.count, syncs.cross_checks) == (0, {"sync_debug": 0})


def test_another_thread_neither_trips_nor_prints(driver: Driver) -> None:
    with warnings.catch_warnings(record=True) as caught, forbid_host_syncs("cuda"):
        warnings.simplefilter("always")
        thread = threading.Thread(target=waits)
        thread.start()
        thread.join()
    assert not caught


def test_nested_blocks_do_not_count_the_detectors_own_waits(driver: Driver) -> None:
    with host_syncs("cuda") as outer, host_syncs("cuda") as inner:
        waits()
    assert (outer.count, inner.count) == (1, 1)


def test_blocks_of_tasks_may_interleave(driver: Driver) -> None:
    first, second = host_syncs("cuda"), host_syncs("cuda")
    one = first.__enter__()
    two = second.__enter__()
    first.__exit__(None, None, None)
    waits()
    second.__exit__(None, None, None)
    assert one is not None
    assert two is not None
    assert (one.count, two.count) == (0, 1)
    assert driver.mode == 0
    assert torch._C._is_multithreading_enabled()


def test_a_compiled_function_stays_compiled(driver: Driver) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda a: a * 2, backend=backend, fullgraph=True)
    with host_syncs("cuda"):
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(graphs) == 1


def test_a_process_that_used_the_virtual_device_is_refused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "registered", lambda: True)
    with pytest.raises(RuntimeError, match="process of its own"), host_syncs("cuda"):
        pass


def test_without_a_gpu_it_says_so() -> None:
    if cuda.REAL_CUDA():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="needs a GPU"), host_syncs("cuda"):
        pass
    with pytest.raises(RuntimeError, match="needs a GPU"):
        cuda.capturable(lambda: None)


# ------------------------------------------------------------------ what the profiler adds
def span(name: str, start: float, end: float, host: bool = True) -> Any:
    kind = torch.autograd.DeviceType.CPU if host else torch.autograd.DeviceType.CUDA
    return types.SimpleNamespace(name=name, device_type=kind, time_range=types.SimpleNamespace(start=start, end=end))


def label(operator: str, line: int, allowed: str | None = None) -> str:
    return profiling._LABEL + json.dumps([operator, "loss.py", line, "forward", allowed])


def test_a_wait_that_torch_did_not_announce_is_a_librarys() -> None:
    recorder = Recorder("cuda")
    recorder.add(Event("aten::item", "read", 1, "loss.py", 9, "forward"))
    profiling._evaluate(
        recorder,
        [
            span(profiling._REGION, 0, 100),
            span(label("aten::unique_dim", 7), 10, 60),
            span("cudaStreamSynchronize", 20, 30),
            span("cudaStreamSynchronize", 40, 42),
            span(label("aten::item", 9), 70, 95),
            span("cudaStreamSynchronize", 72, 92),
            span("Memcpy HtoD (Pageable -> Device)", 40, 41, host=False),
            span("cudaDeviceSynchronize", 200, 300),
        ],
    )
    hidden = [(event.operator, event.line, event.count) for event in recorder.events if event.kind == "library"]
    assert hidden == [("aten::unique_dim", 7, 2)]
    assert recorder.count == 3
    assert recorder.cross_checks == {"profiler": 3}
    assert recorder.pageable_copies == 1
    assert recorder.blocked_ms == {Site("loss.py", 7, "forward"): 0.012, Site("loss.py", 9, "forward"): 0.02}
    assert recorder.profiled == {Site("loss.py", 7, "forward"): 2, Site("loss.py", 9, "forward"): 1}


def test_the_timeline_has_the_block_its_waits_and_the_devices_work() -> None:
    """Times from the block's start; kernels back to back are one span, and work from before is left out."""
    recorder = Recorder("cuda")
    profiling._evaluate(
        recorder,
        [
            span("earlier", 900, 990, host=False),
            span(profiling._REGION, 1000, 2000),
            span(label("aten::item", 9), 1100, 1500),
            span("cudaStreamSynchronize", 1200, 1400),
            span("one", 1150, 1200, host=False),
            span("two", 1201, 1390, host=False),
            span("three", 2050, 2100, host=False),
        ],
    )
    assert recorder.spans == [
        ("host", 0.0, 1.0, "the block"),
        ("wait", 0.2, 0.2, "loss.py:9 aten::item"),
        ("device", 0.15, pytest.approx(0.24), "one"),
        ("device", 1.05, 0.05, "three"),
    ]


def test_a_hidden_wait_may_be_allowed() -> None:
    recorder = Recorder("cuda")
    profiling._evaluate(
        recorder,
        [
            span(profiling._REGION, 0, 100),
            span(label("aten::unique_dim", 7, "once an epoch"), 10, 60),
            span("cudaStreamSynchronize", 20, 30),
        ],
    )
    assert (recorder.count, recorder.cross_checks) == (0, {"profiler": 0})
    assert [event.allowed for event in recorder.events] == ["once an epoch"]
