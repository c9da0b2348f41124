"""The machine that measured, and whether its GPUs were ours alone: those that ``CUDA_VISIBLE_DEVICES`` leaves."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

BUSY_PERCENT = 5
SETTLE_SECONDS = 15.0  # utilisation is an average over the last second, and a process takes a moment to leave

Query = Callable[[str, str], list[list[str]]]


class BusyGpu(RuntimeError):
    """Something else runs on the device."""


def describe() -> dict[str, Any]:
    """Host, processors, memory, GPUs and their driver; nothing that names the host itself."""
    gpus = query("--query-gpu", "name,driver_version,memory.total")
    others = len(_rows("--query-gpu", "name", None)) - len(gpus)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processors": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "gpus": [row[0] for row in gpus],
        "driver": gpus[0][1] if gpus else "",
    } | ({"gpus_left_to_others": others} if others else {})


def cards(description: dict[str, Any]) -> str:
    """E.g. ``2 × NVIDIA H200``."""
    names = description["gpus"]
    each = [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return ", ".join(each) or "no GPU"


def gpus(description: dict[str, Any]) -> str:
    """The cards, their driver, and how many more the host has that were not visible to the run."""
    driver, others = description.get("driver"), description.get("gpus_left_to_others")
    text = cards(description) + (f", driver {driver}" if driver else "")
    return text + (f"; {others} more in its host, which others may have used" if others else "")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def short_name(description: dict[str, Any]) -> str:
    """``h200`` or ``h200-x2``, for file names; ``cpu`` without a GPU."""
    names = description["gpus"]
    if not names:
        return "cpu"
    word = names[0].removeprefix("NVIDIA").strip().split()[0].lower()
    return word if len(names) == 1 else f"{word}-x{len(names)}"


def query(what: str, columns: str) -> list[list[str]]:
    """Rows of ``nvidia-smi`` about the GPUs that are visible; none where there is no such program or no GPU."""
    return _rows(what, columns, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _rows(what: str, columns: str, visible: str | None) -> list[list[str]]:
    """``visible`` as in ``CUDA_VISIBLE_DEVICES``, indices in the order of the PCI bus; None: all."""
    if visible == "" or shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", f"{what}={columns}", "--format=csv,noheader,nounits"]
    argv += [f"--id={visible}"] if visible else []
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def busy(ask: Query = query) -> str:
    """What runs on the GPUs now, in words; empty if nothing does. Call it when no process of ours is on them."""
    apps = ask("--query-compute-apps", "pid,used_memory")
    loads = [row for row in ask("--query-gpu", "index,utilization.gpu") if row[1].isdigit()]
    said = [f"{len(apps)} other process{'es' if len(apps) > 1 else ''} on the GPU"] if apps else []
    said += [f"GPU {index} at {load} %" for index, load in loads if int(load) > BUSY_PERCENT]
    return ", ".join(said)


def wait_until_idle(seconds: float = SETTLE_SECONDS, ask: Query = query) -> None:
    """Return once the GPUs are idle.

    Raises:
        BusyGpu: they are not, after ``seconds``.
    """
    end = time.monotonic() + seconds
    while said := busy(ask):
        if time.monotonic() >= end:
            raise BusyGpu(said)
        time.sleep(min(0.5, seconds))
