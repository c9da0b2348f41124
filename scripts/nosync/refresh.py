"""``refresh``: the commits of a patched tree, written back as its series' patch files, byte for byte.

What is written is first applied to a fresh base and must give the tree's files and messages again; so a patch that
would not survive the way back is refused before any file changes.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from nosync import building, history, lock, mailbox, ownership, patchfolder, scratch, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.ownership import Commit
from nosync.patchfile import blob_id, parse
from nosync.projects import Base, Project, load_projects
from nosync.report import Report
from nosync.series import Cell, Patch, cells, load_series
from nosync.sources import Source
from nosync.trees import PatchState, Record

COLUMNS = ("project", "base", "series", "patch", "change")


def refresh(layout: Layout, name: str, base_word: str, series: str, dry: bool) -> Report:
    """Write the tree's commits into patches/; ``dry`` only says what would change (exit 1 if anything).

    Args:
        series: The series of commits that are new, where that is not plain.
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
    trees.recover(layout.tree("patched", project.name, base.id), layout)
    tree, record = _tree(layout, project, base)
    source = Source(project, base, record.source, record.reason)
    todo = cells(project, load_series(layout.patches, project), base)
    _refuse_moved_pin(tree, record, source)
    _refuse_unready(project, base, tree, record, todo, wanted)
    _refuse_unwritable(tree, source)
    seen = trees.head(tree)
    owners = ownership.assign(tree, record, todo, wanted)
    staging = scratch.fresh_folder(layout, f"exported-{project.name}@{base.id}")
    exported = _export(staging, tree, base, todo, owners)
    _refuse_changed(project, base, record, todo, exported)
    fresh, states = _round_trip(layout, source, tree, exported)
    staying = {cell.series.name for cell in todo if cell.inherited} & ownership.untouched(tree, record, owners)
    changed = False
    for old, new in zip(todo, exported, strict=True):
        if old.series.name not in staying:
            changed |= _write(old, new, base, dry, report)
    if not dry:
        _settle(layout, source, tree, seen, fresh, ownership.with_staying(record, states, todo, staying))
    shutil.rmtree(fresh.path)
    shutil.rmtree(staging)
    for line in ownership.gone(record, owners):
        report.note(line)
    if not changed:
        report.note("no patch changes: the files are what the tree's commits give")


def _tree(layout: Layout, project: Project, base: Base) -> tuple[Repo, Record]:
    tree = Repo(layout.tree("patched", project.name, base.id))
    record = trees.read_record(tree)
    again = f"make apply P={project.name} BASE={base.id}"
    if record is None:
        raise NosyncError(f"there is no patched tree {tree.path}", "nothing was applied yet", again)
    if record.format != trees.FORMAT:
        raise NosyncError(
            f"{tree.path} was made by another version of the tool", "the tool was updated", f"{again} FORCE=1"
        )
    return tree, record


# ---- what refresh refuses ------------------------------------------------------------------------


def _refuse_moved_pin(tree: Repo, record: Record, source: Source) -> None:
    if (record.source == "archive" and source.base.archive is None) or source.identity != record.identity:
        raise NosyncError(
            f"{tree.path} was made from another pin than {source.base.id} has now",
            "upstream/projects.toml changed since; the tree's commits stand on the former files",
            f"git diff upstream/projects.toml      # put it back, then: make refresh-{source.project.name}\n"
            f"make apply P={source.project.name} BASE={source.base.id} FORCE=1      # or keep the commits under a ref",
        )


def _refuse_unready(project: Project, base: Base, tree: Repo, record: Record, todo: list[Cell], wanted: str) -> None:
    if operation := trees.operation_in_progress(tree):
        way_out = trees.ways_to_end(tree, operation)
        raise NosyncError(f"{operation} is in progress in {tree.path}", "it waits for you", way_out)
    if changed := trees.edits(tree):
        raise NosyncError(
            f"{tree.path} has uncommitted edits: {', '.join(changed[:5])}",
            "refresh writes commits; it does not guess into which one an edit belongs",
            f"git -C {tree.path} commit -a --amend\ngit -C {tree.path} commit -a --fixup=<commit> && "
            f"git -C {tree.path} rebase -i --autosquash {trees.BASE}",
        )
    if not tree.ok("merge-base", "--is-ancestor", trees.BASE, "HEAD"):
        raise NosyncError(
            f"HEAD of {tree.path} does not stand on the base",
            "another branch is checked out",
            f"git -C {tree.path} switch main",
        )
    if merges := tree.git("rev-list", "--merges", f"{trees.BASE}..HEAD").split():
        raise NosyncError(
            f"{tree.path} holds a merge commit, {merges[0][:12]}", "a series is a line of commits",
            f"git -C {tree.path} rebase {trees.BASE}",
        )  # fmt: skip
    names = [cell.series.name for cell in todo]
    if wanted and wanted not in names:
        raise NosyncError(
            f"{project.name} has no series {wanted!r}",
            "a mistyped name, or series.toml is still to be written",
            "one of: " + ", ".join(names),
        )
    own = {cell.series.name for cell in todo if not cell.inherited}
    if lost := [state for state in record.patches if not state.commit and state.series in own]:
        raise NosyncError(
            f"{lost[0].series}/{lost[0].file} made no commit ({lost[0].word}), so refresh would drop it",
            "upstream has the change on this base",
            f"git rm patches/{project.name}/{lost[0].series}/{base.id}/{lost[0].file}\n"
            f"make apply P={project.name} BASE={base.id}",
        )


def _refuse_unwritable(tree: Repo, source: Source) -> None:
    """Refuse commits that touch what a patch must not, or what this source cannot carry."""
    for commit in history.entries(tree, f"{trees.BASE}..HEAD", raw=True):
        for path, raw in commit.raw.items():
            if "160000" in raw[:14]:  # either mode of ':old new …'
                raise NosyncError(
                    f"commit {commit.id[:12]} of {tree.path} holds {path} as a submodule",
                    "a git repository lies in the tree and was added as it is",
                    f"git -C {tree.path} rebase -i {trees.BASE}",
                )
            if source.absent and path.startswith(source.absent):
                raise NosyncError(
                    f"commit {commit.id[:12]} of {tree.path} touches {path}, which the archive lacks",
                    "this tree was made from an archive, and so cannot say what upstream has there",
                    f"make apply P={source.project.name} BASE={source.base.id} SOURCE=git FORCE=1\n"
                    f"git -C {tree.path} cherry-pick <the kept commit>",
                )


def _refuse_changed(project: Project, base: Base, record: Record, todo: list[Cell], exported: list[Cell]) -> None:
    """Refuse to write over patch files that are neither what was applied nor what would be written.

    Some of each is what a refresh that was killed leaves; anything else came from another hand.
    """
    for old, new in zip(todo, exported, strict=True):
        applied = {state.file: state.blob for state in record.patches if state.series == old.series.name}
        coming = {patch.file.name: blob_id(patch.file.read_bytes()) for patch in new.patches}
        now = {patch.file.name: blob_id(patch.file.read_bytes()) for patch in old.patches}
        strange = [name for name, blob in now.items() if blob not in (applied.get(name), coming.get(name))]
        strange += [name for name in applied.keys() & coming.keys() if name not in now]
        if strange:
            folder = old.series.own_folder(old.written_for or base)
            raise NosyncError(
                f"{folder} changed since it was applied: {', '.join(sorted(strange))}",
                "an edit by hand or a pull; the tree's commits do not know of it",
                f"git diff {folder}      # put the files back, then: make refresh-{project.name}\n"
                f"make apply P={project.name} BASE={base.id} FORCE=1      # or take them; the commits are kept",
            )


# ---- from commits to files -----------------------------------------------------------------------


def _export(staging: Path, tree: Repo, base: Base, todo: list[Cell], owners: list[tuple[Commit, str]]) -> list[Cell]:
    """The series' commits as patch files in a scratch folder, as cells."""
    exported = []
    for cell in todo:
        mine = [commit for commit, owner in owners if owner == cell.series.name]
        files = mailbox.write(tree, f"{mine[0].id}^", mine[-1].id, staging / cell.series.name) if mine else []
        for commit, file in zip(mine, files, strict=True):
            _restore_left_out(file, commit, tree)
            _restore_other_form(file, commit, tree)
        exported.append(replace(cell, written_for=base, patches=tuple(Patch(file) for file in files)))
    return exported


def _restore_left_out(file: Path, commit: Commit, tree: Repo) -> None:
    """Give back to a patch the diffs of paths that the source lacks by nature; the tree never saw them."""
    if commit.origin and commit.origin.left_out:
        mailbox.restore(file, parse(tree.raw("cat-file", "blob", commit.origin.blob)), commit.origin.left_out)


def _restore_other_form(file: Path, commit: Commit, tree: Repo) -> None:
    """An untouched commit on the release's form of a file keeps its patch, which names the form of the base."""
    origin = commit.origin
    if origin and origin.commit == commit.id and origin.word == "applied" and origin.other_form:
        file.write_bytes(tree.raw("cat-file", "blob", origin.blob))


def _round_trip(layout: Layout, source: Source, tree: Repo, staged: list[Cell]) -> tuple[Repo, list[PatchState]]:
    """Apply what was exported to a fresh base and compare each commit with the tree's."""
    building.ensure_base(layout, source)
    fresh, states = building.make_patched(layout, source, staged, kind="refreshed")
    ours, theirs = trees.contents(tree), trees.contents(fresh)
    for position, (commit, content) in enumerate(ours):
        if position >= len(theirs) or theirs[position][1] != content:
            raise _lost(tree, commit)
    if len(ours) != len(theirs):
        raise _lost(tree, ours[-1][0] if ours else trees.head(tree))
    return fresh, states


def _lost(tree: Repo, commit: str) -> NosyncError:
    return NosyncError(
        f"commit {commit[:12]} of {tree.path} does not survive the way through a patch file",
        "a line '---' or 'diff -' in its message, '[PATCH]' in its subject, or empty lines and spaces that mail drops",
        f"git -C {tree.path} rebase -i {trees.BASE}      # reword it; no patch file was changed",
    )


# ---- writing -------------------------------------------------------------------------------------


def _write(old: Cell, new: Cell, base: Base, dry: bool, report: Report) -> bool:
    """Bring the series' folder of this base to the new files; returns whether anything differs."""
    before = {patch.file.name: patch.file.read_bytes() for patch in old.patches}
    after = {patch.file.name: patch.file.read_bytes() for patch in new.patches}
    folder = old.series.own_folder(base)
    if not dry:
        patchfolder.bring(folder, after)
    if before == after:
        return False
    for name in sorted(before.keys() | after.keys()):
        if change := _change(before.get(name), after.get(name)):
            report.add(
                not dry, project=old.series.project, base=base.id, series=old.series.name, patch=name, change=change
            )
    return True


def _change(before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return ""
    if before is None:
        return "new"
    return "removed" if after is None else "changed"


def _settle(layout: Layout, source: Source, tree: Repo, seen: str, fresh: Repo, states: list[PatchState]) -> None:
    """Move the tree's branch to the commits that ``apply`` would make of the new files; its files stay as they are.

    All refs move in one transaction, and none if a commit was made meanwhile (HEAD is not ``seen``). ``main`` comes
    along where it still was what ``apply`` left; the former commits stay known as the tool's own.
    """
    trees.fetch(tree, fresh.path, trees.APPLIED, "refs/nosync/refreshed")
    new, former = (tree.git("rev-parse", ref).strip() for ref in ("refs/nosync/refreshed", trees.APPLIED))
    todo = cells(source.project, load_series(layout.patches, source.project), source.base)
    record = trees.record_blob(tree, replace(building.wanted_record(source, todo), patches=states))
    moves = [f"update HEAD {new} {seen}", f"update {trees.APPLIED} {new}", f"update {trees.RECORD} {record}"]
    patches = [(cell.series.name, patch.file) for cell in todo for patch in cell.patches]
    stored = trees.store_patches(tree, states, patches)
    moves += [f"update {trees.PATCHES} {stored}", "delete refs/nosync/refreshed"]
    if new != former:
        moves.append(f"update {trees.FORMER}/{former} {former}")
        if _left_behind(tree, former):
            moves.append(f"update refs/heads/main {new}")
    tree.git("update-ref", "-m", "nosync refresh", "--stdin", data="".join(f"{move}\n" for move in moves).encode())


def _left_behind(tree: Repo, former: str) -> bool:
    """Is ``main`` not checked out and still at what ``apply`` left?"""
    branch = tree.git("symbolic-ref", "-q", "HEAD").strip() if tree.ok("symbolic-ref", "-q", "HEAD") else ""
    return (
        branch != "refs/heads/main"
        and tree.ok("rev-parse", "-q", "--verify", "refs/heads/main")
        and tree.git("rev-parse", "refs/heads/main").strip() == former
    )
