"""Reading ``git log`` by NUL alone, the one byte that no message, name or path can hold."""

from __future__ import annotations

from dataclasses import dataclass

from nosync.git import Repo


@dataclass(frozen=True)
class Entry:
    """One commit: its id, the fields asked for, and per path git's raw line ``:mode mode blob blob status``."""

    id: str
    fields: tuple[str, ...]
    raw: dict[str, str]


def entries(repo: Repo, what: str, *fields: str, raw: bool = False) -> list[Entry]:
    """The commits of a range, oldest first.

    Args:
        fields: Placeholders of git's pretty formats, e.g. ``%an``.
        raw: Read the changed paths too; renames count as a removal and an addition.
    """
    form = "--format=" + "%x00".join(("%H", *fields))
    more = ("--raw", "--no-abbrev", "--no-renames") if raw else ()
    words = repo.git("log", "-z", "--reverse", "--topo-order", *more, form, what).split("\0")[:-1]
    found, position = [], 0
    while position < len(words):
        commit, *values = words[position : position + 1 + len(fields)]
        position += 1 + len(fields)
        changed = {}
        while position < len(words) and words[position].startswith(("\n:", ":")):
            changed[words[position + 1]] = words[position].strip("\n")
            position += 2
        found.append(Entry(commit, tuple(values), changed))
    return found
