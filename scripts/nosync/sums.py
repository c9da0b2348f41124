"""``SHA256SUMS`` of a folder that was written for a person: tells whether anybody changed it since."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILE = "SHA256SUMS"


def write(folder: Path) -> None:
    """Note every file of the folder, as ``sha256sum`` does."""
    lines = [f"{digest}  {name}\n" for name, digest in _digests(folder).items()]
    (folder / FILE).write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


def changed(folder: Path) -> list[str]:
    """Files that were changed, added or removed since ``write``; every file where nothing was noted."""
    noted: dict[str, str] = {}
    if (folder / FILE).is_file():
        text = (folder / FILE).read_text(encoding="utf-8", errors="surrogateescape")
        noted = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    now = _digests(folder)
    return sorted(name for name in noted.keys() | now.keys() if noted.get(name) != now.get(name))


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
