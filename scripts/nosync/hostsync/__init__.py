"""Find the places where Python waits for the device, with a GPU and without.

    with host_syncs() as syncs:          # record
        step(model, batch)
    print(syncs.table())

    with forbid_host_syncs():            # fail at the first one
        step(model, batch)

    with allow_host_syncs("the log line, every 100 steps"):
        print(loss.item())

Works without a GPU on the virtual device (real values on the CPU, see docs/hostsync.md), and on a real one. It
knows nothing of projects or patches and needs torch only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import allow_host_syncs, device, forbid_host_syncs, host_syncs, use_backend, value
    from .cuda import capturable
    from .events import Event, HostSyncError
    from .recorder import Recorder
    from .sites import skipping

_HOME = {
    "Event": "events",
    "HostSyncError": "events",
    "Recorder": "recorder",
    "allow_host_syncs": "api",
    "capturable": "cuda",
    "device": "api",
    "forbid_host_syncs": "api",
    "host_syncs": "api",
    "skipping": "sites",
    "use_backend": "api",
    "value": "api",
}

__all__ = [
    "Event",
    "HostSyncError",
    "Recorder",
    "allow_host_syncs",
    "capturable",
    "device",
    "forbid_host_syncs",
    "host_syncs",
    "skipping",
    "use_backend",
    "value",
]


def __getattr__(name: str) -> Any:
    """Import torch only when something is used: the pytest plugin is loaded in every run."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
