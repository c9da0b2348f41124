"""Measured figures in a pull request's text: ``{{name}}`` stands for one, and no number is typed by hand.

Figures come from committed files ``results/<project>/<machine>-<date>.json``, whose later ones win (`results`):

    {"figures": {"<name>": "<text>", …},
     "measured": {"<series>@<base>": "<code_digest of the series when it was measured>", …}}

A figure counts only where the file was measured with the very code that the series has now.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync.errors import NosyncError
from nosync.git import user_git
from nosync.layout import Layout
from nosync.series import Cell

_PLACE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")


@dataclass(frozen=True)
class Filled:
    """A text with its figures, and what is wrong with those that could not be filled in."""

    text: str
    problems: list[str]


def code_digest(cell: Cell) -> str:
    """A fingerprint of what a series changes; its messages do not count. Whoever measures records it."""
    total = hashlib.sha256()
    for patch in cell.patches:
        for diff in patch.text().diffs:
            total.update(diff.text)
    return total.hexdigest()


def code_of(cells: Iterable[Cell]) -> dict[str, str]:
    """What a result says that it was measured with: ``<series>@<base>`` to `code_digest`, where there are patches."""
    return {_key(cell): code_digest(cell) for cell in cells if cell.patches}


def fill(layout: Layout, cells: list[Cell], text: str) -> Filled:
    """Put the figures into the text.

    Args:
        cells: The series that the text is about, and those it depends on; all of them must be as they were measured.
    """
    files = results(layout, cells[-1].series.project)
    code = {cell.series.name: (_key(cell), code_digest(cell)) for cell in cells}
    committed = functools.cache(functools.partial(_committed, layout))
    problems: list[str] = []

    def figure(match: re.Match[str]) -> str:
        found, problem = _look_up(layout, files, code, committed, match.group(1))
        if problem:
            problems.append(problem)
        return found or match.group(0)

    return Filled(_PLACE.sub(figure, text), list(dict.fromkeys(problems)))


def names(text: str) -> list[str]:
    """The figures that a text asks for."""
    return list(dict.fromkeys(_PLACE.findall(text)))


def results(layout: Layout, project: str) -> list[tuple[Path, dict[str, Any]]]:
    """The project's result files, newest date first; of one date, first those of a host with no GPU left to others."""
    found = [(file, _read(file)) for file in (layout.root / "results" / project).glob("*.json")]
    return sorted(found, key=_newness, reverse=True)


def _newness(result: tuple[Path, dict[str, Any]]) -> tuple[str, bool, str]:
    file, body = result
    return file.stem[-10:], not body.get("machine", {}).get("gpus_left_to_others"), file.name


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NosyncError(f"{file} is not JSON: {error}", "a slip while editing") from None


def _look_up(
    layout: Layout,
    files: list[tuple[Path, dict[str, Any]]],
    code: dict[str, tuple[str, str]],
    committed: Callable[[Path], bool],
    name: str,
) -> tuple[str, str]:
    """The figure, or what is wrong with it."""
    problem = f"{{{{{name}}}}}: no file under results/ has it"
    for file, body in files:
        if name not in body.get("figures", {}):
            continue
        where = file.relative_to(layout.root)
        measured = body.get("measured", {})
        stale = [series for series, (key, digest) in code.items() if measured.get(key) != digest]
        if stale:
            problem = f"{{{{{name}}}}}: {where} was measured before {', '.join(stale)} took its present form"
        elif not committed(file):
            problem = f"{{{{{name}}}}}: {where} is not committed"
        else:
            return str(body["figures"][name]), ""
    return "", problem


def _key(cell: Cell) -> str:
    return f"{cell.series.name}@{cell.base.id}"


def _committed(layout: Layout, file: Path) -> bool:
    try:
        return not user_git(layout.root, "status", "--porcelain", "--ignored", "--", str(file)).strip()
    except NosyncError:  # no repository, or git fails
        return False
