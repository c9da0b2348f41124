"""Putting patches on a tree and saying, per patch, what became of it.

The quick way is one ``git am`` over all patches, then a check that each commit holds exactly what its file says.
Only when that fails are the patches taken one at a time, to name the first that does not fit and why.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nosync import history
from nosync.errors import NosyncError
from nosync.git import GitFailure, Repo
from nosync.patchfile import ZERO, FileDiff, PatchText, blob_id, blobs, parse, unsafe
from nosync.series import Cell
from nosync.sources import Source
from nosync.trees import IDENTITY, PatchState, head

AM = (
    "am", "-q", "--keep-cr", "--keep-non-patch", "--no-scissors", "--no-message-id", "--empty=keep",
    "--committer-date-is-author-date", "--no-gpg-sign", "--whitespace=nowarn", "--no-ignore-whitespace",
)  # fmt: skip
QUICKLY = ("-c", "core.looseCompression=0")  # a sixth of `am`'s time would go into deflating its small objects
STOPPING = ("conflict", "target-gone")


@dataclass(frozen=True)
class Item:
    """One patch on its way onto a tree: the text to apply, what was left out of it, the id of the whole file, and its
    paths that the source is known to have in another form."""

    series: str
    file: Path
    text: PatchText
    left_out: list[str]
    inherited: bool
    blob: str
    other_form: list[str]

    @property
    def way_to_its_base(self) -> str:
        """The command that brings the base it was written for: patches/<project>/<series>/<base>/<file>."""
        return f"make apply P={self.file.parents[2].name} BASE={self.file.parent.name}"

    def state(self, word: str, commit: str = "", detail: str = "") -> PatchState:
        return PatchState(self.series, self.file.name, word, commit, detail, self.left_out, self.blob, self.other_form)


def items(cells: Iterable[Cell], source: Source) -> list[Item]:
    """The patches of all cells in order, less their diffs of paths that the source lacks by nature.

    Raises:
        NosyncError: a patch reaches outside the tree, into a git folder or at a submodule, or has CRLF line ends.
    """
    found = []
    for cell in cells:
        for patch in cell.patches:
            data = patch.file.read_bytes()
            whole = parse(data)
            if whole.carriage_returns:
                named = shlex.quote(str(patch.file))
                raise NosyncError(
                    f"{patch.file} has CRLF line ends", "a clone with core.autocrlf, or an editor turned them",
                    f"rm {named}\ngit checkout -- {named}      # the committed bytes",
                )  # fmt: skip
            if problems := unsafe(whole):
                raise NosyncError(
                    f"{patch.file}: {'; '.join(problems)}", "not a patch of upstream's files", "make check"
                )
            text, left_out = whole.without(source.absent)
            other_form = [diff.path for diff in text.diffs if diff.path in source.differs]
            found.append(Item(cell.series.name, patch.file, text, left_out, cell.inherited, blob_id(data), other_form))
    return found


def apply_all(repo: Repo, todo: list[Item], scratch: Path) -> list[PatchState]:
    """Apply every patch; the states of all up to and including the first that does not fit.

    The tree is left with the commits of those that fitted and no operation in progress.
    """
    start = head(repo)
    if not any(item.inherited for item in todo):
        try:
            am(repo, todo, scratch, three_way=False)
            return verify(repo, start, todo)
        except (GitFailure, Mismatch):
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
    made = _blobs(repo, start)
    if len(made) != len(todo):
        raise Mismatch(f"{len(made)} commits for {len(todo)} patches")
    return [_compare(item, commit, pairs) for item, (commit, pairs) in zip(todo, made.items(), strict=True)]


def _compare(item: Item, commit: str, made: dict[str, tuple[str, str]]) -> PatchState:
    named = {path: pair for path, pair in blobs(item.text.diffs).items() if pair[0]}
    if not item.text.diffs:
        return item.state("empty", commit, "every file of it is absent from this source")
    drifted = [path for path, pair in named.items() if made.get(path) != pair]
    if drifted and set(drifted) <= set(item.other_form):
        return item.state("applied", commit, f"the release has another form of {', '.join(drifted)}")
    if drifted:
        return item.state("drifted", commit, "other blobs than the patch names: " + ", ".join(drifted))
    if not item.left_out:
        return item.state("unmodified", commit)
    return item.state("applied", commit, f"left out, absent from this source: {', '.join(item.left_out)}")


def _blobs(repo: Repo, start: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Per commit since ``start``, oldest first: path to (blob before, blob after)."""
    found = history.entries(repo, f"{start}..HEAD", raw=True)
    return {entry.id: {path: _pair(raw) for path, raw in entry.raw.items()} for entry in found}


def _pair(raw: str) -> tuple[str, str]:
    _, _, old, new, _ = raw.split(" ")
    return old, new


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
    """What can be told before trying: a change that is there already, a target that is gone."""
    if not item.text.diffs or exactly_here(repo, item.text.diffs):
        return None
    diff = b"".join(part.text for part in item.text.diffs)
    if applies(repo, diff, "--reverse"):
        return item.state("already-upstream", "", "the change is in this base already")
    missing = gone(repo, item)
    return item.state("target-gone", "", "not in this base: " + ", ".join(missing)) if missing else None


def gone(repo: Repo, item: Item) -> list[str]:
    """Paths that the patch changes and this base does not have."""
    return [
        diff.path for diff in item.text.diffs if not diff.is_new and not repo.ok("cat-file", "-e", f"HEAD:{diff.path}")
    ]


def exactly_here(repo: Repo, diffs: tuple[FileDiff, ...]) -> bool:
    """Is every file the very one that the patch was made for?"""
    listing = repo.git("ls-tree", "-z", "--full-tree", "HEAD", "--", *(diff.path for diff in diffs)).split("\0")
    here = {entry.partition("\t")[2]: entry.split("\t")[0].split(" ")[2] for entry in listing if entry}
    return all(old and here.get(path, ZERO.decode()) == old for path, (old, _) in blobs(diffs).items())


def _try(repo: Repo, item: Item, scratch: Path, before: str) -> PatchState:
    try:
        am(repo, [item], scratch, three_way=item.inherited)
    except GitFailure as failure:
        files = _conflicting(repo, item)
        _abort(repo)
        repo.git("reset", "-q", "--hard", before)
        if lacks_blobs(failure):
            raise NosyncError(
                f"{item.series}/{item.file.name}: a three-way merge lacks the base that the patch was written for",
                "that base could not be fetched, or the patch names blobs of no known base",
                f"{item.way_to_its_base}, then the same command again",
                failure.err,
            ) from None
        return item.state("conflict", "", "in " + ", ".join(files) if files else _last_line(failure))
    try:
        (state,) = verify(repo, before, [item])
    except Mismatch:
        # `git am --3way` exits 0 without a commit when nothing is left to change
        return item.state("already-upstream", "", "the merge left nothing to change")
    return state


def _conflicting(repo: Repo, item: Item) -> list[str]:
    return unmerged(repo) or [diff.path for diff in item.text.diffs if not applies(repo, diff.text)]


def unmerged(repo: Repo) -> list[str]:
    """Paths with unmerged entries."""
    return [path for path in repo.git("diff", "--name-only", "--diff-filter=U", "-z").split("\0") if path]


def lacks_blobs(failure: GitFailure) -> bool:
    """Whether a three-way merge failed because the files that the patch was written for are not here."""
    return bool(re.search(r"lacks necessary blobs|sha1 information is lacking", failure.err + failure.out))


def applies(repo: Repo, diff: bytes, *options: str) -> bool:
    """Could this diff be applied to the index?"""
    try:
        repo.raw("apply", "--check", "--cached", *options, "-", data=diff)
    except GitFailure:
        return False
    return True


def _last_line(failure: GitFailure) -> str:
    return (failure.err or failure.out).strip().rpartition("\n")[2]


def am(repo: Repo, todo: list[Item], scratch: Path, three_way: bool) -> None:
    """``git am`` of the items' texts, through files: a mailbox on stdin would be split at 'From ' lines."""
    if not todo:
        return
    try:
        names = [str(_mail(item, scratch / f"{number:05d}.patch")) for number, item in enumerate(todo)]
        repo.git(*QUICKLY, *AM, "--3way" if three_way else "--no-3way", *names, env=IDENTITY)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _mail(item: Item, spare: Path) -> Path:
    """The patch's own file, or ``spare`` with what is left of it."""
    if not item.left_out:
        return item.file
    spare.parent.mkdir(parents=True, exist_ok=True)
    spare.write_bytes(item.text.data)
    return spare


def _abort(repo: Repo) -> None:
    if (repo.path / ".git" / "rebase-apply").exists():
        repo.git("am", "--abort", env=IDENTITY)
