"""``audit-project``: the host syncs of a project's sample step by call site, on the base and on the patched tree.

On a GPU three counters stand side by side: sync-debug with the explicit waits, the profiler, and the detector, which
needs no GPU; and the picture of one step, base above patched, has a time axis.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from nosync import building, lock
from nosync.errors import NosyncError
from nosync.layout import Layout
from nosync.measure import plots
from nosync.measure.plots import Span
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report, progress
from nosync.running import has_gpu, libraries_python

COLUMNS = ("tree", "detector", "sync_debug", "profiler", "blocked_ms", "where", "operator", "kind", "phase")
CUDA, VIRTUAL = "cuda", "virtual"


def audit_project(layout: Layout, name: str, base_word: str) -> Report:
    """Run ``tests/<project>/audited_step.py`` under the audit, per tree and backend; a row a site, largest first."""
    (project,) = choose(load_projects(layout.projects_file), name)
    base, python = project.base(base_word), libraries_python()
    report = Report("audit", COLUMNS)
    with lock.exclusive(layout.build / "lock", f"audit {name}"):
        building.build(layout, project, base, leave=True)
    audits: dict[str, dict[str, Any]] = {}
    for kind in ("base", "patched"):
        progress(f"{name} {base.id}: auditing the {kind} tree")
        detected = _run(layout, project, base, kind, python, VIRTUAL)
        on_gpu = _run(layout, project, base, kind, python, CUDA) if has_gpu(python) else None
        audits[kind] = on_gpu or detected
        for row in side_by_side(detected["sites"], on_gpu["sites"] if on_gpu else None):
            report.add(tree=kind, **row)
        report.note(_totals(kind, detected, on_gpu))
    report.note(f"written: {_draw(layout, project, base, audits)}")
    return report


def side_by_side(detected: list[dict[str, Any]], on_gpu: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """A row per call site, operator and phase with the counts of the detector and, from a GPU, of the others.

    Largest first. Waits that libraries below torch make are the profiler's alone, of kind ``library``.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for counter, sites in (("detector", detected), ("sync_debug", on_gpu or [])):
        for site in sites:
            key = (site["file"], site["line"], site["operator"], site["phase"])
            where = f"{Path(site['file']).name}:{site['line']}"
            row = rows.setdefault(key, {"where": where, "detector": 0} | ({"sync_debug": 0} if on_gpu else {}))
            row |= {name: site[name] for name in ("operator", "kind", "phase")}
            if counter == "detector" or site["kind"] != "library":
                row[counter] += site["waits"]
            if counter == "sync_debug":
                row |= {name: site[name] for name in ("profiler", "blocked_ms")}
    return sorted(rows.values(), key=lambda row: (-row.get("blocked_ms", 0), -row["detector"], row["where"]))


def _totals(kind: str, detected: dict[str, Any], on_gpu: dict[str, Any] | None) -> str:
    sites = detected["sites"]
    said = f"{kind}: {sum(site['waits'] for site in sites)} host syncs at {len(sites)} sites by the detector"
    if on_gpu is None:
        return said + "; no GPU: no sync-debug, no profiler"
    seen = ", ".join(f"{name} {number}" for name, number in on_gpu["counters"].items())
    blocked = {(site["file"], site["line"]): site["blocked_ms"] for site in on_gpu["sites"]}  # of all of a line's rows
    return f"{said}; on the GPU: {seen}, {sum(blocked.values()):.2f} ms blocked"


def _draw(layout: Layout, project: Project, base: Base, audits: dict[str, dict[str, Any]]) -> Path:
    """The picture of the last recorded step, under ``build/results/audit/``."""
    unit = audits["base"]["timeline"]["unit"]
    lanes = [(kind, [Span(*span) for span in audit["timeline"]["spans"]]) for kind, audit in audits.items()]
    file = layout.results / "audit" / f"{project.name}@{base.id}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    axis = "" if unit == "ms" else " (no GPU: the order of the waits, no time)"
    file.write_text(plots.timeline(f"{project.name} {base.id}: one step{axis}", lanes, unit), encoding="utf-8")
    return file


def _run(layout: Layout, project: Project, base: Base, kind: str, python: str, backend: str) -> dict[str, Any]:
    """What the audit of one tree writes; each backend has a process of its own."""
    roots = {each: layout.tree(each, project.name, base.id) / project.source_root for each in ("base", "patched")}
    folder = layout.root / "tests" / project.name
    path = [roots[kind], layout.root / "scripts", layout.root / "tests", folder]
    environment = {
        "NOSYNC_TREE": kind,
        "NOSYNC_BASE_PATH": str(roots["base"]),
        "NOSYNC_PATCHED_PATH": str(roots["patched"]),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "sites.json"
        argv = [python, "-m", "nosync.hostsync.audit", "--backend", backend, "--region", "step", "--json", str(out)]
        done = subprocess.run(
            [*argv, "audited_step.py"], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise NosyncError(
                f"the audited step failed on the {kind} tree", "see its last lines", "", done.stderr[-1500:]
            )
        return dict(json.loads(out.read_text(encoding="utf-8")))
