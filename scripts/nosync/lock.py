"""One run at a time on ``build/``: the second waits and says for whom, or gives up and says so."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nosync.errors import NosyncError


@contextmanager
def exclusive(path: Path, purpose: str, patience: float = 120.0) -> Iterator[None]:
    """Hold the lock file ``path`` for the block.

    The kernel drops the lock with the process, so a killed run leaves nothing to clean.

    Args:
        purpose: What this run does; shown to a second run that waits.
        patience: Seconds to wait before giving up.

    Raises:
        NosyncError: the lock was not free in time, or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "a+")  # noqa: SIM115 - closed below, after the lock is dropped
    except OSError as error:
        raise NosyncError(f"cannot write {path}: {error.strerror}", "a read-only checkout or a full disk") from None
    with handle:
        _acquire(handle, path, patience)
        handle.seek(0)
        handle.truncate()
        handle.write(f"process {os.getpid()} ({purpose})")
        handle.flush()
        try:
            yield
        finally:
            handle.truncate(0)


def _acquire(handle, path: Path, patience: float) -> None:  # type: ignore[no-untyped-def]
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "another run"
        if time.monotonic() > deadline:
            raise NosyncError(
                f"{path} is held by {holder}", "another run works on build/", "wait for it, then run again"
            )
        if not told:
            print(f"waiting for {holder}", file=sys.stderr)
            told = True
        time.sleep(0.1)
