"""One run of a workload: a process of its own, alone on the device, and what it wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nosync.measure import machine
from nosync.measure.suite import Workload

GOOD, FAILED, BUSY, UNAVAILABLE = "good", "failed", "busy", "unavailable"
STEP = ("waits", "collectives")  # what a timed workload says of single steps, which need not be alike


@dataclass
class Run:
    """What one process did.

    Attributes:
        arm: The tree it ran on, as the workload names it.
        number: Its place among the runs of its arm.
        state: `GOOD`, `FAILED`, `BUSY` (the GPU was not ours alone) or `UNAVAILABLE`.
        reason: Why it is not good.
        lines: What it wrote, in order.
        wall_s: From its start to its exit.
        rss_mib: The largest resident set of it or one of its children.
    """

    arm: str
    number: int
    state: str = GOOD
    reason: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    wall_s: float = 0.0
    rss_mib: float = 0.0

    def values(self, kind: str) -> dict[str, list[Any]]:
        """``kind`` (ms, count, value) by quantity, in order; of lines that name no arm."""
        found: dict[str, list[Any]] = {}
        for line in self.lines:
            if kind in line and line.get("arm") is None:
                found.setdefault(line["quantity"], []).append(line[kind])
        return found

    def last(self, key: str) -> Any:
        """The newest line's value of a key, or None."""
        return next((line[key] for line in reversed(self.lines) if key in line), None)

    def summary(self) -> dict[str, Any]:
        """For the report."""
        kept: dict[str, Any] = {"arm": self.arm, "run": self.number, "state": self.state}
        kept |= {"reason": self.reason} if self.reason else {}
        memory = self.last("memory")
        steps = {word: found for word in STEP if (found := [line[word] for line in self.lines if word in line])}
        kept |= {
            "wall_s": round(self.wall_s, 2),
            "host_rss_mib": round(self.rss_mib),
            "device_memory_mib": None if memory is None else round(memory / 2**20),
        }
        return kept | ({"steps": steps} if steps else {})


@dataclass(frozen=True)
class Runner:
    """How workloads are started.

    Args:
        python: The interpreter.
        trees: Source roots by arm.
        path: More folders for PYTHONPATH, behind the tree's.
        smoke: Ask workloads for a dry run.
        settle_s: How long to wait for an idle GPU before each run.
    """

    python: str
    trees: Mapping[str, Path]
    path: Sequence[Path] = ()
    smoke: bool = False
    settle_s: float = machine.SETTLE_SECONDS

    def run(self, workload: Workload, arm: str, number: int, recording: Path | None = None) -> Run:
        """Run the workload once; never raises for what the workload or another user of the device does."""
        run = Run(arm, number)
        if not self._idle(run, "before"):
            return run
        with tempfile.TemporaryDirectory() as folder:
            self._start(run, workload, Path(folder), recording)
        if run.state == GOOD:
            self._idle(run, "after")
        return run

    def _idle(self, run: Run, when: str) -> bool:
        try:
            machine.wait_until_idle(self.settle_s)
        except machine.BusyGpu as busy:
            run.state, run.reason = BUSY, f"{busy} {when} the run"
            return False
        return True

    def _start(self, run: Run, workload: Workload, folder: Path, recording: Path | None) -> None:
        out, log = folder / "lines", folder / "log"
        start = time.monotonic()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                self._argv(workload, run.arm, out, recording), env=self._environment(workload, run.arm),
                stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            late = _stop_after(process, workload.minutes * 60)
            try:
                _, status, usage = os.wait4(process.pid, 0)
            finally:
                late.cancel()
                _kill_group(process.pid)  # what a workload left behind must not run beside the next one
        process.returncode = os.waitstatus_to_exitcode(status)
        run.wall_s, run.rss_mib = time.monotonic() - start, usage.ru_maxrss / 1024
        broken = _read(out, run)
        _judge(run, workload, process.returncode, broken, log, self.trees[run.arm])

    def _argv(self, workload: Workload, arm: str, out: Path, recording: Path | None) -> list[str]:
        argv = [self.python, str(workload.script), "--mode", workload.kind, "--out", str(out)]
        argv += ["--tree", str(self.trees[arm])]
        if workload.kind == "both":
            argv += ["--patched-tree", str(self.trees[workload.arms[1]])]
        if recording is not None:
            argv += ["--recording", str(recording)]
        return argv + (["--smoke"] if self.smoke else []) + list(workload.arguments)

    def _environment(self, workload: Workload, arm: str) -> dict[str, str]:
        path = [self.trees[arm], workload.script.parent, *self.path, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # that of nvidia-smi, which says whether the visible ones are idle
            **workload.environment,
        }


def _stop_after(process: subprocess.Popen[bytes], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, _kill_group, [process.pid])
    timer.daemon = True
    timer.start()
    return timer


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _read(out: Path, run: Run) -> str:
    """Take the lines; returns what is wrong with them."""
    if not out.exists():
        return "it wrote nothing"
    for line in out.read_text(encoding="utf-8").splitlines():
        try:
            run.lines.append(json.loads(line))
        except ValueError:
            return f"not a JSON line: {line[:80]}"
    return "" if run.last("end") else "it broke off"


def _judge(run: Run, workload: Workload, code: int, broken: str, log: Path, tree: Path) -> None:
    imported = run.last("imported")
    if unavailable := run.last("unavailable"):
        run.state, run.reason = UNAVAILABLE, unavailable
    elif code == -signal.SIGKILL and run.wall_s >= workload.minutes * 60:
        run.state, run.reason = FAILED, f"no end after {workload.minutes:g} minutes"
    elif code or broken:
        run.state, run.reason = FAILED, f"exit {code}, {broken or 'after its last line'}: {_tail(log)}"
    elif wrong := run.last("wrong"):
        run.state, run.reason = FAILED, wrong
    elif imported and not Path(imported).resolve().is_relative_to(tree.resolve()):
        run.state, run.reason = FAILED, f"it imported {imported}, which is not in the tree"


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or "no output"
