"""The worktree of a rebase that stopped: ``build/rebase/<project>@<base>``, a repository of its own.

It is there exactly as long as a person has something to decide. What the rebase was doing is recorded in it as a
blob under ``refs/nosync/rebase/record``; what has been resolved since is asked of git.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nosync import applying, trees
from nosync.errors import NosyncError
from nosync.git import GitFailure, Repo
from nosync.layout import Layout
from nosync.projects import Archive, Base
from nosync.replaying import Outcome, conflict_marks

RECORD = "refs/nosync/rebase/record"
_FORMAT = 1


@dataclass(frozen=True)
class Stop:
    """Where a rebase stands.

    Args:
        base: The target; ``known`` tells whether projects.toml had it.
        only: The series asked for, or empty for all.
        source, reason: What the target's files were made from.
        digest: Fingerprint of the patches that are being taken along.
        done: Outcomes so far, the stopped patch not included.
        stopped: The outcome that stopped it.
        head: The commit before the stopped patch.
    """

    base: Base
    known: bool
    only: str
    source: str
    reason: str
    digest: str
    done: list[Outcome]
    stopped: Outcome
    head: str


def place(layout: Layout, project: str, base: str) -> Path:
    return layout.build / "rebase" / f"{project}@{base}"


def in_progress(layout: Layout, project: str) -> list[Path]:
    """The project's worktrees, by base."""
    folder = layout.build / "rebase"
    return sorted(path for path in folder.glob(f"{project}@*") if path.is_dir()) if folder.is_dir() else []


def the_one(layout: Layout, project: str, base: str, word: str) -> Repo:
    """The project's stopped rebase, to ``base`` where that is given.

    Raises:
        NosyncError: there is none, or more than one and no base was given.
    """
    _recover(layout, project)
    found = [path for path in in_progress(layout, project) if not base or path.name == f"{project}@{base}"]
    if len(found) == 1:
        return Repo(found[0])
    if not found:
        to = f" to {base}" if base else ""
        raise NosyncError(
            f"no rebase of {project}{to} is in progress",
            "it ended, or was never started",
            f"make rebase-{project} TO=<base>",
        )
    bases = [path.name.partition("@")[2] for path in found]
    commands = "\n".join(f"make rebase-{project} TO={name} {word}=1" for name in bases)
    raise NosyncError(f"several rebases of {project} are in progress: {', '.join(bases)}", "", commands)


def _recover(layout: Layout, project: str) -> None:
    """Undo swaps of worktrees that were killed half-way."""
    for old in layout.scratch.glob(f"old-rebase-{project}@*"):
        trees.recover(layout.build / "rebase" / old.name.removeprefix("old-rebase-"), layout)


def write(repo: Repo, stop: Stop) -> None:
    data = json.dumps({"format": _FORMAT} | asdict(stop), indent=1).encode()
    repo.git("update-ref", RECORD, repo.git("hash-object", "-w", "--stdin", data=data).strip())


def read(repo: Repo, project: str) -> Stop:
    """The record of a stopped rebase.

    Raises:
        NosyncError: the folder holds none that this version can read.
    """
    try:
        body: dict[str, Any] = json.loads(repo.git("cat-file", "blob", RECORD))
        if body.pop("format") != _FORMAT:
            raise ValueError("another format")
        archive = Archive(**body["base"]["archive"]) if body["base"]["archive"] else None
        body["base"] = Base(**{**body["base"], "archive": archive})
        body["done"] = [Outcome(**entry) for entry in body["done"]]
        body["stopped"] = Outcome(**body["stopped"])
        return Stop(**body)
    except (GitFailure, ValueError, TypeError, KeyError) as error:
        raise NosyncError(
            f"{repo.path} holds no rebase that can be gone on with ({error})",
            "made by another version of the tool, or its refs were removed",
            f"make rebase-{project} ABORT=1",
        ) from None


def refuse_unready(repo: Repo, project: str, stop: Stop) -> None:
    """Raise NosyncError unless the stopped patch is resolved: everything merged, staged, without conflict marks."""
    again = f"make rebase-{project} CONTINUE=1"
    if not repo.ok("merge-base", "--is-ancestor", stop.head, "HEAD"):
        raise NosyncError(
            f"HEAD of {repo.path} no longer stands on the patches that went before",
            "a reset, or a rebase of earlier commits; only the stopped patch can be resolved here",
            f"git -C {repo.path} reflog\nmake rebase-{project} ABORT=1",
        )
    operation = trees.operation_in_progress(repo)
    if operation not in ("", "git am"):
        name = operation.removeprefix("git ")
        raise NosyncError(
            f"{operation} is in progress in {repo.path}", "", f"git -C {repo.path} {name} --continue\n{again}"
        )
    _refuse_unmerged(repo, again)
    _refuse_untracked(repo, again)
    left = [path for path in repo.git("diff", "--name-only", "-z", "HEAD").split("\0") if path]
    if not operation and left:
        raise NosyncError(
            f"{repo.path} has uncommitted edits: {', '.join(left[:5])}",
            "git am was ended already; what is edited since belongs to no commit",
            f"git -C {repo.path} commit --amend -a\n{again}",
        )


def _refuse_unmerged(repo: Repo, again: str) -> None:
    if unmerged := applying.unmerged(repo):
        raise NosyncError(
            f"{repo.path} is not resolved yet: {', '.join(unmerged)}",
            "conflicts are left, or their files were not added",
            f"git -C {repo.path} status\ngit -C {repo.path} add <file>\n{again}",
        )
    unstaged = [path for path in repo.git("diff", "--name-only", "-z").split("\0") if path]
    if unstaged and trees.operation_in_progress(repo):
        raise NosyncError(
            f"{repo.path} has edits that are not added: {', '.join(unstaged[:5])}",
            "git am takes what is in the index",
            f"git -C {repo.path} add {' '.join(unstaged[:5])}\n{again}",
        )
    staged = [path for path in repo.git("diff", "--cached", "--name-only", "-z", "HEAD").split("\0") if path]
    if marked := conflict_marks(repo, staged):
        raise NosyncError(
            f"conflict marks are left in {', '.join(marked)}",
            "added before they were resolved",
            f"edit, git add, then: {again}",
        )


def _refuse_untracked(repo: Repo, again: str) -> None:
    """Files in no commit, and stashes, would go with the worktree once the rebase ends."""
    if repo.ok("rev-parse", "-q", "--verify", "refs/stash"):
        raise NosyncError(
            f"{repo.path} holds a stash",
            "put away while resolving; the worktree is removed when the rebase ends",
            f"git -C {repo.path} stash pop\ngit -C {repo.path} stash drop\n{again}",
        )
    untracked = repo.git("ls-files", "-z", "--others", "--exclude-standard").split("\0")
    left = [path for path in (*untracked, *trees.unshown(repo, trees.edits(repo))) if path]
    if left:
        names = shlex.join(left[:5])
        raise NosyncError(
            f"{repo.path} holds files that are in no commit: {', '.join(left[:5])}",
            "made while resolving, or edited behind git's back; the worktree is removed when the rebase ends",
            f"cd {repo.path} && git add -f {names}      # they belong to the patch\n"
            f"cd {repo.path} && mv {names} <elsewhere>\n{again}",
        )


def changed_since(place: Repo, copy: Repo) -> list[str]:
    """What came to a worktree that was ready to go on with after ``copy`` was made of it."""
    found = trees.edits(place)
    found += trees.unshown(place, found)
    return found if copy.ok("cat-file", "-e", trees.head(place)) else [*found, "a commit"]


def finish_am(repo: Repo, project: str) -> None:
    """``git am --continue`` where it waits for that.

    Raises:
        NosyncError: the resolution leaves nothing to change; a person must say that the patch is to go.
    """
    if trees.operation_in_progress(repo) != "git am":
        return
    if not repo.git("diff", "--cached", "--name-only", "HEAD").strip():
        raise NosyncError(
            f"the resolution in {repo.path} changes nothing",
            "upstream has all of the patch, or its change was resolved away",
            f"git -C {repo.path} am --skip      # leaves the patch out\nmake rebase-{project} CONTINUE=1",
        )
    repo.git("am", "-q", "--committer-date-is-author-date", "--continue", env=trees.IDENTITY)
