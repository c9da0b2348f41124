"""``drift``: would every series still apply to the newest release of its project? Nothing is written but scratch."""

from __future__ import annotations

import shutil
from dataclasses import replace

from nosync import building, lock
from nosync.errors import Unreachable
from nosync.layout import Layout
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report
from nosync.series import cells, load_series
from nosync.sources import Source, archive
from nosync.words import acceptable, summary

COLUMNS = ("project", "newest", "series", "state", "detail")


def drift(layout: Layout, name: str | None) -> Report:
    """One row a series: its state on the newest release, patches merged three-way where they are another base's."""
    report = Report("drift", COLUMNS)
    with lock.exclusive(layout.build / "lock", "drift"):
        for project in choose(load_projects(layout.projects_file), name):
            _project(layout, project, report)
    return report


def _project(layout: Layout, project: Project, report: Report) -> None:
    packages = [base.archive.package for base in project.bases if base.archive]
    if not packages:
        report.add(project=project.name, newest="-", series="-", state="no release", detail="known by its commit alone")
        return
    newest = archive.newest(packages[-1])
    known = next((base for base in project.bases if base.archive == newest), None)
    base = known or Base(newest.version, "", newest, False)
    wider = project if known else replace(project, bases=(*project.bases, base))
    try:
        _series(layout, wider, base, report)
    except Unreachable as error:
        report.add(False, project=project.name, newest=base.id, series="-", state="not reachable", detail=error.seen)


def _series(layout: Layout, project: Project, base: Base, report: Report) -> None:
    source = Source(project, base, "archive", "drift looks at the release")
    todo = cells(project, load_series(layout.patches, project), base)
    building.ensure_base(layout, source)
    scratch, states = building.make_patched(layout, source, todo, kind="drift")
    shutil.rmtree(scratch.path)
    for cell in todo:
        mine = [state for state in states if state.series == cell.series.name]
        word, detail = summary(mine, len(cell.patches))
        if cell.written_for is None:
            word, detail = "no patches", ""
        sound = acceptable(word, cell.inherited)
        written_for = f"patches of {cell.written_for.id}" if cell.inherited and cell.written_for else ""
        report.add(
            sound, project=project.name, newest=base.id, series=cell.series.name, state=word,
            detail="; ".join(filter(None, (written_for, detail))),
        )  # fmt: skip
