"""``apply``: both trees of every project, on one base each."""

from __future__ import annotations

from nosync import building, lock
from nosync.building import Built
from nosync.errors import Unreachable
from nosync.layout import Layout
from nosync.projects import Project, choose, load_projects
from nosync.report import Report
from nosync.words import acceptable, summary

COLUMNS = ("project", "base", "source", "series", "patches", "state", "detail")
NOT_REACHABLE = "not reachable"


def apply(layout: Layout, project: str | None, base: str, source: str, force: bool) -> Report:
    """Build what is missing or stale; one row a series.

    A project that cannot be had is an error when it was asked for by name, else a row with its reason.
    """
    report = Report("apply", COLUMNS)
    with lock.exclusive(layout.build / "lock", "apply"):
        for each in choose(load_projects(layout.projects_file), project):
            _one(layout, report, each, base, source, force, named=project is not None)
    if report.rows and all(row["state"] == NOT_REACHABLE for row in report.rows):
        raise Unreachable(
            "no project can be had", "no network", "make apply, later", "\n".join(row["detail"] for row in report.rows)
        )
    if not any(row.get("made") for row in report.rows) and report.code == 0:
        report.note("nothing to do: every tree is what its pin and its patches say")
    return report


def _one(layout: Layout, report: Report, project: Project, base: str, source: str, force: bool, named: bool) -> None:
    ask_again = named or force or bool(source)
    try:
        built = building.build(
            layout, project, project.base(base), wanted_source=source, force=force, ask_again=ask_again
        )
    except Unreachable as error:
        if named:
            raise
        report.add(
            project=project.name,
            base=project.base(base).id,
            source="-",
            series="-",
            state=NOT_REACHABLE,
            detail=error.seen,
        )
        return
    add_rows(report, built)
    for ref in built.kept:
        report.note(f"kept: {ref}    (git -C {layout.tree('patched', project.name, built.base.id)} log {ref})")


def add_rows(report: Report, built: Built) -> None:
    """One row a series of what was built."""
    common = {
        "project": built.project.name,
        "base": built.base.id,
        "source": built.source.kind,
        "made": list(built.made),
    }
    if not built.cells:
        report.add(**common, series="-", patches=0, state="no series", detail="")
    for cell in built.cells:
        states = [state for state in built.states if state.series == cell.series.name]
        word, detail = summary(states, len(cell.patches))
        if cell.inherited and cell.written_for:
            detail = f"patches of {cell.written_for.id}, merged three-way" + (f"; {detail}" if detail else "")
        if cell.written_for is None:
            word, detail = "no patches", "none for this base or an earlier one"
        report.add(
            acceptable(word, cell.inherited),
            **common,
            series=cell.series.name,
            patches=f"{len(states)}/{len(cell.patches)}",
            state=word,
            detail=detail,
            files=[vars(state) for state in states],
        )
