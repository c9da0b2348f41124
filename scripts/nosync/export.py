"""``export``: everything that a pull request needs, in ``build/export/<project>/<series>/``; sent with SEND=1 alone.

What is written is the same bytes for the same patches, base and git version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from nosync import branches, checklist, lock, pullrequest, scratch, sums, trees
from nosync.branches import Branch
from nosync.checklist import Line
from nosync.errors import NosyncError
from nosync.git import GitFailure
from nosync.layout import Layout
from nosync.projects import Base, Project, load_projects
from nosync.report import Report, progress
from nosync.rewriting import Rules
from nosync.series import Series, load_series

COLUMNS = ("project", "series", "base", "source", "what", "result", "detail")
TRAILERS = ("Nosync-[A-Za-z-]*", "Change-Id")  # ours, never upstream's


def export(layout: Layout, name: str, series: str, base_word: str, source: str, send: bool) -> Report:
    """Export the project's series that go upstream, or one.

    Args:
        send: Run the commands that push the branch and open the pull request, if every check holds.
    """
    project = load_projects(layout.projects_file).get(name)
    if project is None:
        raise NosyncError(f"no project {name!r}", "a mistyped name", "make status")
    base, report = project.base(base_word), Report("export", COLUMNS)
    everything = load_series(layout.patches, project)
    with lock.exclusive(layout.build / "lock", f"export {name}"):
        chosen = _chosen(project, everything, series, report)
        for each in chosen:
            _refuse_edited(layout, project, each)
        for each in chosen:
            _one(layout, project, everything, each, base, source, report)
    if send:
        _send(layout, project, report)
    return report


def _chosen(project: Project, everything: list[Series], wanted: str, report: Report) -> list[Series]:
    if wanted:
        found = [series for series in everything if series.name == wanted]
        if not found:
            raise NosyncError(
                f"{project.name} has no series {wanted!r}", "", "one of: " + ", ".join(each.name for each in everything)
            )
        if not found[0].upstream:
            raise NosyncError(f"{project.name}/{wanted} is not for upstream", "'upstream = false' in its series.toml")
        return found
    chosen = []
    for series in everything:
        if not series.upstream:
            report.add(
                project=project.name, series=series.name, what="-", result="left away", detail="not for upstream"
            )
        elif series.status in ("merged", "closed"):
            report.add(
                project=project.name,
                series=series.name,
                what="-",
                result="left away",
                detail=f"{series.status} {series.merged_as[:12]}; S={series.name} exports it all the same",
            )
        else:
            chosen.append(series)
    return chosen


def _one(
    layout: Layout, project: Project, everything: list[Series], series: Series, base: Base, wanted: str, report: Report
) -> None:
    final = _place(layout, project, series)
    cells = branches.needed(project, everything, series, base)
    source = branches.best_source(layout, project, base, wanted)
    progress(f"{project.name}/{series.name}: exporting {sum(len(cell.patches) for cell in cells)} patches on {base.id}")
    branch = branches.make(layout, source, cells, series.name, _rules(layout, project, series))
    out = scratch.fresh_folder(layout, f"export-{project.name}-{series.name}")
    try:
        _write(layout, project, series, branch, out, final, report)
        sums.write(out)
    finally:
        shutil.rmtree(branch.repo.path, ignore_errors=True)
    _refuse_edited(layout, project, series)  # again: the checks may have taken a while
    trees.move_into_place(out, final, layout)


def _place(layout: Layout, project: Project, series: Series) -> Path:
    return layout.build / "export" / project.name / series.name


def _refuse_edited(layout: Layout, project: Project, series: Series) -> None:
    """The former export must not be replaced where a person changed it."""
    final = _place(layout, project, series)
    trees.recover(final, layout)
    if edited := sums.changed(final):
        raise NosyncError(
            f"{final} is not what was exported last: {', '.join(edited[:5])}",
            f"edits by hand, which an export would replace; the text is {series.folder / 'cover.md'}",
            f"{final}/send.sh      # sends it as it is\nmv {final} <elsewhere>, then the same command again",
        )


def _rules(layout: Layout, project: Project, series: Series) -> Rules:
    table = project.extra.get("upstreaming", {})
    mailmap = layout.root / "upstream" / "mailmap"
    return Rules(
        trailers=TRAILERS,
        mailmap=str(mailmap) if mailmap.is_file() else "",
        sign_off=series.sign_off,
        drop=tuple(table.get("drop", ())),
        moves=tuple((old, new) for old, new in table.get("moves", ())),
    )


def _write(
    layout: Layout, project: Project, series: Series, branch: Branch, out: Path, final: Path, report: Report
) -> None:
    common = {
        "project": project.name,
        "series": series.name,
        "base": branch.source.base.id,
        "source": branch.source.kind,
    }

    def row(ok: bool, what: str, result: str, detail: str = "") -> None:
        report.add(ok, **common, what=what, result=result, detail=detail)

    mailbox = branches.patches(branch, out / "patches")
    row(True, "patches", f"{len(mailbox)} files", _compared(branch, mailbox))
    branches.bundle(branch, out / f"{series.name}.bundle")
    row(True, "bundle", f"{series.name}.bundle", "git clones it; its root stands for the base")
    pushable = _graft(layout, series, branch, out, row)
    lines = pullrequest.own_lines(layout, project, series, branch, mailbox) + checklist.check(layout, project, branch)
    (out / "CHECKLIST.md").write_text(checklist.markdown(series.title, lines), encoding="utf-8")
    _line_rows(lines, row)
    _write_text(layout, project, series, branch, lines, out, row)
    script = out / "send.sh"
    script.write_text(
        pullrequest.commands(project, series, branch, pushable)
        if pushable
        else pullrequest.without_commit(project, branch)
    )
    script.chmod(0o755)
    _range_diff(series, branch, out, final, row)
    report.note(f"{final}: read PR.md and CHECKLIST.md, then: FORK=<address of your fork> {final}/send.sh, or SEND=1")


def _graft(layout: Layout, series: Series, branch: Branch, out: Path, row) -> str:  # type: ignore[no-untyped-def]
    """The bundle on upstream's own commit, and its name; empty where that commit is out of reach."""
    if not branch.real:
        row(True, "branch to push", "not yet", pullrequest.why_no_commit(branch))
        return ""
    name = f"{series.name}-on-{branch.real[:12]}.bundle"
    tip = branches.grafted_bundle(layout, branch, out / name)
    row(True, "branch to push", name, f"{tip[:12]} on upstream's {branch.real[:12]}")
    return name


def _compared(branch: Branch, mailbox: list[Path]) -> str:
    committed = [patch.file for patch, _ in branch.committed]
    if len(committed) != len(mailbox):
        return f"{len(committed)} are committed; the others hold only paths that are ours"
    other = [
        file.name for file, was in zip(mailbox, committed, strict=True) if not pullrequest.same_but_trailers(file, was)
    ]
    said = "the committed ones, trailers apart"
    said = f"other than {said}: {', '.join(other)}" if other else said
    return "; ".join([said, *_inherited(branch)])


def _inherited(branch: Branch) -> list[str]:
    """What is to be said of series whose patches are another base's."""
    base = branch.source.base.id
    said = [
        f"{cell.series.name}: patches of {cell.written_for.id}, merged three-way"
        for cell in branch.cells
        if cell.inherited and cell.written_for
    ]
    there = [f"{state.series}/{state.file}" for state in branch.states if state.word == "already-upstream"]
    return said + ([f"in {base} already: {', '.join(there)}"] if there else [])


def _line_rows(lines: list[Line], row) -> None:  # type: ignore[no-untyped-def]
    for line in lines:
        row(
            line.sound,
            "checklist",
            line.word,
            f"{line.text}" + (f": {line.output.splitlines()[-1]}" if line.output and not line.sound else ""),
        )


def _write_text(  # type: ignore[no-untyped-def]
    layout: Layout, project: Project, series: Series, branch: Branch, lines: list[Line], out: Path, row
) -> None:
    filled = pullrequest.text(layout, project, series, branch, lines)
    if not filled.problems:
        (out / "PR.md").write_text(filled.text, encoding="utf-8")
        row(True, "PR.md", "written", f"with figures of {', '.join(filled.elsewhere)}" if filled.elsewhere else "")
        return
    more = f" (and {len(filled.problems) - 1} more, see missing-figures.txt)" if len(filled.problems) > 1 else ""
    (out / "missing-figures.txt").write_text("\n".join(filled.problems) + "\n", encoding="utf-8")
    row(False, "PR.md", "figures missing", filled.problems[0] + more)


def _range_diff(series: Series, branch: Branch, out: Path, final: Path, row) -> None:  # type: ignore[no-untyped-def]
    """``range-diff.txt``: what changed since the previous export; kept as it was where nothing did."""
    old, kept = final / f"{series.name}.bundle", final / "range-diff.txt"
    if not old.is_file():
        row(True, "range-diff", "first export")
        return
    try:
        trees.fetch(branch.repo, old, f"refs/heads/{branch.name}", f"refs/previous/{branch.name}")
    except GitFailure as failure:
        row(True, "range-diff", "not made", f"the previous bundle cannot be read: {failure.err.strip()}")
        return
    before = branch.repo.git("rev-parse", f"refs/previous/{branch.name}").strip()
    if before == branch.tip:
        if kept.exists():
            shutil.copy(kept, out / "range-diff.txt")
        row(True, "range-diff", "no change", "the same commits as the previous export")
        return
    root = branch.repo.git("rev-list", "--max-parents=0", before).strip()
    text = branch.repo.git("range-diff", "--no-color", f"{root}..{before}", f"{branch.root}..{branch.tip}")
    (out / "range-diff.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
    changed = len(re.findall(r"^ *(?:\d+|-): +\S+ [!<>] ", text, re.MULTILINE))
    row(True, "range-diff", "range-diff.txt", f"{changed} commits differ from the previous export")


# ---- sending ----


def _send(layout: Layout, project: Project, report: Report) -> None:
    if report.code:
        raise _not_sent(report)
    for name in dict.fromkeys(row["series"] for row in report.rows if row["what"] == "PR.md"):
        script = layout.build / "export" / project.name / name / "send.sh"
        progress(f"{project.name}/{name}: sending")
        done = subprocess.run([script], env=dict(os.environ), capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip().splitlines()
        report.add(
            done.returncode == 0, project=project.name, series=name, what="send",
            result="sent" if done.returncode == 0 else "failed", detail=said[-1] if said else "",
        )  # fmt: skip


def _not_sent(report: Report) -> NosyncError:
    wrong = [
        f"{row['series']}: {row['what']}: {row['result']}: {row['detail']}" for row in report.rows if not row["ok"]
    ]
    return NosyncError(
        "nothing was sent: not everything holds",
        "see the lines",
        "mend them, then the same command again",
        "\n".join(wrong),
    )
