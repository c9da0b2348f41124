"""Which series a tree's commits belong to, and which applied patch each came from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nosync import history, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.series import Cell
from nosync.trees import PatchState, Record


@dataclass(frozen=True)
class Commit:
    """A commit of the tree: what identifies it when it was rewritten, and the applied patch that it came from."""

    id: str
    author: tuple[str, ...]
    subject: str
    origin: PatchState | None = None


def assign(tree: Repo, record: Record, todo: list[Cell], wanted: str) -> list[tuple[Commit, str]]:
    """(commit, series) for every commit of the tree, oldest first.

    A commit that came from an applied patch keeps its series. A new one belongs to ``wanted``, else to the series of
    the commit below it, else to the first one; unless it may as well be a patch of another series, rewritten.
    """
    order = [cell.series.name for cell in todo]
    found: list[tuple[Commit, str]] = []
    commits = _with_origins(tree, record)
    lost = {} if wanted else _lost_beside(commits, record)
    for commit in commits:
        below = found[-1][1] if found else (order[0] if order else "")
        owner = commit.origin.series if commit.origin else wanted or below
        if owner not in order:
            raise NosyncError(
                f"{tree.path} has a commit of {_named(owner)}: {commit.subject}",
                "its folder under patches/ was removed or is still to be made",
                f"write patches/{record.project}/{owner or '<series>'}/series.toml, or remove the commit",
            )
        if other := next((state for state in lost.get(commit.id, []) if state.series != owner), None):
            raise _whose(tree, record, commit, owner, other)
        found.append((commit, owner))
    positions = [order.index(owner) for _, owner in found]
    if positions != sorted(positions):
        raise NosyncError(
            f"the commits of {tree.path} mix the series ({' below '.join(order)})",
            "a commit was reordered across a series, or a new one stands among another series' commits",
            f"git -C {tree.path} rebase -i {trees.BASE}, or name the new commits' series with S=<series>",
            "\n".join(f"{commit.id[:12]} {owner}: {commit.subject}" for commit, owner in found),
        )
    return found


def _lost_beside(commits: list[Commit], record: Record) -> dict[str, list[PatchState]]:
    """Per new commit: the applied patches that no commit came from and that lay where it stands, between the patches
    of the nearest commits below and above."""
    made = [state for state in record.patches if state.commit]
    places = [made.index(commit.origin) if commit.origin else None for commit in commits]
    lost = {}
    for position, commit in enumerate(commits):
        if places[position] is None:
            below = next((place for place in reversed(places[:position]) if place is not None), -1)
            above = next((place for place in places[position:] if place is not None), len(made))
            between = range(below + 1, above)
            lost[commit.id] = [made[place] for place in between if place not in places]
    return lost


def _whose(tree: Repo, record: Record, commit: Commit, owner: str, other: PatchState) -> NosyncError:
    command = f"make refresh-{record.project} BASE={record.base} S="
    return NosyncError(
        f"{tree.path}: {commit.id[:12]} ({commit.subject}) stands where {other.series}/{other.file} was",
        f"that patch with another author and message, which belongs to {other.series}, or a new one of {owner}",
        f"{command}{other.series}\n{command}{owner}",
    )


def _named(owner: str) -> str:
    return f"the series {owner}, which is gone" if owner else "no series"


def _with_origins(tree: Repo, record: Record) -> list[Commit]:
    """The tree's commits with the patch each came from: the same commit, else the same author, date and subject, else
    the same subject or the same author and date, where only one patch has it. No two commits come from one patch."""
    states = {state.commit: state for state in record.patches if state.commit}
    open_origins = _described(tree, trees.APPLIED)
    open_origins = [replace(commit, origin=states[commit.id]) for commit in open_origins if commit.id in states]
    commits = _described(tree, "HEAD")
    for key in (_by_id, _by_all, _by_subject, _by_author):
        waiting: dict[object, list[Commit]] = {}
        for origin in open_origins:
            waiting.setdefault(key(origin), []).append(origin)
        for position, commit in enumerate(commits):
            matching = waiting.get(key(commit), [])
            if commit.origin is None and (len(matching) == 1 or (matching and key in (_by_id, _by_all))):
                commits[position] = replace(commit, origin=matching.pop(0).origin)
        open_origins = [origin for origins in waiting.values() for origin in origins]
    return commits


def _by_id(commit: Commit) -> object:
    return commit.id


def _by_all(commit: Commit) -> object:
    return (commit.author, commit.subject)


def _by_subject(commit: Commit) -> object:
    return commit.subject


def _by_author(commit: Commit) -> object:
    return commit.author


def _described(tree: Repo, tip: str) -> list[Commit]:
    found = history.entries(tree, f"{trees.BASE}..{tip}", "%an", "%ae", "%at", "%s")
    return [Commit(entry.id, entry.fields[:3], entry.fields[3]) for entry in found]


def untouched(tree: Repo, record: Record, owners: list[tuple[Commit, str]]) -> set[str]:
    """Series whose commits say and change what ``apply`` made of them; an inherited one needs no folder of its own."""
    former, now = _changes(tree, trees.APPLIED), _changes(tree, "HEAD")
    same = set()
    for name in {state.series for state in record.patches}:
        made = [former.get(state.commit) for state in record.patches if state.series == name and state.commit]
        if made == [now[commit.id] for commit, series in owners if series == name]:
            same.add(name)
    return same


def _changes(tree: Repo, tip: str) -> dict[str, object]:
    """Per commit above the base: author, message and the blobs before and after."""
    found = history.entries(tree, f"{trees.BASE}..{tip}", "%an", "%ae", "%aI", "%B", raw=True)
    return {entry.id: (entry.fields, entry.raw) for entry in found}


def with_staying(record: Record, states: list[PatchState], todo: list[Cell], staying: set[str]) -> list[PatchState]:
    """The states of the exported patches, but those of the files that stay for series which get no folder here."""
    found: list[PatchState] = []
    for name in (cell.series.name for cell in todo):
        mine = [state for state in states if state.series == name]
        if name in staying:
            made = iter(mine)
            former = [state for state in record.patches if state.series == name]
            mine = [replace(state, commit=next(made).commit) if state.commit else state for state in former]
        found += mine
    return found


def gone(record: Record, owners: list[tuple[Commit, str]]) -> list[str]:
    """A line for each patch that no commit came from and that held more than the tree could show."""
    alive = {(commit.origin.series, commit.origin.file) for commit, _ in owners if commit.origin}
    lost = [
        state for state in record.patches if state.left_out and state.commit and (state.series, state.file) not in alive
    ]
    return [
        f"gone with {state.series}/{state.file}: its part on {', '.join(state.left_out)}, which this source lacks"
        for state in lost
    ]
