"""Do two trees give the same values? Judged by tolerances that the base sets against itself, before the patched runs.

1. ``prior`` recordings of the base: per quantity and step, the largest difference between any two of them.
2. The tolerance is ``factor`` times that, at least ``floor``; it is written to a file and not changed any more.
3. ``base_records`` more of the base and ``patched_records`` of the patched tree, in turns.
4. All pairs across the trees, and as controls all pairs within each, against the tolerances. An exceedance is listed
   with the declared budget and with the one that the later base recordings would give, and stays an exceedance.
"""

from __future__ import annotations

import json
from itertools import combinations, product, zip_longest
from pathlib import Path
from typing import Any

from nosync.measure import ab
from nosync.measure.ab import Measured
from nosync.measure.recording import Difference, Tensor, differences, read
from nosync.measure.runs import FAILED, GOOD, Run, Runner
from nosync.measure.suite import Workload

Recording = dict[str, Tensor]
Key = tuple[int, str]


def measure(runner: Runner, workload: Workload, folder: Path) -> Measured:
    """Run the protocol; recordings and the tolerances' file are written to ``folder``."""
    measured = Measured(workload)
    folder.mkdir(parents=True, exist_ok=True)
    base, patched = workload.arms
    prior = _record(runner, measured, folder, [(base, i) for i in range(workload.prior)])
    if not measured.good:
        return measured
    declared = folder / "tolerances.json"
    if workload.bitwise:
        factor, floor = 0.0, 0.0
    else:
        factor, floor = workload.factor, workload.floor
    tolerances, problems = budgets(prior, factor, floor)
    write_tolerances(declared, tolerances, workload)
    if problems:
        return measured.stop(FAILED, f"the base differs from itself where it must be exact: {'; '.join(problems[:3])}")
    turns = zip_longest(
        [(base, workload.prior + i) for i in range(workload.base_records)],
        [(patched, i) for i in range(workload.patched_records)],
    )
    asked = [run for turn in turns for run in turn if run]
    found = _record(runner, measured, folder, asked)
    if not measured.good:
        return measured
    arms = {arm: [it for it, (of, _) in zip(found, asked, strict=True) if of == arm] for arm in workload.arms}
    # the file is what counts, not what is in memory
    measured.equivalence = judge(arms[base], arms[patched], read_tolerances(declared), workload.factor, workload.floor)
    return measured


def _record(runner: Runner, measured: Measured, folder: Path, asked: list[tuple[str, int]]) -> list[Recording]:
    found: list[Recording] = []
    for arm, number in asked:
        file = folder / f"{arm}-{number}.npz"
        run = runner.run(measured.workload, arm, number, file)
        measured.runs.append(run)
        ab.say(measured.workload, run)
        if run.state == GOOD:
            _take(run, file, found)
        if run.state != GOOD:
            measured.stop(run.state, f"{arm}, recording {number + 1}: {run.reason}")
            break
    return found


def _take(run: Run, file: Path, found: list[Recording]) -> None:
    try:
        found.append(read(file))
        if not found[-1]:
            raise ValueError("it recorded nothing")
    except ValueError as error:
        run.state, run.reason = FAILED, str(error)


def _keys(recording: Recording) -> list[Key]:
    return sorted(differences(recording, recording)[0])


def budgets(recordings: list[Recording], factor: float, floor: float) -> tuple[dict[Key, float], list[str]]:
    """Tolerances by (step, quantity) from repeats of one version, and where these differ in what must be exact."""
    spread: dict[Key, float] = dict.fromkeys(_keys(recordings[0]), 0.0) if recordings else {}
    problems: list[str] = []
    for one, other in combinations(recordings, 2):
        found, wrong = differences(one, other)
        problems += wrong
        for key, value in found.items():
            spread[key] = max(spread.get(key, 0.0), value)
    return {key: max(factor * value, floor) for key, value in spread.items()}, problems


def write_tolerances(file: Path, tolerances: dict[Key, float], workload: Workload) -> None:
    """Fix the budgets: {"rule": …, "tolerances": {"<step>/<quantity>": …}}."""
    zero = "bitwise: zero"
    rule = zero if workload.bitwise else f"{workload.factor:g} x the base's own spread, at least {workload.floor:g}"
    named = {f"{step}/{quantity}": value for (step, quantity), value in sorted(tolerances.items())}
    file.write_text(json.dumps({"rule": rule, "tolerances": named}, indent=1) + "\n", encoding="utf-8")


def read_tolerances(file: Path) -> dict[Key, float]:
    """The budgets of a file by (step, quantity)."""
    named = json.loads(file.read_text(encoding="utf-8"))["tolerances"]
    return {(int(name.split("/", 1)[0]), name.split("/", 1)[1]): value for name, value in named.items()}


def judge(
    base: list[Recording], patched: list[Recording], tolerances: dict[Key, float], factor: float, floor: float
) -> dict[str, Any]:
    """All pairs against the tolerances.

    Returns:
        ``equivalent``: no cross pair exceeds and everything exact is; ``pairs`` by kind, each with its number of
        exceedances; ``exceedances``; ``quantities``: the worst of each over steps and pairs, with its tolerance.
    """
    kinds = {
        "base vs patched": list(product(enumerate(base), enumerate(patched))),
        "base vs base": list(combinations(enumerate(base), 2)),
        "patched vs patched": list(combinations(enumerate(patched), 2)),
    }
    fresh, _ = budgets(base, factor, floor)
    pairs: list[dict[str, Any]] = []
    over: list[dict[str, Any]] = []
    worst: dict[str, Any] = {}
    for kind, both in kinds.items():
        for (i, one), (j, other) in both:
            found, wrong = differences(one, other)
            here = _exceedances(found, tolerances, fresh)
            pairs.append({"kind": kind, "pair": [i, j], "exceedances": len(here), "not_exact": wrong})
            over += [{"kind": kind, "pair": [i, j]} | each for each in here]
            _keep_worst(worst, kind, found, tolerances)
    crossing = [pair for pair in pairs if pair["kind"] == "base vs patched"]
    return {
        "equivalent": not any(pair["exceedances"] or pair["not_exact"] for pair in crossing),
        "pairs": pairs,
        "exceedances": over,
        "quantities": worst,
    }


def _exceedances(found: Difference, tolerances: dict[Key, float], fresh: dict[Key, float]) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "quantity": quantity,
            "difference": value,
            "declared": tolerances.get((step, quantity), 0.0),
            "fresh": fresh.get((step, quantity), 0.0),
        }
        for (step, quantity), value in sorted(found.items())
        if not value <= tolerances.get((step, quantity), 0.0)
    ]


def _keep_worst(worst: dict[str, Any], kind: str, found: Difference, tolerances: dict[Key, float]) -> None:
    """Keep, per quantity and kind of pair, the largest difference and the tolerance of the step where it is."""
    for (step, quantity), value in found.items():
        of_kind = worst.setdefault(quantity, {})
        if value >= of_kind.get(kind, {}).get("difference", -1.0):
            of_kind[kind] = {"difference": value, "step": step, "tolerance": tolerances.get((step, quantity), 0.0)}
