"""``rebase``: take series to another base, three-way, and write their patches there once all of them fit.

The work is done in a scratch repository. Where a patch does not fit, that repository becomes a worktree for a person
to resolve it in; only when every patch has its place are files under patches/ and projects.toml written.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from nosync import (
    applying,
    building,
    lock,
    mailbox,
    patchfolder,
    plans,
    projectfile,
    replaying,
    scratch,
    targets,
    trees,
    worktrees,
)
from nosync.applying import Item
from nosync.errors import NosyncError
from nosync.git import GitFailure, Repo, user_git
from nosync.layout import Layout
from nosync.plans import Plan
from nosync.projects import Project, load_projects
from nosync.replaying import Outcome
from nosync.report import Report, progress
from nosync.series import Cell, Patch
from nosync.sources import Source, obtain
from nosync.targets import Target
from nosync.worktrees import Stop

COLUMNS = ("project", "to", "source", "series", "patch", "from", "state", "detail")


def rebase(
    layout: Layout,
    name: str,
    to: str,
    series: str = "",
    resume: bool = False,
    abort: bool = False,
    dry: bool = False,
    force: bool = False,
) -> Report:
    """Take the project's series (or one) to the base ``to``; or go on with, or give up, a rebase that stopped.

    Args:
        to: A base's id, a release, or a git ref of upstream.
        series: Take this one alone; what lies below it stays as it is on the target.
        dry: Only say what would become of each patch.
        force: Believe that a patch of a merged series, left out by hand, is in the target.
    """
    project = load_projects(layout.projects_file).get(name)
    if project is None:
        raise NosyncError(f"no project {name!r}", "a mistyped name", "make status")
    report = Report("rebase (dry)" if dry else "rebase", COLUMNS)
    with lock.exclusive(layout.build / "lock", f"rebase {name}"):
        if abort:
            _abort(layout, project, to, report)
        elif resume:
            _resume(layout, project, to, force, report)
        else:
            _start(layout, project, to, series, dry, report)
    return report


# ---- the three ways in ----


def _start(layout: Layout, project: Project, to: str, only: str, dry: bool, report: Report) -> None:
    if not to:
        raise NosyncError("no base was named", "", f"make rebase-{project.name} TO=<release or git ref>")
    target = targets.find(layout, project, to)
    place = worktrees.place(layout, project.name, target.base.id)
    trees.recover(place, layout)
    if place.exists() and not dry:
        raise _in_progress(project, target, place)
    plan = plans.make(layout, target, obtain(layout, target.project, target.base), only)
    repo = plans.prepare(layout, plan)
    _go_on(layout, plan, repo, [], only, dry, report)


def _resume(layout: Layout, project: Project, to: str, force: bool, report: Report) -> None:
    repo = worktrees.the_one(layout, project.name, to, "CONTINUE")
    stop = worktrees.read(repo, project.name)
    target = _target(project, stop)
    source = Source(target.project, target.base, stop.source, stop.reason)
    plan = plans.make(layout, target, source, stop.only)
    if plan.digest != stop.digest:
        raise NosyncError(
            f"the patches of {project.name} have changed since the rebase in {repo.path} began",
            "a refresh or an edit under patches/",
            f"restore them, or start again: make rebase-{project.name} ABORT=1",
        )
    worktrees.refuse_unready(repo, project.name, stop)
    worktrees.finish_am(repo, project.name)
    item, _ = plan.items[len(stop.done)]
    outcome = replaying.resolved(repo, item, stop.head)
    if outcome.word == "dropped" and not force:
        _refuse_false_drop(layout, plan, item)
    # on a copy: killed half-way, the worktree is what the person left
    copy = shutil.copytree(repo.path, scratch.fresh(layout, f"rebase-{repo.path.name}"), symlinks=True)
    _go_on(layout, plan, Repo(copy), [*stop.done, outcome], stop.only, False, report)


def _abort(layout: Layout, project: Project, to: str, report: Report) -> None:
    repo = worktrees.the_one(layout, project.name, to, "ABORT")
    trees.remove(repo.path, layout)
    report.add(
        project=project.name,
        to=repo.path.name.partition("@")[2],
        series="-",
        state="given up",
        detail="no patch was written",
    )


def _target(project: Project, stop: Stop) -> Target:
    known = next((base for base in project.bases if base.id == stop.base.id), None)
    return Target(project, known, True) if known else Target(targets.with_base(project, stop.base), stop.base, False)


def _in_progress(project: Project, target: Target, place: Path) -> NosyncError:
    return NosyncError(
        f"a rebase of {project.name} to {target.base.id} is in progress in {place}",
        "it stopped at a patch that does not fit and waits for you",
        f"git -C {place} status\nmake rebase-{project.name} TO={target.base.id} CONTINUE=1\n"
        f"make rebase-{project.name} TO={target.base.id} ABORT=1",
    )


# ---- patch by patch ----


def _go_on(layout: Layout, plan: Plan, repo: Repo, done: list[Outcome], only: str, dry: bool, report: Report) -> None:
    todo = plan.items
    wanting: dict[str, str] = {}  # dry: path to the first patch that could not change it
    if not done:
        progress(
            f"{plan.target.project.name} {plan.target.base.id}: "
            f"taking {len(todo)} patches of {len(plan.moved)} series along"
        )
    for item, written_for in todo[len(done) :]:
        before = trees.head(repo)
        outcome = replaying.replay(
            repo, item, written_for, scratch.fresh(layout, f"mail-rebase-{plan.target.project.name}")
        )
        if outcome.stops and not dry:
            stop = Stop(
                plan.target.base,
                plan.target.known,
                only,
                plan.source.kind,
                plan.source.reason,
                plan.digest,
                done,
                outcome,
                before,
            )
            _stop(layout, plan, repo, stop, report)
            return
        if outcome.stops:
            repo.git("am", "--abort", env=trees.IDENTITY)
            outcome = _perhaps_a_consequence(item, outcome, wanting)
        done = [*done, outcome]
    _rows(plan, done, report)
    if dry:
        shutil.rmtree(repo.path)
        return
    _finish(layout, plan, repo, done, report)


def _perhaps_a_consequence(item: Item, outcome: Outcome, wanting: dict[str, str]) -> Outcome:
    """A dry run goes on without the patches that conflict; what changes the same files may conflict for that alone."""
    paths = [diff.path for diff in item.text.diffs]
    causes = list(dict.fromkeys(wanting[path] for path in paths if path in wanting))
    for path in paths:
        wanting.setdefault(path, f"{item.series}/{item.file.name[:4]}")
    if not causes:
        return outcome
    return replace(outcome, detail=f"without {', '.join(causes)}, perhaps for that alone; {outcome.detail}")


def _stop(layout: Layout, plan: Plan, repo: Repo, stop: Stop, report: Report) -> None:
    name, base = plan.target.project.name, plan.target.base.id
    place = worktrees.place(layout, name, base)
    _refuse_late(layout, plan, repo)
    worktrees.write(repo, stop)
    trees.move_into_place(repo.path, place, layout)
    _rows(plan, [*stop.done, stop.stopped], report)
    report.note(f"stopped in {place}; nothing was written. Resolve it with plain git, then go on:")
    report.note(
        f"  git -C {place} status                # git add what you resolved; git am --skip leaves the patch out"
    )
    report.note(f"  git -C {place} am --show-current-patch=diff")
    written_for = plan.items[len(stop.done)][1]
    for path in applying.unmerged(Repo(place)):
        report.note(
            f"  git -C {place} diff {replaying.BASES}/{written_for} {trees.BASE} -- {path}    # upstream since then"
        )
    report.note(f"  make rebase-{name} TO={base} CONTINUE=1      # or ABORT=1")


def _refuse_late(layout: Layout, plan: Plan, copy: Repo) -> None:
    """The worktree is about to go; what came to it since the copy was made must not go with it."""
    name, base = plan.target.project.name, plan.target.base.id
    place = Repo(worktrees.place(layout, name, base))
    if place.exists() and (late := worktrees.changed_since(place, copy)):
        shutil.rmtree(copy.path)
        raise NosyncError(
            f"{place.path} was changed while the rebase went on: {', '.join(late[:5])}",
            "somebody works there; nothing was written",
            f"make rebase-{name} TO={base} CONTINUE=1",
        )


def _rows(plan: Plan, outcomes: list[Outcome], report: Report) -> None:
    common = {"project": plan.target.project.name, "to": plan.target.base.id, "source": plan.source.kind}
    todo = plan.items
    for (item, written_for), outcome in zip(todo, outcomes, strict=False):
        left_out = f"not in the source, taken over unseen: {', '.join(outcome.left_out)}" if outcome.left_out else ""
        detail = "; ".join(filter(None, (outcome.detail, left_out)))
        cells = {
            "series": item.series,
            "patch": item.file.name,
            "from": written_for,
            "state": outcome.word,
            "detail": detail,
        }
        report.add(not outcome.stops, **common, **cells, commits=outcome.commits)
    for item, written_for in todo[len(outcomes) :]:
        report.add(
            **common,
            series=item.series,
            patch=item.file.name,
            state="waits",
            detail="for the patch above",
            **{"from": written_for},
        )
    for series in plan.without:
        report.add(**common, series=series.name, patch="-", state="no patches", detail="none for an earlier base")


def _refuse_false_drop(layout: Layout, plan: Plan, item: Item) -> None:
    """A patch may be left out because its pull request was merged only where the target has that merge."""
    (series,) = (each.series for each in plan.moved if each.series.name == item.series)
    if series.status != "merged":
        return
    commit, folder = plan.target.base.commit, layout.submodule(plan.target.project.name)
    if commit and (folder / ".git").exists() and _has_merge(folder, series.merged_as, commit):
        return
    name, merge = plan.target.project.name, series.merged_as[:12] or "the merge"
    raise NosyncError(
        f"{item.series}/{item.file.name} was left out, but {plan.target.base.id} is not known to hold {merge}",
        "the pull request was merged after this base, or the base is known as an archive alone",
        f"make rebase-{name} ABORT=1\nmake rebase-{name} CONTINUE=1 FORCE=1   # you looked: the base has it",
    )


def _has_merge(folder: Path, merge: str, commit: str) -> bool:
    if not merge:
        return False
    try:
        user_git(folder, "merge-base", "--is-ancestor", merge, commit)
    except GitFailure:
        return False
    return True


# ---- the end ----


def _finish(layout: Layout, plan: Plan, repo: Repo, done: list[Outcome], report: Report) -> None:
    files = scratch.fresh_folder(layout, "rebased-patches")
    try:
        written = _export(plan, repo, done, files)
        _round_trip(layout, plan, repo, written)
        for each in written:
            _refuse_unsaved(layout, plan, each)
        _refuse_late(layout, plan, repo)
        for each in written:
            report.note(_write(layout, plan, each))
    finally:
        shutil.rmtree(files, ignore_errors=True)
    if not plan.target.known:
        position = plan.target.project.bases.index(plan.target.base)
        projectfile.add_base(
            layout.projects_file, plan.target.project.name, plan.target.base, plan.target.project.bases[position - 1].id
        )
        report.note(f"upstream/projects.toml: the base {plan.target.base.id} is entered")
    place = worktrees.place(layout, plan.target.project.name, plan.target.base.id)
    if place.exists():
        trees.remove(place, layout)
    shutil.rmtree(repo.path)
    report.note(f"next: make test-{plan.target.project.name} BASE={plan.target.base.id}")


def _export(plan: Plan, repo: Repo, done: list[Outcome], root: Path) -> list[Cell]:
    """The new patches in folders below ``root``, as cells of the target."""
    former = {(item.series, item.file.name): item.file for item, _ in plan.items}
    cells = []
    for each in plan.moved:
        mine = [outcome for outcome in done if outcome.series == each.series.name]
        owners = [(commit, outcome) for outcome in mine for commit in outcome.commits]
        folder = root / each.series.name
        folder.mkdir()
        files = mailbox.write(repo, f"{owners[0][0]}^", owners[-1][0], folder) if owners else []
        for file, (commit, outcome) in zip(files, owners, strict=True):
            if outcome.left_out and commit == outcome.commits[0]:
                mailbox.restore(file, Patch(former[outcome.series, outcome.file]).text(), outcome.left_out)
        cells.append(Cell(each.series, plan.target.base, plan.target.base, tuple(Patch(file) for file in files)))
    return cells


def _round_trip(layout: Layout, plan: Plan, repo: Repo, written: list[Cell]) -> None:
    """Apply what will be written to a fresh base; every commit must come out as it went in."""
    fresh, states = building.make_patched(layout, plan.source, [*plan.ground, *written], kind="rebased")
    ours, again = ([content for _, content in trees.contents(each)] for each in (repo, fresh))
    same = ours == again
    shutil.rmtree(fresh.path)
    if not same:
        raise NosyncError(
            "the rebased commits do not survive the way through patch files; nothing was written",
            "a line '---' or 'diff --git' in a message, or a change that mail cannot carry",
            f"reword it in {repo.path}, or ABORT=1",
            "\n".join(f"{state.series}/{state.file}: {state.word} {state.detail}" for state in states),
        )


def _refuse_unsaved(layout: Layout, plan: Plan, new: Cell) -> None:
    """Patches of that base which are there already and in no commit of ours must not be written over."""
    folder = new.series.own_folder(plan.target.base)
    there = _files(folder)
    if not there or there == {patch.file.name: patch.file.read_bytes() for patch in new.patches}:
        return
    where = folder.relative_to(layout.root)
    ways = f"mv {where} <elsewhere>, then run the same command again\nDRY=1 says what would become of each patch"
    if not (layout.root / ".git").exists():
        raise NosyncError(
            f"{where} holds patches, this checkout is no git repository, and the rebased ones differ",
            "they would be lost",
            ways,
        )
    # whatever the user's own settings hide
    every = ("--untracked-files=all", "--ignored")
    if user_git(layout.root, "status", "--porcelain", *every, "--", str(folder)).strip():
        raise NosyncError(
            f"{where} holds patches that are not committed, and the rebased ones differ",
            "they would be lost",
            f"git add -f {where} && git commit, then run the same command again\n{ways}",
        )


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.patch")} if folder.is_dir() else {}


def _write(layout: Layout, plan: Plan, new: Cell) -> str:
    """Bring the series' folder of the target to the new files; says in one line what that changed."""
    folder = new.series.own_folder(plan.target.base)
    before, after = _files(folder), {patch.file.name: patch.file.read_bytes() for patch in new.patches}
    if not after:
        folder.mkdir(exist_ok=True)  # a series of no patches: this base must not inherit an earlier one's
    patchfolder.bring(folder, after)
    where = folder.relative_to(layout.root)
    if before == after:
        return f"{where}: the same bytes as before"
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"{where}: written, {len(after)} patches" + (f"; other than before: {', '.join(changed)}" if before else "")
