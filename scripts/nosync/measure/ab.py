"""Runs of a workload on two trees in turns, and what they give. A run that is not good leaves no number at all."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nosync.measure.runs import GOOD, Run, Runner
from nosync.measure.statistics import Comparison, compare
from nosync.measure.suite import Workload


@dataclass
class Measured:
    """What a workload gave.

    Attributes:
        state: ``measured``, or why there is no number: ``failed``, ``busy`` or ``unavailable``.
        reason: More about that; of a measured one, why it has fewer runs than were asked for.
        times: Per quantity, ms.
        means: Per quantity, ms: mean step of each arm, over all steps of all runs.
        counts: Per quantity, (base, patched).
        values: Per quantity of ``once``, (number, unit).
        equivalence: The protocol's outcome, for ``record``.
    """

    workload: Workload
    runs: list[Run] = field(default_factory=list)
    state: str = "measured"
    reason: str = ""
    times: dict[str, Comparison] = field(default_factory=dict)
    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, tuple[float, str]] = field(default_factory=dict)
    equivalence: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.state == "measured"

    def stop(self, state: str, reason: str) -> Measured:
        """Give the numbers up."""
        self.state, self.reason = state, reason
        self.times, self.means, self.counts, self.values, self.equivalence = {}, {}, {}, {}, {}
        return self


def measure(runner: Runner, workload: Workload, end: float = float("inf")) -> Measured:
    """Run a workload of any kind but ``record``, and summarise it.

    Args:
        end: On the monotonic clock: a round of runs that would not end before it is not begun, except for the first.
    """
    measured = Measured(workload)
    for arm, number in order(workload):
        if _short_of_time(measured, arm, number, end):
            measured.reason = f"{number} of {workload.runs} runs of each arm: there was no time for more"
            break
        run = runner.run(workload, arm, number)
        measured.runs.append(run)
        say(workload, run)
        if run.state != GOOD:
            return measured.stop(run.state, f"{arm}, run {number + 1}: {run.reason}")
    if workload.kind == "once":
        (run,) = measured.runs
        units = {line["quantity"]: line["unit"] for line in run.lines if "value" in line}
        measured.values = {name: (found[-1], units[name]) for name, found in run.values("value").items()}
    else:
        _summarise(measured)
    if measured.good and not (measured.times or measured.counts or measured.values):
        return measured.stop("failed", "it wrote no number")
    return measured


def _short_of_time(measured: Measured, arm: str, number: int, end: float) -> bool:
    """Before a round but the first: does a round, as long as the longest so far, not fit before the end?"""
    if not number or arm != measured.workload.arms[0]:
        return False
    walls = [run.wall_s for run in measured.runs]
    longest = max(base + patched for base, patched in zip(walls[::2], walls[1::2], strict=True))
    return time.monotonic() + longest > end


def order(workload: Workload) -> Iterable[tuple[str, int]]:
    """The runs: (arm, number), arms in turns."""
    base, patched = workload.arms
    if workload.kind in ("once", "both"):
        return [(patched if workload.kind == "once" else base, 0)]
    runs = workload.runs if workload.kind == "time" else 1
    return [(arm, number) for number in range(runs) for arm in (base, patched)]


def say(workload: Workload, run: Run) -> None:
    """One line on standard error."""
    medians = {name: statistics.median(ms) for name, ms in run.values("ms").items()}
    shown = ", ".join(f"{name} {ms:.4g} ms" for name, ms in list(medians.items())[:3])
    said = shown if run.state == GOOD else f"{run.state}: {run.reason}"
    print(f"{workload.name}: {run.arm} {run.number + 1}: {run.wall_s:.0f} s  {said}", file=sys.stderr, flush=True)


def _summarise(measured: Measured) -> None:
    """Times and counts by quantity. A quantity that one run lacks makes the whole workload fail."""
    base, patched = _of_arms(measured, "ms")
    if _incomplete(measured, "ms", [*base, *patched]):
        return
    for name in base[0] if base else ():
        kept = [[_kept(run[name], measured.workload.warm_up) for run in arm] for arm in (base, patched)]
        measured.times[name] = compare(*([statistics.median(steps) for steps in arm] for arm in kept))
        mean_base, mean_patched = (statistics.fmean(ms for steps in arm for ms in steps) for arm in kept)
        measured.means[name] = (mean_base, mean_patched)
    base, patched = _of_arms(measured, "count")
    if _incomplete(measured, "count", [*base, *patched]):
        return
    for name in base[0] if base else ():
        found = [{number for run in arm for number in run[name]} for arm in (base, patched)]
        if any(len(numbers) > 1 for numbers in found):
            measured.stop("failed", f"{name} differs between steps: {[sorted(numbers) for numbers in found]}")
            return
        measured.counts[name] = (found[0].pop(), found[1].pop())


def _kept(samples: list[float], warm_up: int) -> list[float]:
    """The steps behind the warm-up; `_incomplete` has seen that there are some."""
    return samples[warm_up:]


def _of_arms(measured: Measured, kind: str) -> list[list[dict[str, list[Any]]]]:
    """Per arm, per run: samples by quantity. Runs that a single process made itself are told apart by their number."""
    if measured.workload.kind != "both":
        arms = [[run for run in measured.runs if run.arm == arm] for arm in measured.workload.arms]
        return [[run.values(kind) for run in runs if run.values(kind)] for runs in arms]
    (run,) = measured.runs
    found: list[list[dict[str, list[Any]]]] = []
    for arm in ("base", "patched"):
        by_run: dict[int, dict[str, list[Any]]] = {}
        for line in run.lines:
            if kind in line and line["arm"] == arm:
                by_run.setdefault(line.get("run", 0), {}).setdefault(line["quantity"], []).append(line[kind])
        found.append([by_run[number] for number in sorted(by_run)])
    return found


def _incomplete(measured: Measured, kind: str, runs: list[dict[str, list[Any]]]) -> bool:
    names = {frozenset(run) for run in runs}
    if len(names) > 1:
        partly = frozenset.union(*names) - frozenset.intersection(*names)
        measured.stop("failed", f"not every run gave {', '.join(sorted(partly))}")
    warm_up = measured.workload.warm_up if kind == "ms" else 0
    short = [name for run in runs for name, samples in run.items() if len(samples) <= warm_up]
    if short and measured.good:
        measured.stop("failed", f"no step is left behind the warm-up: {', '.join(sorted(set(short)))}")
    return not measured.good
