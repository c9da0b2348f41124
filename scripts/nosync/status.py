"""``status``: the matrix of series and bases."""

from __future__ import annotations

from nosync import trees
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report
from nosync.running import test_results
from nosync.series import Cell, cells, digest, load_series
from nosync.sources import Source
from nosync.words import summary

COLUMNS = ("project", "series", "base", "pin", "source", "patches", "state", "own_tests", "our_tests", "upstream")


def status(layout: Layout, name: str | None) -> Report:
    """One row a cell; nothing is built and no network is asked."""
    report = Report("status", COLUMNS)
    for project in choose(load_projects(layout.projects_file), name):
        all_series = load_series(layout.patches, project)
        for base in project.bases:
            _base_rows(layout, report, project, base, cells(project, all_series, base))
    return report


def _base_rows(layout: Layout, report: Report, project: Project, base: Base, todo: list[Cell]) -> None:
    tree = Repo(layout.tree("patched", project.name, base.id))
    record = trees.read_record(tree)
    work = trees.local_work(tree) if record else []
    stale = _stale(project, base, todo, record) if record else ""
    results = test_results(layout, project.name, base.id)
    common = {
        "project": project.name,
        "base": base.id,
        "pin": base.commit[:12] if base.pinned else "",
        "source": record.source if record else "-",
        "own_tests": results.get("own", "-"),
        "our_tests": results.get("ours", "-"),
    }
    if not todo:
        report.add(**common, series="-", patches=0, state="no series", upstream="")
    for cell in todo:
        states = [state for state in record.patches if state.series == cell.series.name] if record else []
        report.add(
            **common,
            series=cell.series.name,
            patches=len(cell.patches),
            state=_state(cell, states, record is not None, stale, work),
            upstream=" ".join(filter(None, (cell.series.status, cell.series.merged_as[:12], cell.series.pull_request))),
        )


def _stale(project: Project, base: Base, todo: list[Cell], record: trees.Record) -> str:
    """What changed since the tree was made, if anything."""
    if record.digest != digest(todo):
        return "patches changed since"
    source = Source(project, base, record.source)
    usable = record.format == trees.FORMAT and (record.source == "git" or base.archive)
    return "" if usable and source.identity == record.identity else "pin changed since"


def _state(cell: Cell, states: list[trees.PatchState], built: bool, stale: str, work: list[str]) -> str:
    if cell.written_for is None:
        return "no patches"
    if not built:
        return "not applied"
    word, _ = summary(states, len(cell.patches))
    notes = []
    if cell.inherited and cell.written_for:
        notes.append(f"patches of {cell.written_for.id}, three-way")
    if stale:
        notes.append(stale)
    if work:
        notes.append("local work")
    return ", ".join([word, *notes])
