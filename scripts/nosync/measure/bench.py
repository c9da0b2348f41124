"""Run a suite on two trees and write what came out: JSON, Markdown and a plot."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nosync.measure import ab, equivalence, machine, plots, results
from nosync.measure.ab import Measured
from nosync.measure.runs import Runner
from nosync.measure.suite import Suite, Workload


@dataclass(frozen=True)
class Request:
    """What to run.

    Args:
        suite: The workloads.
        base: The id of the base that the trees are of.
        trees: Source roots by arm; ``base`` and ``patched`` at least.
        python: The interpreter of the workloads.
        out: The folder for the results.
        only: Names of the workloads to run; all if empty.
        runs: Runs of each arm in place of what the suite says.
        gpus: How many GPUs the workloads that run as one process a GPU are asked for on; 0: the whole suite.
        seconds: After which no further workload starts, and no round of runs that would not end before it.
        path: More folders for the workloads' PYTHONPATH.
        smoke: A dry run.
        measured: ``<series>@<base>`` to the digest of the series' code in the patched tree.
        command: What the user typed.
    """

    suite: Suite
    base: str
    trees: Mapping[str, Path]
    python: str
    out: Path
    only: Sequence[str] = ()
    runs: int = 0
    gpus: int = 0
    seconds: float = float("inf")
    path: Sequence[Path] = ()
    smoke: bool = False
    measured: Mapping[str, str] = field(default_factory=dict)
    command: str = ""


def bench(request: Request) -> tuple[Path, dict[str, Any]]:
    """Run it all; returns the JSON file and what is in it. A workload that fails does not stop the others."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workload's processes end with this one
    end = time.monotonic() + request.seconds
    described = machine.describe()
    done: list[Measured] = []
    for workload in request.suite.chosen(request.only, request.gpus):
        done.append(_one(request, workload, described, end))
        file, body = write(request, described, done)  # after each: a killed bench leaves what it has
    return file, body


def _one(request: Request, workload: Workload, described: dict[str, Any], end: float) -> Measured:
    if time.monotonic() >= end:
        return Measured(workload).stop("not run", f"the {request.seconds:g} seconds were over")
    if not request.smoke and len(described["gpus"]) < workload.gpus:
        return Measured(workload).stop("unavailable", f"needs {workload.gpus} GPUs, here are {len(described['gpus'])}")
    if missing := [arm for arm in workload.arms if arm not in request.trees]:
        return Measured(workload).stop("unavailable", f"needs the tree {', '.join(missing)}, which was not given")
    if request.runs:
        workload = replace(workload, runs=request.runs)
    runner = Runner(request.python, request.trees, (*request.suite.path, *request.path), request.smoke)
    try:
        if workload.kind == "record":
            return equivalence.measure(runner, workload, request.out / "recordings" / workload.name)
        return ab.measure(runner, workload, end)
    except (ValueError, OSError) as error:
        return Measured(workload).stop("failed", str(error))


def write(request: Request, described: dict[str, Any], done: list[Measured]) -> tuple[Path, dict[str, Any]]:
    """``<machine>-<base>-<date>.json``, ``.md``, ``.svg`` in the request's folder; a part names what it is of too."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    body: dict[str, Any] = {
        "suite": request.suite.prefix,
        "base": request.base,
        "date": today,
        "command": request.command,
        "smoke": request.smoke,
        "machine": described,
        "trees": {arm: tree_id(tree) for arm, tree in request.trees.items()},
        "figures": results.figures(request.suite.prefix, done),
        "measured": dict(request.measured),
        "workloads": [results.as_dict(each) for each in done],
    }
    body = _without_paths(body, request)
    request.out.mkdir(parents=True, exist_ok=True)
    word = "smoke" if request.smoke else machine.short_name(described)
    part = "".join(f"-{name}" for name in request.only) + (f"-{request.gpus}-gpus" if request.gpus else "")
    file = request.out / f"{word}-{request.base}{part}-{today}.json"
    file.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(results.markdown(body), encoding="utf-8")
    times = {name: each for workload in body["workloads"] for name, each in workload["times"].items()}
    title = f"{request.suite.prefix} {request.base}: median step time of each run, ms"
    file.with_suffix(".svg").write_text(plots.runs(title, times), encoding="utf-8")
    return file, body


def _without_paths(body: dict[str, Any], request: Request) -> dict[str, Any]:
    """Results are committed: no folder of this machine stays in them."""
    text = json.dumps(body, default=str)
    places = {str(tree.resolve()): f"<{arm}>" for arm, tree in request.trees.items()}
    places |= {str(request.out.resolve()): "<out>"}
    places |= {str(Path(__file__).resolve().parents[3]): ".", str(Path.home()): "~", sys.prefix: "<python>"}
    for place, word in sorted(places.items(), key=lambda item: -len(item[0])):
        if len(place) > 1:
            text = re.sub(re.escape(place) + r"(?=[/\s\"',:;)]|\\|$)", word, text)
    return json.loads(text)


def tree_id(source_root: Path) -> str:
    """The commit that a tree stands at, with ``+edits`` if its files differ; without git, a digest of its files."""
    git = ["git", "-C", str(source_root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD", "--show-toplevel"], capture_output=True, text=True, check=True
        )
        commit, top = head.stdout.split("\n")[:2]
        if (Path(top) / ".git").is_dir() and not (Path(top) / "upstream" / "projects.toml").exists():
            dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
            return commit + ("+edits" if dirty.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    return f"files {files_digest(source_root)[:16]}"


def files_digest(folder: Path) -> str:
    """Of the Python files below a folder, by path and content."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()
