"""Taking one patch after another to a base that they were not written for, with a three-way merge.

Unlike ``applying`` this stops with ``git am`` in progress where a patch conflicts, for a person to go on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nosync import applying, trees
from nosync.applying import Item
from nosync.errors import NosyncError
from nosync.git import GitFailure, Repo
from nosync.mailbox import changed_lines
from nosync.patchfile import PatchText, blobs, parse

STACKS = "refs/nosync/rebase/stack"  # <base id>: the series as they are on that base, whose blobs a merge needs
BASES = "refs/nosync/rebase/base"  # <base id>: that base alone, to say what upstream changed since


@dataclass(frozen=True)
class Outcome:
    """What became of one patch on the new base.

    Args:
        word: Of the apply vocabulary; ``already-upstream`` with commits means in part. ``dropped`` and ``resolved``
            are a person's doing.
        commits: What it became; none where nothing was left to change.
        left_out: Paths of it that the source lacks by nature.
    """

    series: str
    file: str
    word: str
    commits: list[str] = field(default_factory=list)
    detail: str = ""
    left_out: list[str] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        return self.word in applying.STOPPING


def replay(repo: Repo, item: Item, written_for: str, scratch: Path) -> Outcome:
    """Apply one patch three-way; where it conflicts, ``git am`` is left in progress.

    Args:
        written_for: Id of the base that the patch comes from.

    Raises:
        NosyncError: the merge lacks the files that the patch was written for.
    """
    if item.text.diffs and _is_there(repo, item.text):
        return _outcome(item, "already-upstream", [], "the whole change is in this base")
    gone = applying.gone(repo, item)
    before = trees.head(repo)
    try:
        applying.am(repo, [item], scratch, three_way=True)
    except GitFailure as failure:
        if applying.lacks_blobs(failure):
            repo.git("am", "--abort", env=trees.IDENTITY)
            raise _lacking(item, written_for, failure) from None
        return _stopped(repo, item, written_for, gone)
    made = trees.commits(repo, before)
    if not made:
        return _outcome(item, "already-upstream", [], "the merge left nothing to change")
    return _made(repo, item, made)


def resolved(repo: Repo, item: Item, before: str) -> Outcome:
    """What a person made of a patch that had stopped: commits since ``before``, or none."""
    made = trees.commits(repo, before)
    if not made:
        return _outcome(item, "dropped", [], "left out by hand (git am --skip)")
    return _outcome(item, "resolved", made, "by hand" + (f", as {len(made)} commits" if len(made) > 1 else ""))


def text_of(repo: Repo, commit: str) -> PatchText:
    """The commit's diff, split by file."""
    argv = (
        "diff-tree",
        "-p",
        "-r",
        "--root",
        "--full-index",
        "--no-renames",
        "--binary",
        "--no-commit-id",
        "--diff-algorithm=myers",
    )
    return parse(repo.raw(*argv, commit))


def _outcome(item: Item, word: str, commits: list[str], detail: str) -> Outcome:
    return Outcome(item.series, item.file.name, word, commits, detail, item.left_out)


def _is_there(repo: Repo, text: PatchText) -> bool:
    """Can the whole patch be taken back here? Then the base has it already."""
    if applying.exactly_here(repo, text.diffs):
        return False  # the very files it was made for; a removal could still be "taken back" elsewhere in them
    return applying.applies(repo, b"".join(diff.text for diff in text.diffs), "--reverse")


def _made(repo: Repo, item: Item, made: list[str]) -> Outcome:
    if not item.text.diffs:
        return _outcome(item, "empty", made, "every file of it is absent from this source")
    text = text_of(repo, made[-1])
    if blobs(text.diffs) == blobs(item.text.diffs):
        return _outcome(item, "unmodified", made, "")
    if there := _missing_lines(item.text, text):
        return _outcome(item, "already-upstream", made, "in part: " + ", ".join(there))
    return _outcome(item, "applied", made, "")


def _missing_lines(before: PatchText, after: PatchText) -> list[str]:
    """Files of which the merge needed fewer changed lines than the patch has, and no others."""
    was, now = changed_lines(before), changed_lines(after)
    found = []
    for path, (gone, new) in was.items():
        gone_now, new_now = now.get(path, ([], []))
        old_lines, new_lines = Counter(gone) + Counter(new), Counter(gone_now) + Counter(new_now)
        if new_lines != old_lines and not new_lines - old_lines:
            found.append(
                f"{path} ({sum(new_lines.values())} of {sum(old_lines.values())} changed lines were left to change)"
            )
    return found


# ---- what stops ----


def _stopped(repo: Repo, item: Item, written_for: str, gone: list[str]) -> Outcome:
    files = applying.unmerged(repo)
    detail = "; ".join(_describe(repo, path, written_for) for path in files) or "git am: nothing of it could be merged"
    if gone:
        return _outcome(item, "target-gone", [], "upstream has removed " + ", ".join(gone))
    return _outcome(item, "conflict", [], detail)


def _describe(repo: Repo, path: str, written_for: str) -> str:
    file = repo.path / path
    hunks = sum(line.startswith(b"<<<<<<< ") for line in file.read_bytes().splitlines()) if file.is_file() else 0
    count = f"{hunks} conflicting hunk{'s' * (hunks != 1)}"
    return f"{path}: {count}, upstream since {written_for}: {since(repo, path, written_for)}"


def since(repo: Repo, path: str, written_for: str) -> str:
    """What upstream changed in a file between the base of the patches and this one, in a few words."""
    try:
        diff = repo.git("diff", "-U0", "--no-color", "--no-ext-diff", f"{BASES}/{written_for}", trees.BASE, "--", path)
    except GitFailure:
        return "unknown"
    places = re.findall(r"^@@ -(\d+)[,\d]* \+[,\d]+ @@ ?(.*)$", diff, re.MULTILINE)
    added = len(re.findall(r"^\+(?!\+\+ )", diff, re.MULTILINE))
    gone = len(re.findall(r"^-(?!-- )", diff, re.MULTILINE))
    names = list(dict.fromkeys(heading.strip().rstrip(":") for _, heading in places if heading.strip()))
    where = f" in {'; '.join(names[:4])}{' …' if len(names) > 4 else ''}" if names else ""
    return f"{len(places)} hunks, +{added} -{gone}{where}" if places else "nothing"


def _lacking(item: Item, written_for: str, failure: GitFailure) -> NosyncError:
    return NosyncError(
        f"{item.series}/{item.file.name}: a three-way merge lacks the files that the patch was written for",
        f"the trees of {written_for} could not be made whole, or the patch names blobs of no known base",
        f"{item.way_to_its_base}, then the same rebase again",
        failure.err or failure.out,
    )


def conflict_marks(repo: Repo, paths: Iterable[str]) -> list[str]:
    """Which of the files still hold conflict marks?"""
    mark = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)
    return [path for path in paths if (repo.path / path).is_file() and mark.search((repo.path / path).read_bytes())]
