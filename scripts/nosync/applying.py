"""Putting patches on a tree and saying, per patch, what became of it.

The quick way is one ``git am`` over all patches, then a check that each commit holds exactly what its file says.
Only when that fails are the patches taken one at a time, to name the first that does not fit and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nosync.errors import NosyncError
from nosync.git import GitFailure, Repo
from nosync.patchfile import PatchText
from nosync.series import Cell
from nosync.trees import IDENTITY, PatchState, commits, head
from nosync.words import SOUND

_AM = (
    "am", "-q", "--keep-cr", "--keep-non-patch", "--no-scissors", "--no-message-id", "--empty=keep",
    "--committer-date-is-author-date", "--no-gpg-sign", "--whitespace=nowarn", "--no-ignore-whitespace",
)  # fmt: skip
STOPPING = ("conflict", "target-gone")


@dataclass(frozen=True)
class Item:
    """One patch on its way onto a tree: the text to apply, and what was left out of it."""

    series: str
    file: Path
    text: PatchText
    left_out: list[str]
    inherited: bool

    def state(self, word: str, commit: str = "", detail: str = "") -> PatchState:
        return PatchState(self.series, self.file.name, word, commit, detail, self.left_out)


def items(cells: Iterable[Cell], absent: tuple[str, ...]) -> list[Item]:
    """The patches of all cells in order, less their diffs of paths that the source lacks by nature."""
    found = []
    for cell in cells:
        for patch in cell.patches:
            text, left_out = patch.text().without(absent)
            found.append(Item(cell.series.name, patch.file, text, left_out, cell.inherited))
    return found


def apply_all(repo: Repo, todo: list[Item], scratch: Path) -> list[PatchState]:
    """Apply every patch; the states of all up to and including the first that does not fit.

    The tree is left with the commits of those that fitted and no operation in progress.
    """
    start = head(repo)
    if not any(item.inherited for item in todo):
        try:
            _am(repo, todo, scratch, three_way=False)
            states = verify(repo, start, todo)
            if all(state.word in SOUND for state in states):
                return states
        except (GitFailure, Mismatch):
            pass
        _abort(repo)
        repo.git("reset", "-q", "--hard", start)
    return _one_by_one(repo, todo, scratch)


class Mismatch(Exception):
    """Commits and patches are not one to one."""


def verify(repo: Repo, start: str, todo: list[Item]) -> list[PatchState]:
    """Compare the commits since ``start`` with the patches: same number, same blobs before and after.

    Raises:
        Mismatch: there are more or fewer commits than patches.
    """
    made = commits(repo, start)
    if len(made) != len(todo):
        raise Mismatch(f"{len(made)} commits for {len(todo)} patches")
    blobs = _blobs(repo, start)
    return [_compare(item, commit, blobs[commit]) for item, commit in zip(todo, made, strict=True)]


def _compare(item: Item, commit: str, blobs: dict[str, tuple[str, str]]) -> PatchState:
    named = {diff.path: (diff.old, diff.new) for diff in item.text.diffs if diff.old}
    if not item.text.diffs:
        return item.state("empty", commit, "every file of it is absent from this source")
    drifted = [path for path, pair in named.items() if blobs.get(path) != pair]
    if drifted:
        return item.state("drifted", commit, "other blobs than the patch names: " + ", ".join(drifted))
    if not item.left_out:
        return item.state("unmodified", commit)
    return item.state("applied", commit, f"{len(item.left_out)} files absent from this source left out")


def _blobs(repo: Repo, start: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Per commit since ``start``: path to (blob before, blob after)."""
    out = repo.git("log", "--reverse", "--topo-order", "--raw", "--no-abbrev", "--no-renames", "-z", "--format=%x01%H", f"{start}..HEAD")
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for block in out.split("\x01")[1:]:
        fields = block.split("\0")
        commit, rest = fields[0].strip(), [field for field in fields[1:] if field]
        pairs = zip(rest[::2], rest[1::2], strict=True)
        found[commit] = {path: tuple(raw.split(" ")[2:4]) for raw, path in pairs}  # type: ignore[misc]
    return found


def _one_by_one(repo: Repo, todo: list[Item], scratch: Path) -> list[PatchState]:
    states = []
    for item in todo:
        before = head(repo)
        state = _classify_before(repo, item) or _try(repo, item, scratch, before)
        states.append(state)
        if state.word in STOPPING:
            break
    return states


def _classify_before(repo: Repo, item: Item) -> PatchState | None:
    """What can be told before trying: a target that is gone, a change that is there already."""
    if not item.text.diffs:
        return None
    gone = [diff.path for diff in item.text.diffs if not diff.is_new and not repo.ok("cat-file", "-e", f"HEAD:{diff.path}")]
    if gone:
        return item.state("target-gone", "", "not in this base: " + ", ".join(gone))
    diff = b"".join(part.text for part in item.text.diffs)
    try:
        repo.raw("apply", "--check", "--reverse", "--index", "-", data=diff)
    except GitFailure:
        return None
    return item.state("already-upstream", "", "the change is in this base already")


def _try(repo: Repo, item: Item, scratch: Path, before: str) -> PatchState:
    try:
        _am(repo, [item], scratch, three_way=item.inherited)
    except GitFailure as failure:
        files = _conflicting(repo, item)
        _abort(repo)
        repo.git("reset", "-q", "--hard", before)
        if "lacking necessary blobs" in failure.err or "sha1 information is lacking" in failure.err:
            raise NosyncError(
                f"{item.series}/{item.file.name}: a three-way merge lacks the base that the patch was written for",
                "that base could not be fetched, or the patch names blobs of no known base",
                "make apply with the earlier base reachable",
                failure.err,
            ) from None
        return item.state("conflict", "", "in " + ", ".join(files))
    try:
        (state,) = verify(repo, before, [item])
    except Mismatch:
        # `git am --3way` exits 0 without a commit when nothing is left to change
        return item.state("already-upstream", "", "the merge left nothing to change")
    return state


def _conflicting(repo: Repo, item: Item) -> list[str]:
    unmerged = repo.git("diff", "--name-only", "--diff-filter=U", "-z").split("\0")
    found = [path for path in unmerged if path]
    return found or [diff.path for diff in item.text.diffs if not _fits(repo, diff.text)]


def _fits(repo: Repo, diff: bytes) -> bool:
    try:
        repo.raw("apply", "--check", "--cached", "-", data=diff)
    except GitFailure:
        return False
    return True


def _am(repo: Repo, todo: list[Item], scratch: Path, three_way: bool) -> None:
    """``git am`` of the items' texts; they go through files, since a mailbox on stdin would be split at 'From ' lines."""
    if not todo:
        return
    scratch.mkdir(parents=True, exist_ok=True)
    names = []
    for number, item in enumerate(todo):
        file = scratch / f"{number:05d}.patch"
        file.write_bytes(item.text.data)
        names.append(str(file))
    try:
        repo.git(*_AM, "--3way" if three_way else "--no-3way", *names, env=IDENTITY)
    finally:
        for name in names:
            os.unlink(name)


def _abort(repo: Repo) -> None:
    if (repo.path / ".git" / "rebase-apply").exists():
        repo.git("am", "--abort")


