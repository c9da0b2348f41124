"""Making a project's two trees on one base, or finding them made already."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from nosync import applying, scratch, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Base, Project
from nosync.report import progress
from nosync.series import Cell, cells, digest, load_series
from nosync.sources import Source, obtain
from nosync.trees import FORMAT, PatchState, Record


@dataclass(frozen=True)
class Built:
    """A project's trees on one base.

    Args:
        made: Which of the two trees this call made: none, ``base``, ``patched`` or both.
        local_work: What the user did in the patched tree, where it was left as it is.
        kept: refs under which a forced rebuild kept the user's work.
        failed: States of a build that stopped at a patch which does not fit; the tree in place is the former one.
    """

    project: Project
    base: Base
    source: Source
    cells: list[Cell]
    made: tuple[str, ...]
    states: list[PatchState]
    local_work: list[str]
    kept: list[str]
    failed: bool


def build(
    layout: Layout,
    project: Project,
    base: Base,
    *,
    wanted_source: str = "",
    force: bool = False,
    leave: bool = False,
    ask_again: bool = False,
) -> Built:
    """Make sure both trees are what the pins and patches say.

    Args:
        wanted_source: ``git`` or ``archive`` to take no other.
        force: Rebuild a patched tree with local work, keeping that work under refs.
        leave: Take a patched tree with local work as it is (for testing it) instead of refusing.
        ask_again: Ask the network even where it gave no answer a moment ago.

    Raises:
        Unreachable: no source can be reached.
        NosyncError: local work is in the way.
    """
    final = layout.tree("patched", project.name, base.id)
    trees.recover(final, layout)
    tree = Repo(final)
    have, work = trees.read_record(tree), trees.local_work(tree)
    todo = cells(project, load_series(layout.patches, project), base)
    if work and not force:
        if not leave or have is None:
            raise _in_the_way(project, base, tree, work)
        source = Source(project, base, have.source, have.reason)  # the two trees stay comparable
        made = ("base",) if ensure_base(layout, source) else ()
        return Built(project, base, source, todo, made, have.patches, work, [], False)
    source = _source(layout, project, base, wanted_source, ask_again)
    made = ("base",) if ensure_base(layout, source) else ()
    want = wanted_record(source, todo)
    if have is not None and not work and have.same_inputs(want):
        return Built(project, base, source, todo, made, have.patches, [], [], False)
    states, kept = _rebuild(layout, source, todo, want, tree, force)
    failed = any(state.word in applying.STOPPING for state in states)
    return Built(project, base, source, todo, made if failed else (*made, "patched"), states, [], kept, failed)


def wanted_record(source: Source, todo: list[Cell]) -> Record:
    """What the record of a patched tree says when it is made of these, but for the patches' states."""
    project, base = source.project, source.base
    return Record(FORMAT, project.name, base.id, source.kind, source.reason, source.identity, digest(todo))


def ensure_base(layout: Layout, source: Source) -> bool:
    """Make the base tree unless it is there; returns whether it was made."""
    project, base = source.project, source.base
    final = layout.tree("base", project.name, base.id)
    trees.recover(final, layout)
    tree = Repo(final)
    want = replace(wanted_record(source, []), digest="")
    have = trees.read_record(tree)
    _refuse_changed_base(project, base, tree)
    if have is not None and have.same_inputs(want):
        return False
    progress(f"{project.name} {base.id}: making the base tree from its {source.kind} source")
    made = Repo.create(trees.scratch_for(layout, "base", project, base))
    source.fill(layout, made)
    trees.commit_base(made, project, base)
    trees.write_record(made, want)
    _refuse_changed_base(project, base, tree)  # again: filling it may take a download
    trees.move_into_place(made.path, final, layout)
    return True


def _refuse_changed_base(project: Project, base: Base, tree: Repo) -> None:
    if work := trees.local_work(tree):
        raise NosyncError(
            f"the base tree {tree.path} was changed: {'; '.join(work)}",
            "edits meant for the patched tree",
            f"mv {tree.path} <elsewhere>      # this tree alone\nmake apply P={project.name}{_base_word(base)}",
        )


def make_patched(
    layout: Layout, source: Source, todo: list[Cell], kind: str = "patched"
) -> tuple[Repo, list[PatchState]]:
    """A fresh patched tree in the scratch folder, not yet in place, and what became of each patch.

    Args:
        kind: Names the scratch folder; two builds of one base at a time need two names.
    """
    project, base = source.project, source.base
    made = Repo.create(trees.scratch_for(layout, kind, project, base))
    trees.start_from(made, Repo(layout.tree("base", project.name, base.id)))
    fetch_merge_bases(layout, made, project, todo)
    items = applying.items(todo, source)
    states = applying.apply_all(made, items, scratch.fresh(layout, f"mail-{kind}-{project.name}"))
    stored = trees.store_patches(made, states, [(item.series, item.file) for item in items])
    made.git("update-ref", "--stdin", data=f"update {trees.APPLIED} HEAD\nupdate {trees.PATCHES} {stored}\n".encode())
    return made, states


def _source(layout: Layout, project: Project, base: Base, wanted: str, ask_again: bool = False) -> Source:
    """The source of the trees in place where it still serves; the network is asked only for a tree to be made."""
    final = layout.tree("base", project.name, base.id)
    trees.recover(final, layout)
    have = trees.read_record(Repo(final))
    if have is not None and have.format == FORMAT and wanted in ("", have.source):
        source = Source(project, base, have.source, have.reason)
        if source.identity == have.identity and not (
            have.source == "archive" and _git_came_since(layout, project, base)
        ):
            return source
    return obtain(layout, project, base, wanted, ask_again)


def _git_came_since(layout: Layout, project: Project, base: Base) -> bool:
    """Was the submodule initialised after an archive had to serve?"""
    return bool(base.commit) and (layout.submodule(project.name) / ".git").exists()


def _rebuild(
    layout: Layout, source: Source, todo: list[Cell], want: Record, tree: Repo, force: bool
) -> tuple[list[PatchState], list[str]]:
    count = sum(len(cell.patches) for cell in todo)
    progress(f"{source.project.name} {source.base.id}: applying {count} patches of {len(todo)} series")
    made, states = make_patched(layout, source, todo)
    if any(state.word in applying.STOPPING for state in states):
        shutil.rmtree(made.path)
        return states, []
    trees.write_record(made, replace(want, patches=states))
    trees.carry_kept(tree, made)
    # asked again: the build took a while, and the user may have gone on working
    work = trees.local_work(tree)
    if work and not force:
        shutil.rmtree(made.path)
        raise _in_the_way(source.project, source.base, tree, work)
    kept = trees.keep(tree, made) if work else trees.keep_dropped(tree, made)
    trees.move_into_place(made.path, tree.path, layout)
    return states, kept


def fetch_merge_bases(layout: Layout, made: Repo, project: Project, todo: list[Cell], loose: bool = False) -> None:
    """Bring every other base that patches here were written for, with its patches on it.

    A three-way merge starts from the blobs that a patch names: those of that base, and those that the patches below
    made of them. ``loose`` as for ``trees.fetch``.
    """
    all_series = [cell.series for cell in todo]
    for other in {
        cell.written_for.id: cell.written_for for cell in todo if cell.inherited and cell.written_for
    }.values():
        source = _source(layout, project, other, "")
        ensure_base(layout, source)
        below, _ = make_patched(layout, source, cells(project, all_series, other), kind="merge-base")
        trees.fetch(made, below.path, "HEAD", f"refs/nosync/merge-base/{other.id}", loose=loose)
        shutil.rmtree(below.path)


def _in_the_way(project: Project, base: Base, tree: Repo, work: list[str]) -> NosyncError:
    base_word = _base_word(base)
    return NosyncError(
        f"{tree.path} holds local work: {'; '.join(work)}",
        "commits or edits in the tree that are in no patch yet",
        f"make refresh-{project.name}{base_word}      # writes the commits into the patches\n"
        f"make apply P={project.name}{base_word} FORCE=1   # rebuilds it and keeps the work under a ref it prints",
    )


def _base_word(base: Base) -> str:
    return "" if base.pinned else f" BASE={base.id}"
