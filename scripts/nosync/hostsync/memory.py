"""Stand-ins for the memory statistics of ``torch.cuda`` and ``torch.accelerator``: nothing is ever allocated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

TOTAL = 80 << 30
"""Bytes that the device says it has."""


def always(value: Any) -> Callable[..., Any]:
    """A function of any arguments that returns the value."""
    return lambda *args, **kwargs: value


def _statistics(*args: Any, **kwargs: Any) -> dict[str, int]:
    return defaultdict(int)


ACCELERATOR: dict[str, Any] = {
    "memory_allocated": always(0),
    "max_memory_allocated": always(0),
    "memory_reserved": always(0),
    "max_memory_reserved": always(0),
    "memory_stats": _statistics,
    "get_memory_info": always((TOTAL, TOTAL)),
    "reset_peak_memory_stats": always(None),
    "reset_accumulated_memory_stats": always(None),
    "empty_cache": always(None),
    "empty_host_cache": always(None),
}

CUDA: dict[str, Any] = {
    **ACCELERATOR,
    "memory_summary": always(""),
    "mem_get_info": always((TOTAL, TOTAL)),
    "host_memory_stats": _statistics,
    "device_memory_used": always(0),
    "reset_max_memory_allocated": always(None),
    "reset_max_memory_cached": always(None),
    "set_per_process_memory_fraction": always(None),
    "get_per_process_memory_fraction": always(1.0),
}
