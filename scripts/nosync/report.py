"""What a verb says at its end: a table for a person, JSON for a script, an exit code for make."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

OK, WRONG, IMPOSSIBLE = 0, 1, 2


@dataclass
class Report:
    """Rows of one verb.

    Args:
        title: Shown above the table.
        columns: Keys of a row, in order; a row may hold more, for JSON alone.
        rows: One dict a row; ``ok`` false in any row makes the exit code 1.
        notes: Lines below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, ok: bool = True, /, **cells: Any) -> None:
        self.rows.append({**cells, "ok": ok})

    def note(self, line: str) -> None:
        self.notes.append(line)

    @property
    def code(self) -> int:
        return OK if all(row["ok"] for row in self.rows) else WRONG

    def show(self, as_json: bool = False) -> int:
        """Print the report and return the exit code."""
        if as_json:
            body = {"title": self.title, "rows": self.rows, "notes": self.notes, "exit": self.code}
            print(json.dumps(body, indent=2, default=str))
        else:
            self._print()
        return self.code

    def _print(self) -> None:
        print(_bold(self.title) if self.rows else f"{self.title}: nothing to show")
        if self.rows:
            print(self._table())
        for line in self.notes:
            print(line)

    def _table(self) -> str:
        columns = [name for name in self.columns if any(str(row.get(name, "")) for row in self.rows)]
        cells = [[" ".join(str(row.get(name, "")).split()) for name in columns] for row in self.rows]
        head = [name.replace("_", " ") for name in columns]
        lines = _lay_out(head, cells)
        wrong = [not row["ok"] for row in self.rows]
        body = [_red(line) if bad else line for line, bad in zip(lines[2:], wrong, strict=True)]
        return "\n".join(lines[:2] + body)


def _lay_out(head: list[str], cells: list[list[str]]) -> list[str]:
    """Head, rule and one line a row."""
    try:
        from tabulate import tabulate
    except ImportError:  # a GPU host with an interpreter of its own (PYTHON=…): plain columns do
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        rows = [head, ["-" * width for width in widths], *cells]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return tabulate(cells, head, tablefmt="simple", disable_numparse=True).splitlines()


def _coloured() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m" if _coloured() else text


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _coloured() else text


def progress(line: str) -> None:
    """One line about what happens now, on standard error."""
    print(line, file=sys.stderr, flush=True)
