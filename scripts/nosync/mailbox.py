"""Commits as patch files, byte for byte the same whatever the user's git configuration says."""

from __future__ import annotations

from pathlib import Path

from nosync.git import Repo
from nosync.patchfile import PatchText, parse

# Every setting that could change a byte is given, so that no configuration has anything left to say.
FORMAT_PATCH = (
    "format-patch", "-q", "--zero-commit", "--no-signature", "--full-index", "--no-stat", "--no-renames",
    "--diff-algorithm=myers", "--indent-heuristic", "-U3", "--inter-hunk-context=0", "--src-prefix=a/",
    "--dst-prefix=b/", "--no-numbered", "--no-attach", "--no-thread", "--no-cover-letter", "--no-base", "--no-notes",
    "--no-ext-diff", "--no-textconv", "--no-relative", "--no-color", "--no-signoff", "--no-from", "--no-to", "--no-cc",
    "--no-add-header", "--binary", "--subject-prefix=PATCH", "--encode-email-headers", "--suffix=.patch",
    "--filename-max-length=64", "--submodule=short", "--always",
)  # fmt: skip


def write(repo: Repo, start: str, tip: str, folder: Path) -> list[Path]:
    """The commits of ``start..tip`` as files in ``folder``, oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    repo.git(*FORMAT_PATCH, "-o", str(folder), f"{start}..{tip}")
    return sorted(folder.glob("*.patch"))


def restore(file: Path, former: PatchText, paths: list[str]) -> None:
    """Give a patch file back the former's diffs of paths that a tree never saw."""
    if paths:
        file.write_bytes(parse(file.read_bytes()).with_diffs_of(former, paths).data)


def changed_lines(text: PatchText) -> dict[str, tuple[list[bytes], list[bytes]]]:
    """Per path: the lines that a patch takes away and those that it adds, without their places."""
    found: dict[str, tuple[list[bytes], list[bytes]]] = {}
    for diff in text.diffs:
        hunks = diff.text.split(b"\n@@", 1)[-1].splitlines()[1:] if b"\n@@" in diff.text else []
        gone = [line[1:] for line in hunks if line.startswith(b"-")]
        new = [line[1:] for line in hunks if line.startswith(b"+")]
        before = found.get(diff.path, ([], []))
        found[diff.path] = (before[0] + gone, before[1] + new)
    return found
