"""``refresh``: the commits of a patched tree, written back as its series' patch files, byte for byte.

What is written is first applied to a fresh base and must give the tree's files and messages again; so a patch that
would not survive the way back is refused before any file changes.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from nosync import building, lock, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.patchfile import parse
from nosync.projects import Base, Project, load_projects
from nosync.report import Report
from nosync.series import Cell, Patch, cells, digest, load_series
from nosync.sources import Source
from nosync.trees import PatchState, Record

# Every setting that could change a byte is given, so that the user's configuration has nothing left to say.
FORMAT_PATCH = (
    "format-patch", "-q", "--zero-commit", "--no-signature", "--full-index", "--no-stat", "--no-renames",
    "--diff-algorithm=myers", "--indent-heuristic", "-U3", "--inter-hunk-context=0", "--src-prefix=a/",
    "--dst-prefix=b/", "--no-numbered", "--no-attach", "--no-thread", "--no-cover-letter", "--no-base", "--no-notes",
    "--no-ext-diff", "--no-textconv", "--no-relative", "--no-color", "--no-signoff", "--no-from", "--no-to", "--no-cc",
    "--no-add-header", "--binary", "--subject-prefix=PATCH", "--encode-email-headers", "--suffix=.patch",
    "--filename-max-length=64", "--submodule=short", "--always",
)  # fmt: skip
COLUMNS = ("project", "base", "series", "patch", "change")


def refresh(layout: Layout, name: str, base_word: str, series: str, dry: bool) -> Report:
    """Write the tree's commits into patches/; ``dry`` only says what would change (exit 1 if anything).

    Args:
        series: The series that commits which are new belong to, where that is not plain.
    """
    project = load_projects(layout.projects_file).get(name)
    if project is None:
        raise NosyncError(f"no project {name!r}", "a mistyped name", "make status")
    base = project.base(base_word)
    report = Report("refresh (dry)" if dry else "refresh", COLUMNS)
    with lock.exclusive(layout.build / "lock", f"refresh {name}"):
        _refresh(layout, project, base, series, dry, report)
    return report


def _refresh(layout: Layout, project: Project, base: Base, wanted: str, dry: bool, report: Report) -> None:
    tree, record = _tree(layout, project, base)
    todo = cells(project, load_series(layout.patches, project), base)
    _refuse_unready(project, tree, todo, wanted)
    owners = assign(tree, record, todo, wanted)
    exported = _export(layout, tree, base, todo, owners, record)
    fresh, states = _round_trip(layout, Source(project, base, record.source, record.reason), tree, exported)
    untouched = _untouched(record, owners)
    changed = False
    for old, new in zip(todo, exported, strict=True):
        if not (old.inherited and old.series.name in untouched):
            changed |= _write(old, new, base, dry, report)
    shutil.rmtree(layout.scratch / "exported", ignore_errors=True)
    if dry:
        shutil.rmtree(fresh.path)
    else:
        _settle(layout, project, base, tree, fresh, record, states)
    if not changed:
        report.note("no patch changes: the files are what the tree's commits give")


def _tree(layout: Layout, project: Project, base: Base) -> tuple[Repo, Record]:
    tree = Repo(layout.tree("patched", project.name, base.id))
    record = trees.read_record(tree)
    if record is None:
        raise NosyncError(f"there is no patched tree {tree.path}", "nothing was applied yet", f"make apply P={project.name} BASE={base.id}")
    return tree, record


def _refuse_unready(project: Project, tree: Repo, todo: list[Cell], wanted: str) -> None:
    if operation := trees.operation_in_progress(tree):
        word = operation.removeprefix("git ")
        raise NosyncError(f"{operation} is in progress in {tree.path}", "it waits for you", f"git -C {tree.path} {word} --continue")
    if changed := trees.edits(tree):
        raise NosyncError(
            f"{tree.path} has uncommitted edits: {', '.join(changed[:5])}",
            "refresh writes commits; it does not guess into which one an edit belongs",
            f"git -C {tree.path} commit -a --amend\ngit -C {tree.path} commit -a --fixup=<commit> && "
            f"git -C {tree.path} rebase -i --autosquash {trees.BASE}",
        )
    if not tree.ok("merge-base", "--is-ancestor", trees.BASE, "HEAD"):
        raise NosyncError(f"HEAD of {tree.path} does not stand on the base", "another branch is checked out", f"git -C {tree.path} switch main")
    if merges := tree.git("rev-list", "--merges", f"{trees.BASE}..HEAD").split():
        raise NosyncError(f"{tree.path} holds a merge commit, {merges[0][:12]}", "a series is a line of commits", "rebase it away")
    names = [cell.series.name for cell in todo]
    if wanted and wanted not in names:
        raise NosyncError(f"{project.name} has no series {wanted!r}", "", "one of: " + ", ".join(names))


# ---- which commit belongs to which series -----------------------------------------------------------------------------


def assign(tree: Repo, record: Record, todo: list[Cell], wanted: str) -> list[tuple[str, str]]:
    """(commit, series) for every commit of the tree, oldest first.

    A commit that ``apply`` made keeps its series; a rewritten one is known by author, date and subject, else by its
    subject. A new one belongs to ``wanted``, else to the series of the commit below it, else to the only or first one.
    """
    order = [cell.series.name for cell in todo]
    known = {state.commit: state.series for state in record.patches if state.commit}
    by_mark = {_mark(tree, commit): series for commit, series in known.items()}
    by_subject = {mark[-1]: series for mark, series in by_mark.items()}
    found: list[tuple[str, str]] = []
    for commit in trees.commits(tree):
        mark = _mark(tree, commit)
        below = found[-1][1] if found else (order[0] if order else "")
        owner = known.get(commit) or by_mark.get(mark) or by_subject.get(mark[-1]) or wanted or below
        if not owner:
            raise NosyncError(f"{tree.path} has commits but the project has no series", "", "make patches/<project>/<series>/series.toml first")
        found.append((commit, owner))
    positions = [order.index(owner) for _, owner in found if owner in order]
    if positions != sorted(positions):
        listing = "\n".join(f"{commit[:12]} {owner}: {_mark(tree, commit)[-1]}" for commit, owner in found)
        raise NosyncError(
            f"the commits of {tree.path} mix the series ({' below '.join(order)})",
            "a commit was reordered across a series, or a new one stands among another series' commits",
            f"git -C {tree.path} rebase -i {trees.BASE}, or name the new commits' series with S=<series>",
            listing,
        )
    return found


def _untouched(record: Record, owners: list[tuple[str, str]]) -> set[str]:
    """Series whose commits are still the ones that ``apply`` made; an inherited one of these needs no own folder."""
    made = [(state.commit, state.series) for state in record.patches if state.commit]
    names = {series for _, series in made}
    return {name for name in names if [c for c, s in made if s == name] == [c for c, s in owners if s == name]}


def _mark(tree: Repo, commit: str) -> tuple[str, ...]:
    return tuple(tree.git("log", "-1", "--format=%an%x00%ae%x00%at%x00%s", commit).rstrip("\n").split("\0"))


# ---- from commits to files --------------------------------------------------------------------------------------------


def _export(layout: Layout, tree: Repo, base: Base, todo: list[Cell], owners: list[tuple[str, str]], record: Record) -> list[Cell]:
    """The series' commits as patch files in a scratch folder, as cells."""
    root = layout.scratch / "exported"
    shutil.rmtree(root, ignore_errors=True)
    exported = []
    for cell in todo:
        mine = [commit for commit, owner in owners if owner == cell.series.name]
        folder = root / cell.series.name
        folder.mkdir(parents=True)
        if mine:
            tree.git(*FORMAT_PATCH, "-o", str(folder), f"{mine[0]}^..{mine[-1]}")
        files = sorted(folder.glob("*.patch"))
        for commit, file in zip(mine, files, strict=True):
            _restore_left_out(file, commit, cell, record, tree)
        exported.append(replace(cell, written_for=base, patches=tuple(Patch(file) for file in files)))
    return exported


def _restore_left_out(file: Path, commit: str, cell: Cell, record: Record, tree: Repo) -> None:
    """Give back to a patch the diffs of paths that the source lacks by nature; the tree never saw them."""
    mine = [state for state in record.patches if state.series == cell.series.name and state.commit]
    state = next((state for state in mine if state.commit == commit), None)
    if state is None:
        subject = _mark(tree, commit)[-1]
        state = next((state for state in mine if _mark(tree, state.commit)[-1] == subject), None)
    former = next((patch for patch in cell.patches if state and patch.file.name == state.file), None)
    if state and state.left_out and former:
        file.write_bytes(parse(file.read_bytes()).with_diffs_of(former.text(), state.left_out).data)


def _round_trip(layout: Layout, source: Source, tree: Repo, staged: list[Cell]) -> tuple[Repo, list[PatchState]]:
    """Apply what was exported to a fresh base and compare each commit with the tree's."""
    fresh, states = building.make_patched(layout, source, staged, kind="refreshed")
    ours, theirs = trees.commits(tree), trees.commits(fresh)
    format_ = "--format=%T%x00%an%x00%ae%x00%aI%x00%B"
    for mine, again in zip(ours, theirs, strict=False):
        if tree.git("log", "-1", format_, mine).rstrip() != fresh.git("log", "-1", format_, again).rstrip():
            raise _lost(tree, mine)
    if len(ours) != len(theirs):
        raise _lost(tree, ours[min(len(theirs), len(ours) - 1)])
    return fresh, states


def _lost(tree: Repo, commit: str) -> NosyncError:
    return NosyncError(
        f"commit {commit[:12]} of {tree.path} does not survive the way through a patch file",
        "a line '---' or 'diff --git' in its message, a subject of several lines, or a change mail cannot carry",
        f"git -C {tree.path} rebase -i {trees.BASE}      # reword it; no patch file was changed",
    )


# ---- writing ----------------------------------------------------------------------------------------------------------


def _write(old: Cell, new: Cell, base: Base, dry: bool, report: Report) -> bool:
    """Bring the series' folder of this base to the new files; returns whether anything differs."""
    before = {patch.file.name: patch.file.read_bytes() for patch in old.patches}
    after = {patch.file.name: patch.file.read_bytes() for patch in new.patches}
    if before == after:
        return False
    folder = old.series.own_folder(base)
    for name in sorted(before.keys() | after.keys()):
        change = _change(before.get(name), after.get(name))
        if change:
            report.add(not dry, project=old.series.project, base=base.id, series=old.series.name, patch=name, change=change)
    if not dry:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in after.items():
            _replace(folder / name, data)
        for name in {file.name for file in folder.glob("*.patch")} - after.keys():
            (folder / name).unlink()
    return True


def _change(before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return ""
    if before is None:
        return "new"
    return "removed" if after is None else "changed"


def _replace(file: Path, data: bytes) -> None:
    if file.exists() and file.read_bytes() == data:
        return
    partial = file.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, file)


def _settle(layout: Layout, project: Project, base: Base, tree: Repo, fresh: Repo, record: Record, states: list[PatchState]) -> None:
    """Move the tree's branch to the commits that ``apply`` would make of the new files; its files stay as they are."""
    tree.git("fetch", "-q", "--no-tags", "--no-write-fetch-head", str(fresh.path), "+HEAD:refs/nosync/refreshed")
    tree.git("update-ref", "-m", "nosync refresh", "HEAD", "refs/nosync/refreshed")
    tree.git("update-ref", trees.APPLIED, "refs/nosync/refreshed")
    tree.git("update-ref", "-d", "refs/nosync/refreshed")
    new = cells(project, load_series(layout.patches, project), base)
    trees.write_record(tree, replace(record, digest=digest(new), patches=states))
    shutil.rmtree(fresh.path)
