"""What could not be reached lately, so that the next runs do not wait for it again.

A file under ``build/``; an answer counts for ten minutes, and not for a run that asks by name.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from nosync.layout import Layout

SECONDS = 600


def remembered(layout: Layout, what: str) -> str:
    """Why ``what`` could not be reached within the last ten minutes, or an empty string."""
    entry = _read(layout).get(what)
    if not entry:
        return ""
    age = time.time() - entry["at"]
    return f"{entry['reason']} {age / 60:.0f} min ago" if 0 <= age < SECONDS else ""


def remember(layout: Layout, what: str, reason: str) -> str:
    """Store the reason and return it."""
    _write(layout, _read(layout) | {what: {"reason": reason, "at": time.time()}})
    return reason


def forget(layout: Layout, what: str) -> None:
    entries = _read(layout)
    if entries.pop(what, None):
        _write(layout, entries)


def _read(layout: Layout) -> dict[str, dict[str, Any]]:
    try:
        body = json.loads((layout.build / "unreachable.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _write(layout: Layout, entries: dict[str, dict[str, Any]]) -> None:
    file = layout.build / "unreachable.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    os.replace(partial, file)
