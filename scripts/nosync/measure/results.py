"""What a suite gave, as JSON for committing, as Markdown and as named figures.

A figure is text, ready for a pull request: ``<prefix>.<quantity>.base``, ``.patched``; for times also ``.ratio``,
``.interval`` and ``.verdict``, and ``.spread.base``, ``.range.base``, ``.mean.base`` (and ``.patched``); for a workload
as a whole ``<prefix>.<workload>.wall``, ``.memory`` and ``.rss``, and ``.waits`` and ``.collectives`` where it tells
those of single steps; for recordings ``.pairs`` and ``.worst.<quantity>``.
Only what was measured gives figures.
"""

from __future__ import annotations

from typing import Any

from nosync.measure import machine
from nosync.measure.ab import Measured
from nosync.measure.runs import STEP
from nosync.measure.statistics import Comparison


def as_dict(measured: Measured) -> dict[str, Any]:
    """One workload, for JSON."""
    workload = measured.workload
    body: dict[str, Any] = {"name": workload.name, "kind": workload.kind, "about": workload.about}
    body |= {"arguments": list(workload.arguments), "arms": list(workload.arms), "state": measured.state}
    body |= {"reason": measured.reason} if measured.reason else {}
    versions: dict[str, str] = next((run.last("versions") for run in measured.runs if run.last("versions")), {})
    body |= {"versions": versions, "runs": [run.summary() for run in measured.runs]}
    body["times"] = {name: comparison.as_dict() for name, comparison in measured.times.items()}
    body["counts"] = {name: list(pair) for name, pair in measured.counts.items()}
    body["values"] = {name: list(pair) for name, pair in measured.values.items()}
    return body | ({"equivalence": measured.equivalence} if measured.equivalence else {})


def figures(prefix: str, measured: list[Measured]) -> dict[str, str]:
    """Every figure of a suite by name."""
    found: dict[str, str] = {}
    for each in measured:
        for name, comparison in each.times.items():
            parts = _time_figures(comparison, each.means[name])
            found |= {f"{prefix}.{name}.{part}": text for part, text in parts.items()}
        for name, (base, patched) in each.counts.items():
            found |= _pair(f"{prefix}.{name}", str(base), str(patched))
        for name, (number, unit) in each.values.items():
            found[f"{prefix}.{name}"] = f"{digits(number)} {unit}".strip()
        if each.times and each.workload.kind == "time":
            found |= _resource_figures(f"{prefix}.{each.workload.name}", each)
        if each.equivalence:
            found |= _equivalence_figures(f"{prefix}.{each.workload.name}", each.equivalence)
    return found


def _pair(name: str, base: str, patched: str) -> dict[str, str]:
    return {f"{name}.base": base, f"{name}.patched": patched}


def _time_figures(comparison: Comparison, means: tuple[float, float]) -> dict[str, str]:
    base, patched = comparison.base, comparison.patched
    found = {
        "base": f"{digits(base.mean)} ms",
        "patched": f"{digits(patched.mean)} ms",
        "ratio": f"{comparison.ratio:.3f}",
        "interval": _interval(comparison.low, comparison.high),
        "verdict": comparison.verdict,
    }
    for arm, each, mean in (("base", base, means[0]), ("patched", patched, means[1])):
        found[f"spread.{arm}"] = f"{digits(each.spread)} ms ({each.spread / each.mean:.1%})"
        found[f"range.{arm}"] = f"{digits(each.fastest)} to {digits(each.slowest)} ms"
        found[f"mean.{arm}"] = f"{digits(mean)} ms"
    return found


def _interval(low: float, high: float | None) -> str:
    return "one run" if high in (None, float("inf")) else f"{low:.3f} to {high:.3f}"


def _resource_figures(name: str, measured: Measured) -> dict[str, str]:
    """Of each arm's runs: mean wall time, the ranges of device and host memory, and those of single steps."""
    found: dict[str, str] = {}
    for word, arm in zip(("base", "patched"), measured.workload.arms, strict=True):
        runs = [run.summary() for run in measured.runs if run.arm == arm]
        found[f"{name}.wall.{word}"] = f"{sum(run['wall_s'] for run in runs) / len(runs):.1f} s"
        found[f"{name}.rss.{word}"] = f"{_range(runs, 'host_rss_mib')} MiB"
        if all(run["device_memory_mib"] for run in runs):
            found[f"{name}.memory.{word}"] = f"{_range(runs, 'device_memory_mib')} MiB"
        for what in STEP:
            if said := _of_steps(runs, what):
                found[f"{name}.{what}.{word}"] = said
    return found


def _equivalence_figures(name: str, outcome: dict[str, Any]) -> dict[str, str]:
    """``pairs``: how many of each kind are within tolerance; ``worst.<quantity>``: across the trees and within one;
    ``exceeded``: the exceedance that is furthest over its budget.
    """
    found: dict[str, str] = {}
    for word, kinds in (("patched", ("base vs patched",)), ("base", ("base vs base", "patched vs patched"))):
        pairs = [pair for pair in outcome["pairs"] if pair["kind"] in kinds]
        within = sum(not pair["exceedances"] and not pair["not_exact"] for pair in pairs)
        found[f"{name}.pairs.{word}"] = f"{within} of {len(pairs)} pairs within tolerance"
        found[f"{name}.exceeded.{word}"] = _exceeded([it for it in outcome["exceedances"] if it["kind"] in kinds])
        for quantity, worst in outcome["quantities"].items():
            if kinds[0] in worst:
                found[f"{name}.worst.{quantity}.{word}"] = f"{worst[kinds[0]]['difference']:.1e}"
    return found


def _exceeded(exceedances: list[dict[str, Any]]) -> str:
    if not exceedances:
        return "none"
    worst = max(exceedances, key=lambda it: it["difference"] / (it["declared"] or 1e-300))
    return f"{worst['difference']:.2e} against {worst['declared']:.2e} ({worst['fresh']:.2e})"


def digits(number: float) -> str:
    """Four significant digits, without an exponent for what a step takes."""
    text = f"{number:.4g}"
    return text if "e" not in text else f"{number:.6f}"


def markdown(body: dict[str, Any]) -> str:
    """The report of one suite on one base."""
    described = body["machine"]
    lines = [
        f"# {body['suite']} {body['base']}, {body['date']}",
        "",
        f"{machine.gpus(described)}; {described['processors']} × {described['processor']}; {_versions(body)}.",
        f"Trees: {', '.join(f'{arm} {what}' for arm, what in body['trees'].items())}.",
        f"Command: `{body['command']}`",
    ]
    for workload in body["workloads"]:
        lines += ["", f"## {workload['name']}", ""]
        lines += [workload["about"], ""] if workload["about"] else []
        lines += workload_lines(workload)
    return "\n".join(lines) + "\n"


def _versions(body: dict[str, Any]) -> str:
    merged: dict[str, str] = {}
    for workload in body["workloads"]:
        merged |= workload["versions"]
    return ", ".join(f"{name} {version}" for name, version in merged.items()) or "versions not told"


def workload_lines(workload: dict[str, Any]) -> list[str]:
    """The report of one workload, from `as_dict`."""
    if workload["state"] != "measured":
        return [f"**No number: {workload['state']}.** {workload['reason']}"]
    lines = [f"Short: {workload['reason']}.", ""] if workload.get("reason") else []
    lines += table(_time_rows(workload["times"])) if workload["times"] else []
    if workload["counts"]:
        rows = [["", "base", "patched"], *([name, *pair] for name, pair in workload["counts"].items())]
        lines += ["", *table(rows)] if lines else table(rows)
    if workload["values"]:
        lines += table([["", "value"], *([name, f"{digits(v)} {u}"] for name, (v, u) in workload["values"].items())])
    if workload.get("equivalence"):
        lines += equivalence_lines(workload["equivalence"])
    return [*lines, "", _resources(workload["runs"])]


def _time_rows(times: dict[str, Any]) -> list[list[str]]:
    head = ["", "base", "patched", "ratio", "95 % interval", "spread", "slowest and fastest", "verdict"]
    rows = [head]
    for name, each in times.items():
        base, patched = each["base"], each["patched"]
        rows.append([
            name, f"{digits(base['mean'])} ms", f"{digits(patched['mean'])} ms", f"{each['ratio']:.3f}",
            _interval(each["low"], each["high"]), f"{digits(base['spread'])} / {digits(patched['spread'])}",
            " / ".join(f"{digits(arm['slowest'])} to {digits(arm['fastest'])}" for arm in (base, patched)),
            each["verdict"] + ("" if each["overlap"] else "; the arms do not overlap")
            + (f"; drift {digits(each['drift_ms'])} ms" if each["drift_ms"] else ""),
        ])  # fmt: skip
    return rows


def equivalence_lines(outcome: dict[str, Any]) -> list[str]:
    """The protocol's outcome: worst differences, the count of pairs, and each exceedance with both budgets."""
    kinds = ["base vs patched", "base vs base", "patched vs patched"]
    rows = [["recorded", *kinds, "tolerance"]]
    for quantity, worst in outcome["quantities"].items():
        cells = [_cell(worst.get(kind)) for kind in kinds]
        crossing = worst.get(kinds[0], {"tolerance": 0.0, "step": 0})
        rows.append([quantity, *cells, f"{crossing['tolerance']:.1e} at step {crossing['step']}"])
    lines = [*table(rows), ""]
    for kind in kinds:
        pairs = [pair for pair in outcome["pairs"] if pair["kind"] == kind]
        within = sum(not pair["exceedances"] and not pair["not_exact"] for pair in pairs)
        lines.append(f"- {kind}: {within} of {len(pairs)} pairs within tolerance, names, shapes and integers exact")
    for pair in outcome["pairs"]:
        lines += [f"- {pair['kind']} {pair['pair']}: {what}" for what in pair["not_exact"][:5]]
    for each in outcome["exceedances"]:
        lines.append(
            f"- exceeded: {each['quantity']} at step {each['step']}, {each['kind']} {each['pair']}: "
            f"{each['difference']:.2e}, declared budget {each['declared']:.2e}, "
            f"budget of the later base runs {each['fresh']:.2e}"
        )
    return lines


def _cell(worst: dict[str, Any] | None) -> str:
    return "-" if worst is None else f"{worst['difference']:.1e}"


def _resources(runs: list[dict[str, Any]]) -> str:
    parts = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        here = [run for run in runs if run["arm"] == arm]
        said = f"{arm}: {len(here)} runs, {_range(here, 'wall_s')} s each, host RSS {_range(here, 'host_rss_mib')} MiB"
        if all(run["device_memory_mib"] for run in here):
            said += f", peak device memory {_range(here, 'device_memory_mib')} MiB"
        said += "".join(f", {found} {what} a step" for what in STEP if (found := _of_steps(here, what)))
        parts.append(said)
    return "; ".join(parts) + "."


def _of_steps(runs: list[dict[str, Any]], what: str) -> str:
    """Fewest to most over the steps that the runs told; empty if none did."""
    told = [number for run in runs for number in run.get("steps", {}).get(what, ())]
    return _span(told) if told else ""


def _range(runs: list[dict[str, Any]], key: str) -> str:
    return _span([run[key] for run in runs])


def _span(numbers: list[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def table(rows: list[list[Any]]) -> list[str]:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]]
