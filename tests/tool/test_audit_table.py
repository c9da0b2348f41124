"""The audit's table: three counters side by side."""

from __future__ import annotations

from typing import Any

from nosync.auditing import side_by_side


def site(line: int, waits: int, kind: str = "read", **more: Any) -> dict[str, Any]:
    fields = {"file": "/tree/loss.py", "line": line, "operator": "aten::item", "phase": "forward"}
    return fields | {"kind": kind, "waits": waits, "blocked_ms": 0.0, "profiler": 0} | more


def test_sites_of_the_detector_and_of_a_gpu_meet() -> None:
    detected = [site(1, 2), site(2, 1)]
    on_gpu = [site(1, 2, profiler=2, blocked_ms=1.5), site(3, 4, kind="library", profiler=4, blocked_ms=3.0)]
    rows = side_by_side(detected, on_gpu)
    shown = [tuple(row.get(name) for name in ("where", "detector", "sync_debug", "profiler")) for row in rows]
    assert shown == [("loss.py:3", 0, 0, 4), ("loss.py:1", 2, 2, 2), ("loss.py:2", 1, 0, None)]


def test_without_a_gpu_there_is_the_detector_alone() -> None:
    (row,) = side_by_side([site(1, 2)], None)
    assert row["detector"] == 2
    assert not {"sync_debug", "profiler", "blocked_ms"} & row.keys()
