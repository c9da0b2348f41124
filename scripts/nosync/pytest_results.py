"""A pytest plugin that writes one JSON line per test: node id, outcome, reason.

Loaded by ``-p nosync.pytest_results`` into runs of upstream's tests, whose reporting is not ours to set up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from nosync.running import FILE_VARIABLE


def _write(entry: dict[str, str]) -> None:
    with open(os.environ[FILE_VARIABLE], "a", encoding="utf-8") as handle:
        handle.write(json.dumps(entry) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """One line a phase that decides: the call, or a set-up or tear-down that failed or skipped."""
    if report.when != "call" and report.outcome == "passed":
        return
    expected = hasattr(report, "wasxfail")
    outcome = (
        {"skipped": "xfailed", "passed": "xpassed"}.get(report.outcome, report.outcome) if expected else report.outcome
    )
    _write({"test": report.nodeid, "outcome": outcome, "reason": _reason(report)})


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is a failure of its own."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "reason": _last_line(str(report.longrepr))})


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    _write({"test": "", "outcome": "finished", "reason": str(session.exitstatus)})


def _reason(report: Any) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return _last_line(str(report.longrepr)) if report.failed else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")]
    return (errors or lines or [""])[-1 if not errors else 0].removeprefix("E").strip()[:300]
