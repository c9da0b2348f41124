"""Measured figures in a pull request's text: ``{{name}}`` stands for one, and no number is typed by hand.

Figures come from committed files ``results/<project>/<machine>-<date>.json``, whose later ones win:

    {"figures": {"<name>": "<text>", …},
     "measured": {"<series>@<base>": "<code_digest of the series when it was measured>", …}}

A figure counts only where the file was measured with the very code that the series has now.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync.errors import NosyncError
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


def fill(layout: Layout, cells: list[Cell], text: str) -> Filled:
    """Put the figures into the text.

    Args:
        cells: The series that the text is about, and those it depends on; all of them must be as they were measured.
    """
    files = list(results(layout, cells[-1].series.project))
    problems: list[str] = []

    def figure(match: re.Match[str]) -> str:
        found, problem = _look_up(layout, files, cells, match.group(1))
        if problem:
            problems.append(problem)
        return found or match.group(0)

    return Filled(_PLACE.sub(figure, text), list(dict.fromkeys(problems)))


def names(text: str) -> list[str]:
    """The figures that a text asks for."""
    return list(dict.fromkeys(_PLACE.findall(text)))


def results(layout: Layout, project: str) -> Iterable[tuple[Path, dict[str, Any]]]:
    """The project's result files, newest date first."""
    folder = layout.root / "results" / project
    for file in sorted(folder.glob("*.json"), key=lambda path: (path.stem[-10:], path.name), reverse=True):
        try:
            yield file, json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise NosyncError(f"{file} is not JSON: {error}", "a slip while editing") from None


def _look_up(layout: Layout, files: list[tuple[Path, dict[str, Any]]], cells: list[Cell], name: str) -> tuple[str, str]:
    """The figure, or what is wrong with it."""
    problem = f"{{{{{name}}}}}: no file under results/ has it"
    for file, body in files:
        if name not in body.get("figures", {}):
            continue
        where = file.relative_to(layout.root)
        stale = [cell.series.name for cell in cells if body.get("measured", {}).get(_key(cell)) != code_digest(cell)]
        if stale:
            problem = f"{{{{{name}}}}}: {where} was measured before {', '.join(stale)} took its present form"
        elif not _committed(layout, file):
            problem = f"{{{{{name}}}}}: {where} is not committed"
        else:
            return str(body["figures"][name]), ""
    return "", problem


def _key(cell: Cell) -> str:
    return f"{cell.series.name}@{cell.base.id}"


def _committed(layout: Layout, file: Path) -> bool:
    argv = ["git", "status", "--porcelain", "--ignored", "--", str(file)]
    done = subprocess.run(argv, cwd=layout.root, capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stdout.strip()
