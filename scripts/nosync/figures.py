"""Measured figures in a pull request's text: ``{{name}}`` stands for one, and no number is typed by hand.

Figures come from committed files ``results/<project>/<machine>-<date>.json``, whose later ones win (`results`):

    {"figures": {"<name>": "<text>", …},
     "measured": {"<series>@<base>": "<code_digest of the series when it was measured>", …}}

A figure counts only where the file was measured with the very code that the series has now, on the text's base or,
where there is none of that, on another base: such a figure is marked, and a line below the text says which base.
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
from nosync.projects import Project
from nosync.series import Cell
from nosync.series import cells as cells_on

_PLACE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")


@dataclass(frozen=True)
class Filled:
    """A text with its figures, what is wrong with those that are missing, and of what other bases some are."""

    text: str
    problems: list[str]
    elsewhere: list[str]


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


def fill(layout: Layout, project: Project, cells: list[Cell], text: str) -> Filled:
    """Put the figures into the text.

    Args:
        cells: The series that the text is about, and those it depends on; all of them must be as they were measured.
    """
    files = results(layout, project.name)
    committed = functools.cache(functools.partial(_committed, layout))
    here, series = cells[-1].base, [cell.series for cell in cells]
    bases = [here, *(base for base in reversed(project.bases) if base != here)]
    code_on = functools.cache(lambda base: _code(cells_on(project, series, base)))
    problems: list[str] = []
    marks: dict[str, str] = {}

    def figure(match: re.Match[str]) -> str:
        problem = ""
        for base in bases:
            found, said = _look_up(layout, files, code_on(base), committed, match.group(1))
            if found:
                return found if base == here else f"{found} {marks.setdefault(base.id, '†' * (len(marks) + 1))}"
            problem = problem or said
        problems.append(problem)
        return match.group(0)

    filled = _PLACE.sub(figure, text)
    below = [f"{mark} Measured with this change on {project.name} {base}." for base, mark in marks.items()]
    return Filled("\n\n".join([filled, *below]), list(dict.fromkeys(problems)), list(marks))


def _code(cells: Iterable[Cell]) -> dict[str, tuple[str, str]]:
    return {cell.series.name: (_key(cell), code_digest(cell)) for cell in cells}


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
