"""Synthetic workloads and suites for the tests of `nosync.measure`: trees are folders with one number in them."""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nosync.measure.runs import Runner
from nosync.measure.suite import Workload

PREAMBLE = """
import json, sys
from pathlib import Path
from nosync.measure import writing

options = writing.parser("synthetic").parse_args()
speed = float((options.tree / "speed").read_text())
state = Path(__file__).with_name("state")
number = int(state.read_text()) if state.exists() else 0
state.write_text(str(number + 1))
with writing.Lines(options.out) as lines:
"""


def workload(folder: Path, body: str, **fields: Any) -> Workload:
    """A workload whose script runs ``body``; it sees ``lines``, ``speed`` of its tree and ``number`` of runs before."""
    script = folder / f"{fields.get('name', 'synthetic')}.py"
    indented = "\n".join("    " + line for line in body.splitlines())
    script.write_text(PREAMBLE + indented + "\n", encoding="utf-8")
    return Workload(**{"name": "synthetic", "kind": "time", "script": script, "minutes": 0.5} | fields)


def runner(folder: Path, base: float = 10.0, patched: float = 9.0) -> Runner:
    """Two trees of different speed, on a machine whose GPUs nobody is asked about."""
    trees = {}
    for arm, speed in (("base", base), ("patched", patched)):
        trees[arm] = folder / arm
        trees[arm].mkdir(exist_ok=True)
        (trees[arm] / "speed").write_text(str(speed))
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    return Runner(sys.executable, trees, (scripts,), settle_s=0.0)


def recording(file: Path, tensors: dict[str, tuple[Sequence[int], str, Sequence[float]]]) -> None:
    """Write a recording: name to (shape, numpy's dtype, elements)."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, (shape, dtype, elements) in tensors.items():
            archive.writestr(f"{name}.npy", npy(shape, dtype, elements))


def npy(shape: Sequence[int], dtype: str, elements: Sequence[float]) -> bytes:
    """An array in numpy's file format, version 1."""
    assert math.prod(shape) == len(elements)
    out = io.BytesIO()
    header = repr({"descr": dtype, "fortran_order": False, "shape": tuple(shape)}).encode() + b"\n"
    out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    if dtype == "<f2":
        out.write(struct.pack(f"<{len(elements)}e", *elements))
    else:
        kind = {"<f8": "d", "<f4": "f", "<i8": "q", "|b1": "B"}[dtype]
        out.write(array(kind, elements if kind in "df" else map(int, elements)).tobytes())
    return out.getvalue()
