"""What was claimed elsewhere against what was measured here: the tables of docs/results.md and of the README."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync.measure import machine
from nosync.measure.results import table

NOT_YET = "not measured yet"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Args:
        figure: The figure whose ``.base``, ``.patched``, ``.ratio``, … test it.
        base: The figure of the base, where it has a name of its own; so ``patched``.
        reason: Why it cannot be tested here, in place of a figure.
        note: How the measurement here differs.
        readme: The row's text in the README's table; empty: no row there.
    """

    project: str
    claim: str
    figure: str = ""
    base: str = ""
    patched: str = ""
    reason: str = ""
    note: str = ""
    readme: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """The figures of base and patched."""
        return self.base or f"{self.figure}.base", self.patched or f"{self.figure}.patched"


@dataclass(frozen=True)
class ResultFile:
    """A committed result: its path inside the repository, what is in it, and the series that have changed since."""

    path: str
    body: dict[str, Any]
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A claim with what was found: texts, the file they are from, or why there is none."""

    claim: Claim
    base: str = ""
    patched: str = ""
    ratio: str = ""
    said: str = ""
    file: ResultFile | None = None


def load_claims(file: Path) -> list[Claim]:
    """Read ``claims.toml``.

    Raises:
        ValueError: a claim has neither figure nor reason, or both, or a field that is unknown.
    """
    claims = []
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["claim"]:
        try:
            claim = Claim(**entry)
        except TypeError as error:
            raise ValueError(f"{file.name}: {error}: {entry}") from None
        if bool(claim.reason) == bool(claim.figure or (claim.base and claim.patched)):
            raise ValueError(f"{file.name}: a claim has a figure or a reason: {claim.claim}")
        claims.append(claim)
    return claims


def rows(claims: Sequence[Claim], files: Sequence[ResultFile]) -> list[Row]:
    """Each claim with its figures, from the newest file of the present code that has both, or else the newest.

    Args:
        files: Newest first.
    """
    files = sorted(files, key=lambda file: bool(file.stale))
    return [_row(claim, files) for claim in claims]


def _row(claim: Claim, files: Sequence[ResultFile]) -> Row:
    if claim.reason:
        return Row(claim, said=claim.reason)
    base, patched = claim.names
    for file in files:
        figures = file.body.get("figures", {})
        if base in figures and patched in figures:
            ratio = figures.get(f"{claim.figure}.ratio") or _ratio(figures[base], figures[patched])
            interval, verdict = (figures.get(f"{claim.figure}.{part}", "") for part in ("interval", "verdict"))
            interval = f"interval {interval}" if " to " in interval else ""
            said = filter(None, [claim.note, interval, verdict, _other_code(file)])
            return Row(claim, figures[base], figures[patched], ratio, "; ".join(said), file)
    unavailable = next((why for file in files if (why := _why(file, claim))), NOT_YET)
    return Row(claim, said=unavailable)


def _why(file: ResultFile, claim: Claim) -> str:
    """What a result file says about a workload that gave no number, where the claim's figure names it."""
    if file.body.get("suite") != claim.project:
        return ""
    quantity = claim.names[0].removeprefix(f"{claim.project}.")
    for workload in file.body.get("workloads", ()):
        name = workload["name"]
        if workload["state"] != "measured" and quantity.replace("_", "-").startswith(name):
            return f"{workload['state']}: {workload['reason']}"
    return ""


def _ratio(base: str, patched: str) -> str:
    """Of two texts that are a number and the same unit; empty otherwise. Counts have none."""
    one, other = (re.fullmatch(r"([\d.]+) (\S+)", text) for text in (base, patched))
    if not (one and other and one[2] == other[2] and float(one[1])):
        return ""
    return f"{float(other[1]) / float(one[1]):.3f}"


def page(found: Sequence[Row]) -> str:
    """docs/results.md."""
    lines = [
        "# Results: what was claimed, and what was measured here",
        "",
        "Written by `make bench-report` from the result files under `results/`; do not edit. How it is measured:",
        "README, 'Measuring'. Times are means of the medians of interleaved runs; a ratio below 1 is faster.",
    ]
    numbers: dict[str, int] = {}
    for project in dict.fromkeys(row.claim.project for row in found):
        lines += ["", f"## {project}", ""]
        cells = [["claim of the pull request", "base, here", "patched, here", "ratio", "", "file"]]
        for row in (row for row in found if row.claim.project == project):
            mark = f"[{numbers.setdefault(row.file.path, len(numbers) + 1)}]" if row.file else ""
            dash = "" if row.file else "-"
            cells.append([row.claim.claim, row.base or dash, row.patched or dash, row.ratio or "-", row.said, mark])
        lines += table(cells)
    files = {row.file.path: row.file for row in found if row.file}
    if files:
        lines += ["", "## Result files", ""]
        lines += [f"{numbers[path]}. {describe(file)}" for path, file in files.items()]
    return "\n".join(lines) + "\n"


def _other_code(file: ResultFile) -> str:
    return f"not known to be of the present code of {', '.join(file.stale)}" if file.stale else ""


def describe(file: ResultFile) -> str:
    """One result file in a line: where it is from."""
    body = file.body
    versions: dict[str, str] = {}
    for workload in body["workloads"]:
        versions |= workload["versions"]
    parts = [
        f"[{file.path}](../{file.path})", f"{body['suite']} {body['base']}, {body['date']}",
        machine.gpus(body["machine"]),
        ", ".join(f"{name} {version}" for name, version in versions.items() if name != "device"),
        ", ".join(f"{arm} at {what[:12]}" for arm, what in body["trees"].items()), f"`{body['command']}`",
        body.get("remark", ""),
    ]  # fmt: skip
    return "; ".join(filter(None, parts))


def readme_table(found: Sequence[Row]) -> str:
    """The README's table: the chosen rows that have figures, and when and on what they were measured."""
    chosen = [row for row in found if row.claim.readme and row.file]
    if not chosen:
        return "Nothing is measured yet: `make bench-<project>`, then `make bench-report`."
    cells = [["what", "base", "patched", "ratio", "runs"]]
    for row in chosen:
        assert row.file is not None
        body = row.file.body
        when = f"{body['suite']} {body['base']}, {machine.cards(body['machine'])}, {body['date']}"
        verdict = row.file.body["figures"].get(f"{row.claim.figure}.verdict", "")
        remark = body.get("remark", "").partition("; from ")[0]
        runs = "; ".join(filter(None, [verdict, when, remark, _other_code(row.file)]))
        cells.append([row.claim.readme, row.base, row.patched, row.ratio or "-", runs])
    more = "Every claim of the upstream pull requests and what was measured here: [docs/results.md](docs/results.md)."
    return "\n".join([*table(cells), "", more])


def put_between(text: str, marker: str, body: str) -> str:
    """Replace what is between ``<!-- table: <marker> -->`` and the next ``<!-- end -->``.

    Raises:
        ValueError: the text has no such place.
    """
    start, end = f"<!-- table: {marker} -->", "<!-- end -->"
    if start not in text or end not in text[text.index(start) :]:
        raise ValueError(f"there is no {start} … {end}")
    first = text.index(start) + len(start)
    return text[:first] + f"\n{body}\n" + text[text.index(end, first) :]
