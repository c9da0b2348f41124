"""Two gloo processes on this machine, forked, so that they need no second import of torch."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT = 60.0
"""Seconds after which a rank counts as hanging."""


def run_two_ranks(work: Callable[[int], Any], folder: Path, timeout: float = 30.0) -> list[dict[str, Any]]:
    """Call ``work(rank)`` in each of two processes of one gloo group.

    Args:
        work: Its result must be JSON. It may raise.
        folder: An empty folder for the rendezvous and the results.
        timeout: The group's timeout in seconds.

    Returns:
        Per rank ``{"result": …, "error": name of the exception or "", "seconds": …}``.

    Raises:
        AssertionError: a rank did not end within `LIMIT` seconds.
    """
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(work, rank, folder, timeout)) for rank in range(2)]
    for process in ranks:
        process.start()
    end = time.monotonic() + LIMIT
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    hanging = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    assert not hanging, f"ranks {hanging} hang"
    return [json.loads(_result(folder, rank).read_text()) for rank in range(2)]


def wait_for_result(folder: Path, rank: int) -> None:
    """Return once the rank has ended: what a rank does that has stopped to take part but is alive."""
    while not _result(folder, rank).exists():
        time.sleep(0.05)


def _result(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _rank(work: Callable[[int], Any], rank: int, folder: Path, timeout: float) -> None:
    import torch.distributed as dist

    store = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=timeout))
    start, result, error = time.monotonic(), None, ""
    try:
        result = work(rank)
        dist.barrier()
    except BaseException as raised:
        error = type(raised).__name__
    entry = {"result": result, "error": error, "seconds": time.monotonic() - start}
    unfinished = folder / f"rank{rank}.unfinished"
    unfinished.write_text(json.dumps(entry))
    unfinished.rename(_result(folder, rank))
    os._exit(0)  # no clean-up of a group whose other rank may be gone
