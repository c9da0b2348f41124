"""Reading one patch file as text: its header, its per-file diffs, the blobs it names.

Pure functions on bytes; nothing here runs git or touches the disk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from itertools import pairwise

ZERO = b"0" * 40
_DIFF = re.compile(rb"^diff --git ", re.MULTILINE)
_INDEX = re.compile(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?$", re.MULTILINE)


@dataclass(frozen=True)
class FileDiff:
    """The part of a patch about one file.

    Args:
        path: The file's path in the tree (the new one; patches hold no renames).
        old, new: Blob ids as the index line names them, forty zeros for 'no file'.
        text: The bytes, from ``diff --git`` to the next one.
    """

    path: str
    old: str
    new: str
    text: bytes

    @property
    def is_new(self) -> bool:
        return self.old == ZERO.decode()


@dataclass(frozen=True)
class PatchText:
    """A patch split into the message part and the file diffs, whose concatenation is the file."""

    head: bytes
    diffs: tuple[FileDiff, ...]

    @property
    def data(self) -> bytes:
        return self.head + b"".join(diff.text for diff in self.diffs)

    @property
    def carriage_returns(self) -> bool:
        """Were the file's line ends turned to CRLF? One in a diff may be upstream's; git's own lines have none."""
        return self.head.partition(b"\n")[0].endswith(b"\r")

    def subject(self) -> str:
        """The subject line, unfolded, without ``[PATCH]``."""
        match = re.search(rb"^Subject: (.*(?:\n[ \t].*)*)", self.head, re.MULTILINE)
        text = re.sub(rb"\n[ \t]", b" ", match.group(1)) if match else b""
        decoded = _decoded(text.decode("utf-8", "replace"))
        return re.sub(r"^\[PATCH\] ", "", decoded)

    def without(self, prefixes: tuple[str, ...]) -> tuple[PatchText, list[str]]:
        """This patch less the diffs under ``prefixes``, and the paths that were left out."""
        left_out = [diff.path for diff in self.diffs if diff.path.startswith(prefixes)] if prefixes else []
        kept = tuple(diff for diff in self.diffs if diff.path not in left_out)
        return PatchText(self.head, kept), left_out

    def with_diffs_of(self, other: PatchText, paths: list[str]) -> PatchText:
        """This patch plus the other's diffs of ``paths``, in git's order (by the bytes of the path)."""
        extra = tuple(diff for diff in other.diffs if diff.path in paths)
        merged = sorted(self.diffs + extra, key=lambda diff: diff.path.encode("utf-8", "surrogateescape"))
        # git writes an empty line between message and diff, which a patch without a diff lacks
        head = self.head if self.diffs or not extra else self.head + b"\n"
        return PatchText(head, tuple(merged))


def _decoded(header: str) -> str:
    """A header's text; as it stands where it names an unknown charset or is encoded wrongly."""
    try:
        return str(make_header(decode_header(header)))
    except (LookupError, ValueError, HeaderParseError):
        return header


def parse(data: bytes) -> PatchText:
    """Split a patch as ``git format-patch`` writes it.

    A line of a hunk starts with a space, ``+``, ``-`` or a backslash, so no ``diff --git`` at a line start is in one.
    """
    start = _diff_start(data)
    cuts = [match.start() for match in _DIFF.finditer(data, start)] + [len(data)]
    diffs = tuple(_file_diff(data[a:b]) for a, b in pairwise(cuts))
    return PatchText(data[:start], diffs)


def _diff_start(data: bytes) -> int:
    """Where the diff begins; ``git am`` cuts the message at the same line."""
    match = _DIFF.search(data)
    return match.start() if match else len(data)


def _file_diff(text: bytes) -> FileDiff:
    index = _INDEX.search(text)
    old, new = (index.group(1).decode(), index.group(2).decode()) if index else ("", "")
    return FileDiff(_path(text), old, new, text)


def _path(text: bytes) -> str:
    for marker in (rb"^\+\+\+ (.*)$", rb"^--- (.*)$"):
        match = re.search(marker, text, re.MULTILINE)
        if match and match.group(1).rstrip(b"\t") != b"/dev/null":
            return _unquote(match.group(1).rstrip(b"\t"))[2:]
    first = text.splitlines()[0].removeprefix(b"diff --git ")
    if first.startswith(b'"'):
        return _unquote(first[: first.index(b'" ', 1) + 1])[2:]
    # Without '---' lines (mode change, empty or binary file) both names are equal: 'a/NAME b/NAME'.
    return first[2 : (len(first) - 1) // 2].decode("utf-8", "surrogateescape")


_ESCAPES = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b'"': b'"',
    b"\\": b"\\",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


def blobs(diffs: Iterable[FileDiff]) -> dict[str, tuple[str, str]]:
    """Per path: the blob before and after. A file that becomes a link is two diffs: one removes, one adds."""
    found: dict[str, tuple[str, str]] = {}
    for diff in diffs:
        before, _ = found.get(diff.path, (diff.old, ""))
        found[diff.path] = (before, diff.new)
    return found


def unsafe(text: PatchText) -> list[str]:
    """What in a patch must not be applied: paths outside the tree or in a git folder, submodules."""
    problems = []
    for diff in text.diffs:
        parts = diff.path.split("/")
        if diff.path.startswith("/") or ".." in parts or ".git" in {part.lower() for part in parts}:
            problems.append(f"touches {diff.path}")
        if b" 160000\n" in diff.text.split(b"\n@@", 1)[0] + b"\n":
            problems.append(f"a submodule: {diff.path}")
    return problems


def blob_id(data: bytes) -> str:
    """The id that git gives these bytes as a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _unquote(name: bytes) -> str:
    """Undo git's C-style quoting of a path."""
    if not name.startswith(b'"'):
        return name.decode("utf-8", "surrogateescape")

    def plain(match: re.Match[bytes]) -> bytes:
        code = match.group(1)
        return _ESCAPES.get(code) or bytes([int(code, 8)])

    return re.sub(rb"\\([0-7]{3}|.)", plain, name[1:-1]).decode("utf-8", "surrogateescape")
