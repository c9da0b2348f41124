"""The branch of a pull request: a series with what it depends on, as commits for its upstream's eyes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from nosync import applying, building, mailbox, rewriting, scratch, targets, trees
from nosync.errors import NosyncError
from nosync.git import Repo, user_git
from nosync.layout import Layout
from nosync.projects import Base, Project
from nosync.report import progress
from nosync.rewriting import Rules
from nosync.series import Cell, Patch, Series, cell
from nosync.sources import Source, obtain, submodule
from nosync.trees import PatchState
from nosync.words import SOUND


@dataclass(frozen=True)
class Branch:
    """A branch in a scratch repository, checked out.

    Args:
        root: The synthetic commit below the series, which holds the base's files that we have.
        tip: The last commit.
        real: The upstream commit that ``root`` stands for, or empty when it cannot be reached.
        states: What became of each patch.
    """

    repo: Repo
    name: str
    root: str
    tip: str
    source: Source
    real: str
    cells: list[Cell]
    states: list[PatchState]

    @property
    def committed(self) -> list[tuple[Patch, PatchState]]:
        """The patches that made a commit, in order, with their states."""
        patches = [patch for cell in self.cells for patch in cell.patches]
        return [pair for pair in zip(patches, self.states, strict=True) if pair[1].commit]

    @property
    def left_out(self) -> list[str]:
        """Paths of the patches that are not on the branch, since the source lacks them."""
        return sorted({path for state in self.states for path in state.left_out})


def needed(project: Project, all_series: list[Series], wanted: Series, base: Base) -> list[Cell]:
    """The series and all that it depends on, lowest first, each with patches for the base or an earlier one."""
    names, todo = set(), [wanted.name]
    by_name = {series.name: series for series in all_series}
    while todo:
        names.add(name := todo.pop())
        todo += [other for other in by_name[name].depends if other not in names]
    cells = [cell(project, series, base) for series in all_series if series.name in names]
    if without := [each.series.name for each in cells if each.written_for is None]:
        raise NosyncError(
            f"{project.name}/{without[0]} has no patches for {base.id} or an earlier base",
            "they are written for a later one alone",
            f"make export-{project.name} S={wanted.name} BASE=<a base that has them>",
        )
    return cells


def best_source(layout: Layout, project: Project, base: Base, wanted: str) -> Source:
    """A source for the branch: git even for a base that is known by its archive alone, where its commit can be found.

    Raises:
        NosyncError: the commit that upstream tagged and the archive disagree.
    """
    source = obtain(layout, project, base, wanted)
    if source.kind == "git" or wanted == "archive":
        return source
    commit = base.commit or targets.commit_of_release(
        layout, project, base.archive.version if base.archive else base.id
    )
    if not commit or submodule.make_ready(layout, project, commit):
        return source
    real = Source(project, replace(base, commit=commit), "git")
    _refuse_disagreement(layout, source, real)
    progress(
        f"{project.name} {base.id}: upstream's commit {commit[:12]} agrees with the archive; the branch stands on it"
    )
    return real


def _refuse_disagreement(layout: Layout, source: Source, real: Source) -> None:
    """The archive's files and the commit's must be the same wherever both have one below the project's paths."""
    ours, theirs = _files(layout, source), _files(layout, real)
    other = sorted(path for path in ours.keys() & theirs.keys() if ours[path] != theirs[path])
    if other:
        raise NosyncError(
            f"the archive of {source.base.id} and upstream's {real.base.commit[:12]} differ in {', '.join(other[:5])}",
            "the tag is not what the release was made from, or the archive holds files made at its release",
            f"make export-{source.project.name} SOURCE=archive",
        )


def _files(layout: Layout, source: Source) -> dict[str, str]:
    repo = Repo.create(scratch.fresh(layout, f"agree-{source.kind}-{source.project.name}"))
    source.fill(layout, repo)
    entries = [entry for entry in repo.git("ls-files", "-s", "-z").split("\0") if entry]
    shutil.rmtree(repo.path)
    return {entry.partition("\t")[2]: entry.split(" ")[1] for entry in entries}


def make(layout: Layout, source: Source, cells: list[Cell], name: str, rules: Rules) -> Branch:
    """Apply the cells to the source's files in a scratch repository and rewrite the commits for upstream.

    Raises:
        NosyncError: a patch does not fit without the series that were left away, or does not merge.
    """
    repo = Repo.create(scratch.fresh(layout, f"branch-{source.project.name}-{name}"))
    try:
        return _make(layout, repo, source, cells, name, rules)
    except NosyncError:
        shutil.rmtree(repo.path, ignore_errors=True)
        raise


def _make(layout: Layout, repo: Repo, source: Source, cells: list[Cell], name: str, rules: Rules) -> Branch:
    source.fill(layout, repo)
    _commit_root(repo, source)
    building.fetch_merge_bases(layout, repo, source.project, cells, loose=True)
    states = applying.apply_all(
        repo,
        applying.items(cells, source),
        scratch.fresh(layout, f"mail-branch-{source.project.name}"),
    )
    _refuse_unfit(source, cells, states)
    repo.git("branch", "-q", "-m", name)
    rewriting.rewrite(repo, name, rules)
    repo.git("reset", "-q", "--hard", name)
    root, tip = repo.git("rev-list", "--max-parents=0", name).strip(), trees.head(repo)
    _refuse_other_number(repo, root, tip, states, rules)
    real = source.base.commit if source.kind == "git" else ""
    return Branch(repo, name, root, tip, source, real, cells, states)


def _refuse_unfit(source: Source, cells: list[Cell], states: list[PatchState]) -> None:
    """Every patch must be on the branch; but what a base has already, another base's patches need not bring again."""
    project, base, wanted = source.project.name, source.base.id, cells[-1]
    inherited = {each.series.name for each in cells if each.inherited}

    def fits(state: PatchState) -> bool:
        return state.word in (*SOUND, "drifted") or (state.word == "already-upstream" and state.series in inherited)

    if bad := [state for state in states if not fits(state)]:
        below = ", ".join(each.series.name for each in cells)
        raise NosyncError(
            f"{bad[0].series}/{bad[0].file} is {bad[0].word} on {base} with {below} alone",
            f"its patches are another base's and need a person's hand on {base}"
            if bad[0].series in inherited
            else "it stands on a series that 'depends' in series.toml does not name",
            f"make rebase-{project} TO={base} S={bad[0].series}\n"
            f"edit patches/{project}/{bad[0].series}/series.toml      # depends: a series that it stands on",
            bad[0].detail,
        )
    if wanted.patches and not any(state.commit for state in states if state.series == wanted.series.name):
        raise NosyncError(
            f"every patch of {project}/{wanted.series.name} is in {base} already",
            "upstream has merged the change",
            f"set status and merged_as in {wanted.series.folder / 'series.toml'}",
        )


def _refuse_other_number(repo: Repo, root: str, tip: str, states: list[PatchState], rules: Rules) -> None:
    """One commit a patch, on a root of its own; only paths that are ours may take commits away."""
    made, patches_there = len(trees.commits(repo, root, tip)), sum(bool(state.commit) for state in states)
    if len(root.split()) != 1 or made > patches_there or (made < patches_there and not rules.drop):
        raise NosyncError(
            f"the branch has {made} commits for {patches_there} patches; nothing was exported",
            "git-filter-repo dropped or joined commits, or another git works in the same folder",
            "the same command again",
        )


def _commit_root(repo: Repo, source: Source) -> None:
    who, base = source.project.name, source.base
    identity = {"NAME": who, "EMAIL": f"{who}@localhost"}
    env = trees.EPOCH | {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in identity.items()
    }
    origin = (
        f"commit {base.commit}"
        if source.kind == "git"
        else f"source archive {base.archive.package} {base.archive.version}"
        if base.archive
        else ""
    )
    message = f"{who} {base.id}\n\nFiles of {origin}, without its history.\n"
    repo.git("commit", "-q", "--allow-empty", "--no-verify", "-F", "-", data=message.encode(), env=env)


def patches(branch: Branch, folder: Path) -> list[Path]:
    """The branch's commits as a mailbox, with the diffs that the source lacks by nature."""
    files = mailbox.write(branch.repo, branch.root, branch.tip, folder)
    committed = branch.committed
    if len(files) == len(committed):  # else commits were dropped, which no patch with left-out diffs is
        for file, (patch, state) in zip(files, committed, strict=True):
            mailbox.restore(file, patch.text(), state.left_out)
    return files


def bundle(branch: Branch, file: Path) -> None:
    """A bundle that ``git clone`` takes, with the synthetic root."""
    branch.repo.git("-c", "pack.threads=1", "bundle", "create", "-q", str(file), "HEAD", f"refs/heads/{branch.name}")


def grafted_bundle(layout: Layout, branch: Branch, file: Path) -> str:
    """A bundle of the same commits on upstream's own, to be fetched into a clone of it; returns the tip."""
    folder = layout.submodule(branch.source.project.name)
    bare = scratch.fresh(layout, f"graft-{branch.source.project.name}-{branch.name}")
    branch.repo.git(
        "clone",
        "-q",
        "--bare",
        "--no-hardlinks",
        "--single-branch",
        "-b",
        branch.name,
        str(branch.repo.path),
        str(bare),
    )
    repo = _Bare(bare)
    _borrow(folder, bare)
    try:
        rewriting.graft(repo, branch.name, branch.root, branch.real)
        repo.git(
            "-c", "pack.threads=1", "bundle", "create", "-q", str(file), f"{branch.real}..refs/heads/{branch.name}"
        )
        return repo.git("rev-parse", f"refs/heads/{branch.name}").strip()
    finally:
        shutil.rmtree(bare, ignore_errors=True)


class _Bare(Repo):
    """A repository of ours without a work tree."""

    def exists(self) -> bool:
        return (self.path / "HEAD").is_file()


def _borrow(submodule_folder: Path, bare: Path) -> None:
    """Let ``bare`` see the submodule's objects: commits and trees, and the blobs that were fetched."""
    git_dir = Path(user_git(submodule_folder, "rev-parse", "--absolute-git-dir").strip())
    (bare / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (bare / "objects" / "info" / "alternates").write_text(f"{git_dir / 'objects'}{os.linesep}")
    if (git_dir / "shallow").exists():
        shutil.copy(git_dir / "shallow", bare / "shallow")
