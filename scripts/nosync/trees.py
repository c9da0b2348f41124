"""A tree: a materialised base, ``base`` or ``patched``, as a git repository of its own under ``build/``.

A tree is made in a scratch folder and moved into place whole. What it was made from is recorded in the tree
itself, as a blob under ``refs/nosync/record``; whether it still is that is asked of git, never of a stamp file.

refs of a tree
    refs/nosync/base      the one commit that holds the base's files
    refs/nosync/applied   the commit that ``apply`` left on ``main``
    refs/nosync/record    a blob: source, digest of the patches, one entry per patch
    refs/nosync/patches   a git tree with the patch files of which something was left out, whole
    refs/nosync/former/…  commits that ``apply`` made and ``refresh`` replaced; they are no work of the user's
    refs/nosync/kept/…    what a forced rebuild found in the tree and kept
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nosync import history, scratch
from nosync.errors import NosyncError
from nosync.git import IGNORED, GitFailure, Repo
from nosync.layout import Layout
from nosync.projects import Base, Project

FORMAT = 2  # part of every record: a tree of another format is rebuilt
BASE, APPLIED, RECORD, KEPT = "refs/nosync/base", "refs/nosync/applied", "refs/nosync/record", "refs/nosync/kept"
DROPPED = "reflog"  # the last part of a kept ref for commits that the user had dropped
PATCHES, FORMER = "refs/nosync/patches", "refs/nosync/former"
IDENTITY = {
    "GIT_AUTHOR_NAME": "nosync",
    "GIT_AUTHOR_EMAIL": "nosync@localhost",
    "GIT_COMMITTER_NAME": "nosync",
    "GIT_COMMITTER_EMAIL": "nosync@localhost",
}
EPOCH = {"GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z"}


@dataclass(frozen=True)
class PatchState:
    """One patch in a tree.

    ``word`` is of the apply vocabulary: unmodified, applied, already-upstream, drifted, conflict, empty, target-gone.
    ``commit`` is empty where the patch made none; ``blob`` is the id of the whole file as it was applied;
    ``other_form`` are paths of it that the source is known to have in another form than the base's commit.
    """

    series: str
    file: str
    word: str
    commit: str = ""
    detail: str = ""
    left_out: list[str] = field(default_factory=list)
    blob: str = ""
    other_form: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether the commit cannot give the whole file back."""
        return bool(self.left_out or self.other_form)


@dataclass(frozen=True)
class Record:
    """What a tree was made from."""

    format: int
    project: str
    base: str
    source: str
    reason: str
    identity: str
    digest: str
    patches: list[PatchState] = field(default_factory=list)

    def same_inputs(self, other: Record) -> bool:
        """Would ``other`` make the same tree?"""
        keys = ("format", "project", "base", "identity", "digest")
        return all(getattr(self, key) == getattr(other, key) for key in keys)


def read_record(repo: Repo) -> Record | None:
    """The tree's record, or None where there is no tree or none that this version can read.

    Raises:
        GitFailure: the tree's repository is damaged.
    """
    if not repo.exists():
        return None
    try:
        body: dict[str, Any] = json.loads(repo.git("cat-file", "blob", RECORD))
        body["patches"] = [PatchState(**entry) for entry in body["patches"]]
        return Record(**body)
    except GitFailure as failure:
        if failure.damaged:
            raise
        return None
    except (ValueError, TypeError, KeyError):
        return None


def write_record(repo: Repo, record: Record) -> None:
    """Store the record in the tree's object database."""
    repo.git("update-ref", RECORD, record_blob(repo, record))


def record_blob(repo: Repo, record: Record) -> str:
    """The record as a blob in the tree's object database, no ref yet."""
    return repo.git("hash-object", "-w", "--stdin", data=json.dumps(asdict(record)).encode()).strip()


def store_patches(repo: Repo, states: list[PatchState], patches: Iterable[tuple[str, Path]]) -> str:
    """Those patch files that their commits cannot give back, as blobs of one git tree; ``refresh`` reads them there.

    Args:
        patches: (series, file) of each patch.

    Returns:
        The git tree's id.
    """
    lacking = {(state.series, state.file) for state in states if state.differs}
    files = [file for series, file in patches if (series, file.name) in lacking]
    names = "".join(f"{file}\n" for file in files).encode("utf-8", "surrogateescape")
    blobs = repo.git("hash-object", "-w", "--no-filters", "--stdin-paths", data=names).split() if files else []
    lines = "".join(f"100644 blob {blob}\t{number:05d}\n" for number, blob in enumerate(blobs))
    return repo.git("mktree", data=lines.encode()).strip()


def fetch(repo: Repo, source: Path, ref: str, into: str, loose: bool = False) -> None:
    """Copy a ref of another repository or bundle of this machine, and what it needs, into a ref of this one.

    Args:
        loose: As single objects: the deltas of a pack would be taken over into bundles, which are to be the same bytes
            everywhere.
    """
    settings = ("-c", "fetch.unpackLimit=1000000") if loose else ()
    repo.git(*settings, "fetch", "-q", "--no-tags", "--no-write-fetch-head", str(source), f"+{ref}:{into}")


def head(repo: Repo) -> str:
    return repo.git("rev-parse", "HEAD").strip()


def commits(repo: Repo, since: str = BASE, until: str = "HEAD") -> list[str]:
    """Commit ids from oldest to newest, ``since`` not included."""
    return repo.git("rev-list", "--reverse", "--topo-order", f"{since}..{until}").split()


def contents(repo: Repo) -> list[tuple[str, tuple[str, ...]]]:
    """(commit, all of it that a patch carries) of the series' commits, oldest first."""
    found = history.entries(repo, f"{BASE}..HEAD", "%T", "%an", "%ae", "%aI", "%B")
    return [(entry.id, (*entry.fields[:-1], entry.fields[-1].rstrip("\n"))) for entry in found]


# ---- one-job predicates about a tree's state -----------------------------------------------------


def operation_in_progress(repo: Repo) -> str:
    """The git operation that waits for the user here, or an empty string."""
    marks = {
        "rebase-apply/applying": "git am",
        "rebase-apply": "git rebase",
        "rebase-merge": "git rebase",
        "MERGE_HEAD": "git merge",
        "CHERRY_PICK_HEAD": "git cherry-pick",
        "REVERT_HEAD": "git revert",
        "BISECT_LOG": "git bisect",
        "sequencer": "git cherry-pick",
    }
    return next((name for mark, name in marks.items() if (repo.path / ".git" / mark).exists()), "")


def ways_to_end(repo: Repo, operation: str) -> str:
    """The commands that end a git operation in progress."""
    name = operation.removeprefix("git ")
    words = ["reset"] if name == "bisect" else ["--continue", "--abort"]
    return "\n".join(f"git -C {shlex.quote(str(repo.path))} {name} {word}" for word in words)


def edits(repo: Repo) -> list[str]:
    """Paths that differ from HEAD or are untracked; ignored files do not count."""
    out = repo.git("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
    return [entry[3:] for entry in out.split("\0") if entry]


def unshown(repo: Repo, shown: list[str]) -> list[str]:
    """Paths of the user's that are not among ``edits``: ignored files, and edits of files that are flagged
    assume-unchanged or skip-worktree. What running a tree's code leaves does not count."""
    found = [entry.partition(" ") for entry in _tagged(repo)]
    flagged = [path for tag, _, path in found if tag == "S" or tag.islower()]
    paths = [path for tag, _, path in found if tag == "?"] + (_edited(repo) if flagged and has_head(repo) else [])
    return [path for path in dict.fromkeys(paths) if path not in shown]


def _tagged(repo: Repo) -> list[str]:
    """``<tag> <path>`` of what is tracked or not, whatever ignores it but our own list."""
    ours = [word for pattern in IGNORED.split() for word in ("-x", pattern)]
    return [entry for entry in repo.git("ls-files", "-v", "-z", "--cached", "--others", *ours).split("\0") if entry]


def _edited(repo: Repo) -> list[str]:
    """Tracked files that differ from HEAD, by an index without flags; a missing file has nothing to lose."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        repo.git("read-tree", "HEAD", env=env)
        out = repo.git("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames", env=env)
    paths = [entry[3:] for entry in out.split("\0") if entry]
    return [path for path in paths if os.path.lexists(repo.path / path)]


def stray_commits(repo: Repo) -> list[str]:
    """Refs of the user's that hold commits which ``apply`` did not make: HEAD, branches, tags, stashes."""
    listing = repo.git("for-each-ref", "--format=%(refname) %(objecttype)%(*objecttype)").splitlines()
    names = [line.split(" ")[0] for line in listing if line.endswith("commit")]
    ours = ["--not", *(name for name in (BASE, APPLIED) if name in names), f"--glob={FORMER}/*"]
    mine = ["HEAD"] if has_head(repo) else []
    mine += [name for name in names if not name.startswith("refs/nosync/")]
    if not mine or not repo.git("rev-list", "-n", "1", *mine, *ours).strip():
        return []
    return [name for name in mine if repo.git("rev-list", "-n", "1", name, *ours).strip()]


def has_head(repo: Repo) -> bool:
    """Is a commit checked out (and not a branch that has none yet)?"""
    return repo.ok("rev-parse", "-q", "--verify", "HEAD")


def moved_back(repo: Repo) -> bool:
    """Does HEAD lack commits that ``apply`` made (a reset, a drop, an orphan branch)?"""
    ids = repo.git("for-each-ref", "--format=%(objectname)", APPLIED).split()
    try:
        return bool(ids) and head(repo) != ids[0]
    except GitFailure:  # a branch without a commit
        return True


def linked_worktrees(repo: Repo) -> list[str]:
    folder = repo.path / ".git" / "worktrees"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def local_work(repo: Repo) -> list[str]:
    """What the user did in this tree since ``apply`` made it, one line each; empty for an untouched tree."""
    if not repo.exists():
        return ["files, but no git repository any more"] if repo.path.is_dir() and any(repo.path.iterdir()) else []
    found = []
    if operation := operation_in_progress(repo):
        found.append(f"{operation} in progress")
    if strays := stray_commits(repo):
        found.append("commits of its own on " + ", ".join(strays))
    elif moved_back(repo):
        found.append("HEAD is not the commit that apply left")
    changed = edits(repo)
    if changed:
        found.append(f"uncommitted edits: {', '.join(changed[:5])}{' …' if len(changed) > 5 else ''}")
    if hidden := unshown(repo, changed):
        found.append(f"files that git status does not show: {', '.join(hidden[:5])}{' …' if len(hidden) > 5 else ''}")
    if others := linked_worktrees(repo):
        found.append("linked worktrees: " + ", ".join(others))
    return found


# ---- making trees --------------------------------------------------------------------------------


def scratch_for(layout: Layout, kind: str, project: Project, base: Base) -> Path:
    """A scratch path for a tree; what a killed run left there is removed."""
    return scratch.fresh(layout, f"{kind}-{project.name}@{base.id}")


def commit_base(repo: Repo, project: Project, base: Base) -> None:
    """Commit the index as the base; the same files give the same commit id everywhere."""
    repo.git("commit", "-q", "--allow-empty", "--no-verify", "-m", f"{project.name} {base.id}", env=IDENTITY | EPOCH)
    repo.git("update-ref", BASE, "HEAD")
    repo.git("update-ref", APPLIED, "HEAD")


def start_from(repo: Repo, base_tree: Repo) -> None:
    """Give a fresh repository the base tree's commit, checked out on ``main``."""
    fetch(repo, base_tree.path, BASE, BASE)
    repo.git("reset", "-q", "--hard", BASE)


def recover(final: Path, layout: Layout) -> None:
    """Undo a swap that was killed between its two renames; what is at ``old`` is whole.

    Raises:
        NosyncError: something that no swap made has come to ``final`` since.
    """
    old = _old(final, layout)
    if layout.scratch.is_dir():
        scratch.fresh(layout, _removed(final))  # sweeps what a killed removal left
    if not old.exists():
        return
    if final.is_dir() and not any(final.iterdir()):
        final.rmdir()
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        os.rename(old, final)
    elif Repo(old).exists() and not Repo(final).exists():
        raise NosyncError(
            f"{final} is no git repository, and the tree that stood there is in {old}",
            "a run was killed while it replaced the tree, and the folder was made by hand since",
            f"mv {final} <elsewhere>, then the same command again",
        )
    else:
        _discard(old, final, layout)


def move_into_place(made: Path, final: Path, layout: Layout) -> None:
    """Replace the tree at ``final`` by the one at ``made``.

    Call it only when ``final`` holds no local work or when ``keep`` has copied it into the new tree. A kill between
    the two renames is undone by ``recover``.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    old = _old(final, layout)
    if final.exists():
        os.rename(final, old)
    os.rename(made, final)
    if old.exists():
        _discard(old, final, layout)


def remove(path: Path, layout: Layout) -> None:
    """Remove a tree for good; killed half-way it is gone from its place, never half there.

    Raises:
        NosyncError: it is a link to a folder elsewhere, which is not ours to remove.
    """
    if path.is_symlink():
        raise NosyncError(
            f"{path} is a symbolic link to {path.resolve()}",
            "put there by hand; only what lies under build/ is removed",
            f"rm {shlex.quote(str(path))}      # the link alone",
        )
    old = scratch.fresh(layout, _removed(path))
    os.rename(path, old)
    shutil.rmtree(old)


def keep(old: Repo, new: Repo) -> list[str]:
    """Copy everything of the user's in ``old`` into ``new`` under ``refs/nosync/kept``; returns the new refs.

    Commits keep their ids, those that the reflog alone holds too; uncommitted and untracked files, also ignored ones,
    become one commit on top of HEAD, and so does an index that differs from both.

    Raises:
        NosyncError: a git operation is in progress or a worktree is linked; only its owner can end that.
    """
    _refuse_unkeepable(old)
    stamp = _stamp()
    wanted = {f"{stamp}/{name.removeprefix('refs/')}": name for name in stray_commits(old)}
    wanted |= _stashes(old, stamp)
    wanted |= _dropped(old, stamp)
    changed = edits(old)
    hidden = unshown(old, changed)
    if changed or hidden:
        wanted |= _edits(old, stamp, hidden)
    return _bring(old, new, wanted)


def keep_dropped(old: Repo, new: Repo) -> list[str]:
    """As ``keep``, for a tree without local work: commits that the reflog alone holds."""
    return _bring(old, new, _dropped(old, _stamp())) if old.exists() and has_head(old) else []


def _stamp() -> str:
    return f"{KEPT}/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def _bring(old: Repo, new: Repo, wanted: dict[str, str]) -> list[str]:
    for ref, what in wanted.items():
        # by id: a stash entry or a dangling commit has no ref that a fetch could name
        old.git("update-ref", "refs/nosync/leaving", old.git("rev-parse", "--verify", what).strip())
        fetch(new, old.path, "refs/nosync/leaving", ref)
    return list(wanted)


def carry_kept(old: Repo, new: Repo) -> None:
    """Copy what earlier forced rebuilds kept."""
    if old.exists() and old.git("for-each-ref", KEPT).strip():
        fetch(new, old.path, f"{KEPT}/*", f"{KEPT}/*")


def _refuse_unkeepable(old: Repo) -> None:
    if not old.exists():
        raise NosyncError(
            f"{old.path} holds files but no git repository",
            "its .git was removed",
            f"mv {old.path} <elsewhere>\nmake apply",
        )
    if not has_head(old):
        raise NosyncError(
            f"{old.path} is on a branch without a commit",
            "git switch --orphan",
            f"git -C {old.path} commit -m <message>",
        )
    if operation := operation_in_progress(old):
        raise NosyncError(
            f"{operation} is in progress in {old.path}",
            "it stopped for a conflict, or was left half-way",
            ways_to_end(old, operation),
        )
    if others := linked_worktrees(old):
        raise NosyncError(
            f"{old.path} has linked worktrees: {', '.join(others)}",
            "git worktree add was used in the tree; rebuilding it would cut them off",
            f"git -C {old.path} worktree list\ngit -C {old.path} worktree remove <path>\n"
            f"git -C {old.path} worktree prune",
        )


def _stashes(old: Repo, stamp: str) -> dict[str, str]:
    if not old.ok("rev-parse", "-q", "--verify", "refs/stash"):
        return {}
    entries = old.git("reflog", "show", "--format=%H", "refs/stash").split()
    return {f"{stamp}/stash-{number}": commit for number, commit in enumerate(entries)}


def _dropped(old: Repo, stamp: str) -> dict[str, str]:
    """Commits that no ref leads to any more (an amended one, a reset), behind one merge of them all."""
    stashed = list(_stashes(old, stamp).values())
    listing = old.git("rev-list", "--ignore-missing", "--parents", "--reflog", "--not", "--all", "HEAD", *stashed)
    lines = [line.split(" ") for line in listing.splitlines()]
    parents = {parent for _, *parents in lines for parent in parents}
    tips = [word for commit, *_ in lines if commit not in parents for word in ("-p", commit)]
    if not tips:
        return {}
    said = "commits that the reflog alone held, kept by apply"
    return {f"{stamp}/{DROPPED}": old.git("commit-tree", "HEAD^{tree}", *tips, "-m", said, env=IDENTITY).strip()}


def _edits(old: Repo, stamp: str, hidden: list[str]) -> dict[str, str]:
    """Commits of the work tree as it is, and of the index where it holds something else; both made beside HEAD."""
    spare = old.path / ".git" / "nosync-keep-index"
    try:
        env = {"GIT_INDEX_FILE": str(spare), "GIT_LITERAL_PATHSPECS": "1"}
        old.git("read-tree", "HEAD", env=env)
        old.git("add", "-A", ".", env=env)
        if hidden:
            data = "\0".join(hidden).encode("utf-8", "surrogateescape")
            old.git("add", "-f", "--pathspec-from-file=-", "--pathspec-file-nul", data=data, env=env)
        _refuse_embedded(old, spare)
        files = old.git("write-tree", env={"GIT_INDEX_FILE": str(spare)}).strip()
    finally:
        spare.unlink(missing_ok=True)
    wanted = {f"{stamp}/edits": _commit_of(old, files, "edits kept by apply FORCE=1")}
    # unmerged entries have no tree; their files, with the conflict marks, are in the commit above
    staged = old.git("write-tree").strip() if old.ok("write-tree") else files
    if staged not in (files, old.git("rev-parse", "HEAD^{tree}").strip()):
        wanted[f"{stamp}/index"] = _commit_of(old, staged, "staged edits kept by apply FORCE=1")
    return wanted


def _commit_of(repo: Repo, tree: str, message: str) -> str:
    return repo.git("commit-tree", tree, "-p", "HEAD", "-m", message, env=IDENTITY).strip()


def _refuse_embedded(old: Repo, index: Path) -> None:
    listing = old.git("ls-files", "-s", "-z", env={"GIT_INDEX_FILE": str(index)}).split("\0")
    inside = [entry.partition("\t")[2] for entry in listing if entry.startswith("160000 ")]
    if inside:
        raise NosyncError(
            f"{old.path} holds git repositories of their own: {', '.join(inside)}",
            "something was cloned into the tree; a commit here cannot keep it",
            f"mv {old.path / inside[0]} <elsewhere>",
        )


def _old(final: Path, layout: Layout) -> Path:
    return layout.scratch / f"old-{final.parent.name}-{final.name}"


def _removed(final: Path) -> str:
    return f"removed-{final.parent.name}-{final.name}"


def _discard(old: Path, final: Path, layout: Layout) -> None:
    """Remove a replaced tree; under another name, lest a half of it be taken for the tree to bring back."""
    going = scratch.fresh(layout, _removed(final))
    os.rename(old, going)
    shutil.rmtree(going, ignore_errors=True)
