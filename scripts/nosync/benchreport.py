"""``bench-report``: docs/results.md and the README's table, written from the committed result files."""

from __future__ import annotations

from pathlib import Path

from nosync import figures, wholefile
from nosync.errors import NosyncError
from nosync.layout import Layout
from nosync.measure import claims
from nosync.measure.claims import ResultFile
from nosync.presentcode import result_files
from nosync.projects import Project, load_projects
from nosync.report import Report

COLUMNS = ("project", "claim", "base", "patched", "ratio", "said")


def bench_report(layout: Layout, dry: bool = False) -> Report:
    """Write both; a row a claim. With ``dry`` only say whether they would change: a change is then wrong."""
    report = Report("bench-report", COLUMNS)
    try:
        every = claims.load_claims(layout.root / "results" / "claims.toml")
    except (OSError, ValueError) as error:
        raise NosyncError(str(error), "results/claims.toml says what was claimed and which figure tests it") from None
    projects = list(load_projects(layout.projects_file).values())
    files = [file for project in projects for file in result_files(layout, project)]
    found = claims.rows(every, files)
    for row in found:
        shown = {"base": row.base, "patched": row.patched, "ratio": row.ratio, "said": row.said}
        report.add(project=row.claim.project, claim=row.claim.claim, **shown)
    texts = {
        layout.root / "docs" / "results.md": claims.page(found),
        layout.root / "README.md": _readme(layout, claims.readme_table(found)),
    }
    for file, text in texts.items():
        _write(report, layout, file, text, dry)
    for project in projects:
        report.notes += [f"missing figure: {name}" for name in missing(layout, project, files)]
    return report


def missing(layout: Layout, project: Project, files: list[ResultFile]) -> list[str]:
    """Figures that a cover of the project names and no result file has."""
    have = {name for file in files for name in file.body["figures"]}
    wanted: dict[str, None] = {}
    for cover in sorted((layout.patches / project.name).glob("*/cover.md")):
        wanted |= dict.fromkeys(figures.names(cover.read_text(encoding="utf-8")))
    return [name for name in wanted if name not in have]


def _readme(layout: Layout, body: str) -> str:
    try:
        return claims.put_between((layout.root / "README.md").read_text(encoding="utf-8"), "results", body)
    except ValueError as error:
        raise NosyncError(f"README.md: {error}", "the markers of the table were edited") from None


def _write(report: Report, layout: Layout, file: Path, text: str, dry: bool) -> None:
    name = file.relative_to(layout.root)
    same = file.exists() and file.read_text(encoding="utf-8") == text
    if not same and not dry:
        wholefile.write(file, text.encode("utf-8"))
    if not same and dry:
        report.add(False, claim=str(name), said="would change: make bench-report")
    report.note(f"{name}: {'unchanged' if same else 'would change' if dry else 'written'}")
