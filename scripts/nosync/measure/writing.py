"""The workload's side: a script gets the arguments below and writes one JSON object a line.

    --tree FOLDER     the source root of the tree under test, first on PYTHONPATH already
    --mode MODE       the workload's kind
    --out FILE        where the lines go
    --recording FILE  where ``record`` puts its tensors (numpy.savez; names ``<step>/<quantity>/<tensor>``)
    --smoke           a dry run: small sizes, on the CPU where there is no GPU

With ``both``, ``--tree`` is the base's and ``--patched-tree`` the other's. Lines, each with the fields given:

    {"quantity", "ms"}          one timed step       ("arm", "run" too, from ``both``)
    {"quantity", "count"}       an exact number      ("arm" too, from ``both``)
    {"quantity", "value"}       a number of ``once``, in the unit given by "unit"
    {"memory"}                  peak device memory, bytes
    {"waits"}, {"collectives"}  host syncs and collectives of one step of a timed workload, whose steps differ
    {"versions"}                what ran: {"torch": …, "device": …}
    {"imported"}                the file that the package under test was imported from
    {"unavailable"}             why this cannot be measured here
    {"wrong"}                   what the workload itself found to be wrong
    {"end": true}               last; without it the run broke off
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def parser(about: str) -> argparse.ArgumentParser:
    """An argument parser with what every workload gets."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--tree", type=Path)
    made.add_argument("--patched-tree", type=Path)
    made.add_argument("--mode", required=True)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--recording", type=Path)
    made.add_argument("--smoke", action="store_true")
    return made


class Lines:
    """Writes a workload's lines; as a context manager it writes the last one at a normal end."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Lines:
        self._file.write_text("", encoding="utf-8")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.write(end=True)

    def write(self, **fields: Any) -> None:
        """One line, flushed: a killed run leaves what it had written."""
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(fields, default=str) + "\n")

    def time(self, quantity: str, ms: float, **more: Any) -> None:
        """One step's milliseconds."""
        self.write(quantity=quantity, ms=ms, **more)

    def count(self, quantity: str, number: int, **more: Any) -> None:
        """An exact number."""
        self.write(quantity=quantity, count=number, **more)

    def value(self, quantity: str, number: float, unit: str) -> None:
        """A number that belongs to no arm."""
        self.write(quantity=quantity, value=number, unit=unit)
