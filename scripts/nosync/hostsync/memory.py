"""Stand-ins for the memory statistics of ``torch.cuda`` and ``torch.accelerator``: nothing is ever allocated."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

TOTAL = 80 << 30
"""Bytes that the device says it has."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _statistics(*args: Any, **kwargs: Any) -> dict[str, int]:
    return defaultdict(int)


def _free_and_total(*args: Any) -> tuple[int, int]:
    return TOTAL, TOTAL


ACCELERATOR: dict[str, Any] = {
    "memory_allocated": _zero,
    "max_memory_allocated": _zero,
    "memory_reserved": _zero,
    "max_memory_reserved": _zero,
    "memory_stats": _statistics,
    "get_memory_info": _free_and_total,
    "reset_peak_memory_stats": _nothing,
    "reset_accumulated_memory_stats": _nothing,
    "empty_cache": _nothing,
    "empty_host_cache": _nothing,
}

CUDA: dict[str, Any] = {
    **ACCELERATOR,
    "memory_summary": lambda *args, **kwargs: "",
    "mem_get_info": _free_and_total,
    "host_memory_stats": _statistics,
    "device_memory_used": _zero,
    "reset_max_memory_allocated": _nothing,
    "reset_max_memory_cached": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "get_per_process_memory_fraction": lambda *args: 1.0,
}
