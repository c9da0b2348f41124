"""Running pytest in the libraries' environment and reading back what each test did."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nosync.errors import NosyncError
from nosync.layout import Layout

FILE_VARIABLE = "NOSYNC_RESULTS_FILE"  # where nosync.pytest_results writes, in the process that runs pytest
BAD = ("failed", "error", "xpassed")


@dataclass(frozen=True)
class Run:
    """One pytest run: outcome by node id, reasons of those that did not pass, the exit code, seconds.

    ``broken`` says why the run itself did not finish (a crash, a time-out, a bad argument), else it is empty.
    """

    outcomes: dict[str, str]
    reasons: dict[str, str]
    code: int
    seconds: float
    broken: str

    def having(self, *words: str) -> list[str]:
        return [test for test, outcome in self.outcomes.items() if outcome in words]

    @property
    def bad(self) -> list[str]:
        return self.having(*BAD)

    def counts(self) -> str:
        """E.g. ``12 passed, 1 skipped``."""
        count = Counter(self.outcomes.values())
        return ", ".join(f"{number} {word}" for word, number in sorted(count.items())) or "no tests"

    @property
    def good(self) -> bool:
        """Whether it ended, with tests, and none of them is bad."""
        return not self.broken and not self.bad and bool(self.outcomes)

    def skip_reasons(self) -> list[str]:
        """Each reason with how many tests it skipped."""
        count = Counter(self.reasons.get(test, "") for test in self.having("skipped"))
        return [f"{number} skipped: {reason}" for reason, number in sorted(count.items())]


def test_results(layout: Layout, project: str, base: str) -> dict[str, str]:
    """The last ``make test-<project>`` on that base, as ``own`` and ``ours``; empty when there was none."""
    try:
        summary = json.loads(layout.test_results(project, base).read_text(encoding="utf-8"))["summary"]
        return {"own": str(summary["own"]), "ours": str(summary["ours"])}
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return {}


def libraries_python(needs: str = "torch, pytest") -> str:
    """The interpreter that runs upstream code, as the Makefile names it.

    Args:
        needs: What it must be able to import.

    Raises:
        NosyncError: it is not set, or does not run.
    """
    python = os.environ.get("NOSYNC_PYTHON", "")
    if not python:
        raise NosyncError("NOSYNC_PYTHON is not set", "the tool was not started by make", "make test-<project>")
    done = subprocess.run([python, "-c", f"import {needs}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NosyncError(
            f"{python} cannot import {needs}", "PYTHON names an interpreter without them",
            "make libs", done.stderr[-500:],
        )  # fmt: skip
    return python


def has_gpu(python: str) -> bool:
    done = subprocess.run([python, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"], check=False)
    return done.returncode == 0


def run_pytest(
    python: str, arguments: list[str], cwd: Path, environment: dict[str, str], minutes: int, quiet: bool
) -> Run:
    """Run pytest to its end; its output goes to standard error unless ``quiet``: standard output is the report's."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results"
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment | {FILE_VARIABLE: str(file)}
        argv = [python, "-m", "pytest", "-p", "nosync.pytest_results", "-p", "no:cacheprovider", *arguments]
        start = time.monotonic()
        try:
            done = subprocess.run(
                argv, cwd=cwd, env=env, timeout=minutes * 60, check=False, text=True,
                stdout=subprocess.PIPE if quiet else 2, stderr=subprocess.STDOUT,
            )  # fmt: skip
            code, output = done.returncode, done.stdout or ""
        except subprocess.TimeoutExpired:
            code, output = -1, f"no end after {minutes} minutes"
        return _read(file, code, time.monotonic() - start, output)


def _read(file: Path, code: int, seconds: float, output: str) -> Run:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    outcomes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    finished = False
    for entry in lines:
        finished |= entry["outcome"] == "finished"
        # a tear-down that fails outweighs the call that passed before it
        if entry["test"] and outcomes.get(entry["test"]) not in BAD:
            outcomes[entry["test"]] = entry["outcome"]
            reasons[entry["test"]] = entry["reason"]
    # pytest: 0 all passed, 1 some failed, 5 nothing collected; anything else is no verdict on the tests
    broken = "" if finished and code in (0, 1, 5) else f"pytest ended with {code}: {_tail(output)}"
    return Run(outcomes, reasons, code, seconds, broken)


def _tail(output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "see its output above"
