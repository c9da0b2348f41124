"""``lint``: what must hold between the repository's files, checked without building anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nosync.git import GitFailure, user_git
from nosync.layout import Layout
from nosync.patchfile import PatchText, parse, unsafe
from nosync.projects import Project, load_projects
from nosync.report import Report
from nosync.series import Series, load_series

COLUMNS = ("what", "where", "result", "detail")
_UNBREAKABLE = re.compile(r"://|^[A-Z][A-Za-z-]+-by: ")  # an address, a trailer
_OURS = re.compile(r"nosync|build/patched|build/base", re.IGNORECASE)


def lint(layout: Layout) -> Report:
    """Pins against gitlinks, and every patch against what a mailbox and an upstream reader can take."""
    report = Report("lint", COLUMNS)
    projects = load_projects(layout.projects_file)
    _line_ends(layout, report)
    _folders(layout, projects, report)
    for project in projects.values():
        _pin(layout, project, report)
        for series in load_series(layout.patches, project):
            _series(project, series, report)
    return report


def _add(report: Report, what: str, where: str, problems: list[str]) -> None:
    report.add(not problems, what=what, where=where, result="wrong" if problems else "ok", detail="; ".join(problems))


def _folders(layout: Layout, projects: dict[str, Project], report: Report) -> None:
    """Folders that no verb would ever look into."""
    there = layout.patches.iterdir() if layout.patches.is_dir() else ()
    for name in sorted(path.name for path in there if path.is_dir() and path.name not in projects):
        _add(report, "project", f"patches/{name}", [f"no project {name}; one of: {', '.join(projects)}"])


def _pin(layout: Layout, project: Project, report: Report) -> None:
    path = f"upstream/{project.name}"
    out = _superproject(layout.root, "ls-files", "-s", "--", path).split()
    problems = []
    if not out or out[0] != "160000":
        problems.append("no gitlink is recorded")
    elif out[1] != project.pinned.commit:
        problems.append(f"the gitlink is {out[1]}, projects.toml says {project.pinned.commit}")
    modules = _superproject(layout.root, "config", "-f", ".gitmodules", "--get-regexp", r"submodule\..*\.(path|url)")
    pairs = dict(line.split(" ", 1) for line in modules.splitlines())
    if pairs.get(f"submodule.{path}.path") != path or pairs.get(f"submodule.{path}.url") != project.url:
        problems.append(".gitmodules has another address or path")
    _add(report, "pin", path, problems)


def _line_ends(layout: Layout, report: Report) -> None:
    """Whether a clone's files are the committed bytes, whatever core.autocrlf says."""
    asked = ("patches/any.patch", "scripts/any")
    out = _superproject(layout.root, "check-attr", "text", "--", *asked).splitlines()
    unset = [line for line in out if line.endswith(": text: unset")]
    _add(report, "line ends", ".gitattributes", [] if len(unset) == len(asked) else ["it lacks the line '* -text'"])


def _superproject(root: Path, *argv: str) -> str:
    """What git says of the checkout, and nothing where it is no repository."""
    try:
        return user_git(root, *argv, anywhere=True)
    except GitFailure:
        return ""


def _series(project: Project, series: Series, report: Report) -> None:
    where = f"patches/{project.name}/{series.name}"
    known = {base.id for base in project.bases}
    folders = [entry for entry in series.folder.iterdir() if entry.is_dir()]
    problems = [f"{entry.name} is no base of {project.name}" for entry in folders if entry.name not in known]
    if not (series.folder / "cover.md").is_file() and series.upstream:
        problems.append("no cover.md")
    if series.status == "merged" and not series.merged_as:
        problems.append("merged, but merged_as is empty")
    _add(report, "series", where, problems)
    for folder in sorted(folders):
        for number, file in enumerate(sorted(folder.glob("*.patch")), 1):
            _patch(file, number, series, report, f"{where}/{folder.name}/{file.name}")


def _patch(file: Path, number: int, series: Series, report: Report, where: str) -> None:
    text = parse(file.read_bytes())
    if text.carriage_returns:
        _add(report, "patch", where, ["CRLF line ends; git's own lines have none"])
        return
    problems = list(_name_problems(file, number)) + list(_message_problems(text, series)) + list(_diff_problems(text))
    _add(report, "patch", where, problems)


def _name_problems(file: Path, number: int) -> Iterator[str]:
    if not file.name.startswith(f"{number:04d}-"):
        yield f"expected number {number:04d}"


def _message_problems(text: PatchText, series: Series) -> Iterator[str]:
    head = text.head.decode("utf-8", "replace")
    if not head.startswith("From " + "0" * 40 + " Mon Sep 17 00:00:00 2001\n"):
        yield "not written by refresh (its first line is not git's with a zero commit)"
    header, _, message = head.partition("\n\n")
    subject = text.subject()
    if len(subject) > 72:
        yield f"the subject has {len(subject)} characters"
    if re.search(r"^(---[ \t]*$|--- \S|diff -|Index: )", message, re.MULTILINE):
        yield "a line of the message looks like the start of a diff; git am would cut it there"
    if long := [line for line in message.splitlines() if len(line) > 76 and not _UNBREAKABLE.search(line)]:
        yield f"a line of the message has {len(long[0])} characters"
    if series.sign_off and "\nSigned-off-by: " not in "\n" + message:
        yield "no Signed-off-by, which this upstream requires"
    if series.upstream and _OURS.search(header + text.data.decode("utf-8", "replace")):
        yield "a word of this monorepo"


def _diff_problems(text: PatchText) -> Iterator[str]:
    if not text.diffs:
        yield "no diff"
    yield from unsafe(text)
    for diff in text.diffs:
        if b"\nGIT binary patch\n" in diff.text:
            yield f"binary: {diff.path}"
        if len(diff.old) != 40 and not _mode_alone(diff.text):
            yield f"no full blob ids for {diff.path}"
        added = [line for line in diff.text.split(b"\n@@", 1)[-1].splitlines() if line.startswith(b"+")]
        if any(line.rstrip(b"\r") != line.rstrip(b"\r").rstrip() for line in added):
            yield f"trailing whitespace in {diff.path}"


def _mode_alone(diff: bytes) -> bool:
    return b"\nold mode " in diff and b"\n@@" not in diff
