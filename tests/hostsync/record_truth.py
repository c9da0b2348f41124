"""Record how often each idiom makes the host wait on this machine's GPU.

    PYTHONPATH=scripts python tests/hostsync/record_truth.py tests/hostsync/h200.json

Each idiom is measured three times: by the ``cuda`` backend without the profiler (sync-debug and explicit waits), by
the same with the profiler, and, in a process of its own, by the virtual backend for comparison. An idiom that fails
is recorded with its error. One that leaves the GPU unusable ends its process; the parent starts another for the rest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from idioms import IDIOMS, Idiom, Inputs

from nosync.hostsync import host_syncs, use_backend

SECONDS = 200
UNUSABLE = 3  # exit status of a child that lost the GPU


def main() -> int:
    """Measure in child processes; write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the data file to write")
    parser.add_argument("--only", default="", help="idioms whose name holds this text")
    parser.add_argument("--child", choices=list(MEASURES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [idiom.name for idiom in IDIOMS if options.only in idiom.name]
    if options.child:
        measure_all(MEASURES[options.child], names, options.output)
        return 0
    if not torch.cuda.is_available():
        print("record_truth.py needs a GPU that torch can use", file=sys.stderr)
        return 2
    on_gpu, virtual = in_children("cuda", names), in_children("virtual", names)
    rows = {name: {"virtual": virtual[name].get("virtual"), **on_gpu[name]} for name in names}
    data = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "idioms": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print_table(rows)
    return 0


def in_children(what: str, names: list[str]) -> dict[str, Any]:
    """Run one measurement in child processes until every idiom has a row."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        while missing := [name for name in names if name not in rows]:
            path.write_text("".join(json.dumps({"skip": name}) + "\n" for name in rows), encoding="utf-8")
            command = [sys.executable, __file__, str(path), "--child", what]
            try:
                end = f"exit {subprocess.run(command, check=False, timeout=SECONDS).returncode}"
            except subprocess.TimeoutExpired:
                end = f"no end within {SECONDS} s"
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            rows |= {line["name"]: line["row"] for line in lines if "row" in line}
            stuck = next((name for name in missing if name not in rows), None)
            if stuck is not None and end != f"exit {UNUSABLE}":
                rows[stuck] = {"error": f"ended the process: {end}"}
    return rows


def measure_all(measure: Callable[[Idiom], dict[str, Any]], names: list[str], path: Path) -> None:
    """In a child: append one line per idiom that the file does not name; stop once the GPU is unusable."""
    known = {json.loads(line).get("skip") for line in path.read_text(encoding="utf-8").splitlines()}
    with path.open("a", encoding="utf-8") as file:
        for idiom in IDIOMS:
            if idiom.name in known or idiom.name not in names:
                continue
            row = measure(idiom)
            file.write(json.dumps({"name": idiom.name, "row": row}) + "\n")
            file.flush()
            if "CUDA error" in row.get("error", ""):
                sys.exit(UNUSABLE)


def measure_cuda(idiom: Idiom) -> dict[str, Any]:
    """One idiom's counts on the GPU; the error where it fails."""
    row: dict[str, Any] = {}
    try:
        device = torch.device("cuda", 0)
        idiom.make(Inputs(device))()  # warm up: kernels, handles, workspaces
        run = idiom.make(Inputs(device))
        with host_syncs("cuda") as plain:
            run()
        run = idiom.make(Inputs(device))
        with host_syncs("cuda", profile=True) as profiled:
            run()
        row |= {
            "sync_debug": plain.cross_checks["sync_debug"],
            "announced": plain.count,
            "profiler": profiled.cross_checks["profiler"],
            "recorded": profiled.count,
            "pageable": profiled.pageable_copies,
            "operators": sorted({f"{event.operator} [{event.kind}]" for event in profiled.counted}),
        }
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return row


def measure_virtual(idiom: Idiom) -> dict[str, Any]:
    """What the virtual backend says, or its error."""
    try:
        with use_backend("virtual") as device:
            run = idiom.make(Inputs(device))
            with host_syncs() as syncs:
                run()
        return {"virtual": syncs.count}
    except Exception as error:
        return {"virtual": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}


MEASURES = {"cuda": measure_cuda, "virtual": measure_virtual}


def print_table(rows: dict[str, Any]) -> None:
    """The rows where two counters differ, then a summary."""
    keys = ("virtual", "sync_debug", "announced", "profiler", "recorded", "pageable")
    print("|".join(("idiom", *keys)))
    for name, row in rows.items():
        counts = [row.get(key) for key in keys]
        mark = "  <-- " + row["error"] if "error" in row else "" if len(set(counts[:5])) == 1 else "  <--"
        print("|".join([name, *map(str, counts)]) + mark)
    same = sum("error" not in row and row["virtual"] == row["profiler"] for row in rows.values())
    print(f"{same} of {len(rows)} agree (virtual and profiler)")


if __name__ == "__main__":
    sys.exit(main())
