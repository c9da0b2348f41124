"""``audit-project``: the host syncs of a project's sample step by call site, on the base and on the patched tree."""

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
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report, progress
from nosync.running import libraries_python

COLUMNS = ("tree", "waits", "blocked_ms", "where", "operator", "kind", "phase")


def audit_project(layout: Layout, name: str, base_word: str) -> Report:
    """Run ``tests/<project>/audited_step.py`` under the audit, once per tree; a row a site, largest first."""
    (project,) = choose(load_projects(layout.projects_file), name)
    base, python = project.base(base_word), libraries_python()
    report = Report("audit", COLUMNS)
    with lock.exclusive(layout.build / "lock", f"audit {name}"):
        building.build(layout, project, base, leave=True)
    for kind in ("base", "patched"):
        progress(f"{name} {base.id}: auditing the {kind} tree")
        on_gpu, sites = _run(layout, project, base, kind, python)
        report.note(f"{kind}: {sum(site['waits'] for site in sites)} host syncs at {len(sites)} sites")
        for site in sites:
            where = f"{Path(site['file']).name}:{site['line']}"
            shown = {key: site[key] for key in COLUMNS if key in site}
            report.add(tree=kind, where=where, **shown | ({} if on_gpu else {"blocked_ms": ""}))
    return report


def _run(layout: Layout, project: Project, base: Base, kind: str, python: str) -> tuple[bool, list[dict[str, Any]]]:
    """Whether a GPU ran it, and the sites."""
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
        argv = [python, "-m", "nosync.hostsync.audit", "--region", "step", "--json", str(out), "audited_step.py"]
        done = subprocess.run(
            argv, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NosyncError(
                f"the audited step failed on the {kind} tree", "see its last lines", "", done.stderr[-1500:]
            )
        audit = json.loads(out.read_text(encoding="utf-8"))
        return audit["backend"] == "cuda", audit["sites"]
