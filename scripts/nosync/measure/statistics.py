"""Medians of runs, and what two arms of them say."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

DRAWS = 10_000
CONFIDENCE = 0.95
TREND = 0.8  # correlation of the runs with their order from which on a machine counts as drifting

LEAST_RUNS = 3  # two runs an arm that do not overlap are chance once in three times, three once in ten

FASTER, SLOWER, NO_DIFFERENCE, DRIFTING = "faster", "slower", "no difference shown", "the machine drifted"
TOO_FEW = "apart, too few runs to claim it"


@dataclass(frozen=True)
class Arm:
    """The runs of one version, in order.

    Attributes:
        medians: Median step time of each run, ms.
        mean: Mean of the medians.
        spread: Slowest less fastest run.
    """

    medians: tuple[float, ...]
    mean: float
    spread: float
    fastest: float
    slowest: float


@dataclass(frozen=True)
class Comparison:
    """Two arms.

    Attributes:
        ratio: Patched over base, of the means; below 1 is faster.
        low: Lower end of the bootstrap interval of the ratio.
        high: Its upper end.
        overlap: Does the slowest run of the faster arm reach the fastest of the slower one?
        drift_ms: How far the runs moved from first to last, both arms alike (a line through them); 0 without a trend.
        verdict: `FASTER`, `SLOWER`, `NO_DIFFERENCE`, `DRIFTING` or `TOO_FEW`.
    """

    base: Arm
    patched: Arm
    ratio: float
    low: float
    high: float
    overlap: bool
    drift_ms: float
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return asdict(self) | {"high": None if self.high == float("inf") else self.high}


def arm(medians: Sequence[float]) -> Arm:
    """Summarise the medians of an arm's runs (at least one)."""
    low, high = min(medians), max(medians)
    return Arm(tuple(medians), statistics.fmean(medians), high - low, low, high)


def compare(base: Sequence[float], patched: Sequence[float]) -> Comparison:
    """Compare the medians of interleaved runs: base 0, patched 0, base 1, patched 1, …"""
    one, other = arm(base), arm(patched)
    ratio = other.mean / one.mean
    low, high = bootstrap_ratio(base, patched)
    overlap = one.fastest <= other.slowest and other.fastest <= one.slowest
    moved = drift(base, patched)
    return Comparison(one, other, ratio, low, high, overlap, moved, _verdict(one, other, low, high, overlap, moved))


def _verdict(base: Arm, patched: Arm, low: float, high: float, overlap: bool, moved: float) -> str:
    """A difference is claimed only where the arms are apart, the interval leaves 1 out, and drift is the smaller."""
    if abs(moved) > abs(base.mean - patched.mean):
        return DRIFTING
    if overlap or (low <= 1.0 <= high and len(base.medians) > 1):
        return NO_DIFFERENCE
    if min(len(base.medians), len(patched.medians)) < LEAST_RUNS:
        return TOO_FEW
    return FASTER if patched.mean < base.mean else SLOWER


def bootstrap_ratio(base: Sequence[float], patched: Sequence[float]) -> tuple[float, float]:
    """The percentile interval of the ratio of the means, runs drawn anew within each arm; the same on every call."""
    if min(len(base), len(patched)) < 2:
        return 0.0, float("inf")  # one run says nothing about the next
    draw = random.Random(0).choices
    ratios = sorted(
        statistics.fmean(draw(patched, k=len(patched))) / statistics.fmean(draw(base, k=len(base)))
        for _ in range(DRAWS)
    )
    cut = round(DRAWS * (1 - CONFIDENCE) / 2)
    return ratios[cut], ratios[-cut - 1]


def drift(base: Sequence[float], patched: Sequence[float]) -> float:
    """Milliseconds that the runs moved from the first to the last, by a line through both arms, each about its mean.

    Zero where there are fewer than three runs an arm, or the runs do not follow their order (`TREND`).
    """
    if min(len(base), len(patched)) < 3:
        return 0.0
    order = [2.0 * i for i in range(len(base))] + [2.0 * i + 1 for i in range(len(patched))]
    moved = [x - statistics.fmean(base) for x in base] + [x - statistics.fmean(patched) for x in patched]
    if max(moved) - min(moved) == 0.0 or abs(statistics.correlation(order, moved)) < TREND:
        return 0.0
    return statistics.linear_regression(order, moved).slope * (max(order) - min(order))
