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

from .api import allow_host_syncs, device, forbid_host_syncs, host_syncs, use_backend, value
from .events import Event, HostSyncError
from .recorder import Recorder
from .sites import skipping

__all__ = [
    "Event",
    "HostSyncError",
    "Recorder",
    "allow_host_syncs",
    "device",
    "forbid_host_syncs",
    "host_syncs",
    "skipping",
    "use_backend",
    "value",
]
