"""What the bench workloads share: the GPU's clock and memory, and what ran."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from nosync.measure.writing import Lines


def gpu() -> bool:
    """Is there a GPU? Without one a workload can only be a dry run."""
    return torch.cuda.is_available()


def wait() -> None:
    """Wait for the device, where there is one."""
    if gpu():
        torch.cuda.synchronize()


def host_ms(run: Callable[[], Any]) -> float:
    """Milliseconds of the host in a call, which need not wait for the device."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def wall_ms(run: Callable[[], Any]) -> float:
    """Milliseconds of a call to the end of what it queued."""
    wait()
    start = time.perf_counter()
    run()
    wait()
    return 1e3 * (time.perf_counter() - start)


def event_ms(run: Callable[[], Any]) -> float:
    """Milliseconds between two events around a call, on the device's clock."""
    if not gpu():
        return wall_ms(run)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def kernel_ms(run: Callable[[], Any]) -> float:
    """Milliseconds that the device was at work on what a call queued: its kernels and copies, summed."""
    wait()
    if not gpu():
        return wall_ms(run)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    on_device = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.time_range.elapsed_us() for event in on_device) / 1e3


def tell_setting(lines: Lines, package: str, *modules: str) -> None:
    """Which package was imported from where, the versions of what ran, and the device."""
    module = importlib.import_module(package)
    lines.write(imported=getattr(module, "__file__", None) or next(iter(module.__path__)))
    tell_versions(lines, *modules)


def tell_versions(lines: Lines, *modules: str, more: dict[str, str] | None = None) -> None:
    """The versions of what ran, the device, and what else of the setting bears on the numbers."""
    versions = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if gpu() else "cpu"}
    for name in modules:
        versions[name] = importlib.import_module(name).__version__
    lines.write(versions=versions | (more or {}))


def tell_memory(lines: Lines) -> None:
    """The most device memory that was allocated."""
    if gpu():
        lines.write(memory=torch.cuda.max_memory_allocated())
