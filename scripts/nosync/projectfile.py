"""Adding a base to ``upstream/projects.toml`` as a person would: by editing its text."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from nosync import wholefile
from nosync.errors import NosyncError
from nosync.projects import Base


def add_base(file: Path, project: str, base: Base, after: str) -> None:
    """Write an entry for ``base`` behind the one of ``after``; nothing else of the file changes.

    Raises:
        NosyncError: the file is not in the form that such an edit needs; it was left as it is.
    """
    text = file.read_text(encoding="utf-8")
    new = insert(text, project, base, after)
    wholefile.write(file, new.encode())


def insert(text: str, project: str, base: Base, after: str) -> str:
    """The file's text with the entry; checked to say what it said before, and the new base."""
    header = f"[[{project}.bases]]"
    starts = [match.start() for match in re.finditer(rf"^{re.escape(header)}[ \t]*$", text, re.MULTILINE)]
    blocks = [(start, _end(text, start)) for start in starts]
    place = next((end for start, end in blocks if _id(text[start:end]) == after), None)
    if place is None:
        raise _form(project, base, f"it has no block {header} with id = {after!r}")
    new = (
        text[:place].rstrip("\n")
        + "\n\n"
        + entry(project, base)
        + ("\n" + text[place:] if text[place:].strip() else "")
    )
    _check(text, new, project, base)
    return new


def entry(project: str, base: Base) -> str:
    """The block of one base, as the file writes them."""
    lines = [f"[[{project}.bases]]", f"id = {json.dumps(base.id)}"]
    if base.commit:
        lines.append(f"commit = {json.dumps(base.commit)}")
    if base.archive:
        fields = ", ".join(
            f"{key} = {json.dumps(getattr(base.archive, key))}" for key in ("package", "version", "sha256")
        )
        lines.append(f"archive = {{ {fields} }}")
    return "\n".join(lines) + "\n"


def _end(text: str, start: int) -> int:
    """Where the block ends: before the next table, whose comments belong to it."""
    following = re.compile(r"^(?:#[^\n]*\n)*\[", re.MULTILINE).search(text, text.index("\n", start))
    return following.start() if following else len(text)


def _id(block: str) -> str:
    body = block.partition("\n")[2]
    try:
        return str(tomllib.loads(body).get("id", ""))
    except tomllib.TOMLDecodeError:
        return ""


def _check(old: str, new: str, project: str, base: Base) -> None:
    before, now = tomllib.loads(old), tomllib.loads(new)
    added = [item for item in now[project]["bases"] if item not in before[project]["bases"]]
    rest = [item for item in now[project]["bases"] if item not in added]
    same = {**now, project: {**now[project], "bases": rest}} == before
    if not same or len(added) != 1 or added[0].get("id") != base.id:
        raise _form(project, base, "the edit would change more than the one entry")


def _form(project: str, base: Base, why: str) -> NosyncError:
    return NosyncError(
        f"projects.toml cannot take the new base {base.id} of {project}: {why}",
        "its bases are written in another form than [[project.bases]] blocks",
        "add this by hand:\n" + entry(project, base),
    )
