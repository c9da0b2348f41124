"""What is measured: a suite of workloads, read from a ``bench.toml``.

    prefix = "liger-kernel"             # figures are named <prefix>.<quantity>.<arm>
    path = [".."]                       # more folders for the workloads' PYTHONPATH, from the bench.toml

    [[workload]]
    name = "flce"
    kind = "time"                       # time, count, once, both or record
    script = "flce.py"                  # beside the bench.toml
    arguments = ["--size", "8192"]

``time``: steps timed in separate processes, arms in turns. ``count``: one process an arm, exact numbers. ``once``: one
process in all, numbers that belong to no arm. ``both``: one process that runs both arms in turns itself. ``record``:
named tensors, for the equivalence protocol.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

KINDS = ("time", "count", "once", "both", "record")


class SuiteError(ValueError):
    """A ``bench.toml`` that cannot be used."""


@dataclass(frozen=True)
class Workload:
    """One script and how it is run.

    Args:
        warm_up: Steps of each quantity that are dropped, per run.
        runs: Runs of each arm (``time``).
        arms: The trees that stand for base and patched; a series' name is the tree that ends with it.
        minutes: After which a run is stopped and counts as failed.
        gpus: How many devices it needs; none for ``count`` unless said, since without one the detector counts.
        prior: Base recordings that set the tolerances (``record``).
        base_records: Base recordings that are compared (``record``).
        patched_records: Patched recordings (``record``).
        factor: Tolerance over the base's own spread (``record``).
        floor: The least tolerance, relative to the tensor's largest element (``record``).
        bitwise: Every tolerance is zero (``record``).
        ranks: Its script takes ``--ranks``, one process a GPU: it can be asked for on any number of GPUs.
    """

    name: str
    kind: str
    script: Path
    about: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    warm_up: int = 0
    runs: int = 4
    arms: tuple[str, str] = ("base", "patched")
    minutes: float = 5.0
    gpus: int = 1
    prior: int = 3
    base_records: int = 3
    patched_records: int = 2
    factor: float = 3.0
    floor: float = 1e-5
    bitwise: bool = False
    ranks: bool = False

    def on(self, gpus: int) -> Workload:
        """The same on so many GPUs."""
        arguments = (*self.arguments, "--ranks", str(gpus))
        return replace(self, name=f"{self.name}-{gpus}-gpus", gpus=gpus, arguments=arguments)


@dataclass(frozen=True)
class Suite:
    """The workloads of one ``bench.toml``, in order."""

    file: Path
    prefix: str
    workloads: tuple[Workload, ...]
    path: tuple[Path, ...] = ()

    def chosen(self, names: Collection[str], gpus: int = 0) -> tuple[Workload, ...]:
        """The named workloads, or all.

        Args:
            names: Of workloads; all if empty.
            gpus: If given, those that can run on any number of GPUs, on so many.

        Raises:
            SuiteError: a name is not in the suite, or none of the named can run on so many GPUs.
        """
        known = {workload.name: workload for workload in self.workloads}
        if unknown := [name for name in names if name not in known]:
            raise SuiteError(f"no workload {', '.join(unknown)} in {self.file}; it has {', '.join(known)}")
        found = tuple(workload for workload in self.workloads if not names or workload.name in names)
        if not gpus:
            return found
        if not any(workload.ranks for workload in found):
            able = ", ".join(workload.name for workload in self.workloads if workload.ranks) or "none"
            raise SuiteError(f"no such workload can be asked for on {gpus} GPUs; those of {self.file} that can: {able}")
        return tuple(workload.on(gpus) for workload in found if workload.ranks)


def load_suite(file: Path) -> Suite:
    """Read a ``bench.toml``.

    Raises:
        SuiteError: it is not there, or a field is missing, unknown or wrong.
    """
    try:
        body = tomllib.loads(file.read_text(encoding="utf-8"))
        workloads = tuple(_workload(file.parent, entry) for entry in body["workload"])
        suite = Suite(file, body["prefix"], workloads, tuple(file.parent / each for each in body.get("path", ())))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SuiteError(f"{file}: {error}") from None
    except KeyError as error:
        raise SuiteError(f"{file}: {error} is missing") from None
    names = [workload.name for workload in workloads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SuiteError(f"{file}: two workloads are named {', '.join(twice)}")
    return suite


def _workload(folder: Path, entry: dict[str, Any]) -> Workload:
    known = {each.name for each in fields(Workload)}
    if unknown := sorted(set(entry) - known):
        raise SuiteError(f"{folder}: a workload has no field {', '.join(unknown)}")
    if entry["kind"] not in KINDS:
        raise SuiteError(f"{folder}: kind {entry['kind']!r}; one of: {', '.join(KINDS)}")
    lists: dict[str, Any] = {name: tuple(entry[name]) for name in ("arguments", "arms") if name in entry}
    entry.setdefault("gpus", 0 if entry["kind"] == "count" else 1)
    made = Workload(**{**entry, **lists, "script": folder / entry["script"]})
    if not made.script.is_file():
        raise SuiteError(f"{folder}: there is no {entry['script']}")
    return made
