"""The ``git`` source: the project's submodule, cloned as thinly as the need is.

A submodule that is not there yet is cloned without a checkout, without blobs and sparsely, in a scratch folder that
is moved into place when it is whole. One that is there is only read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nosync.git import GitFailure, Repo, user_git
from nosync.report import progress

# Refused within a process: a host that did not answer once is not asked again for the next base.
_unreachable: dict[str, str] = {}


def make_ready(folder: Path, url: str, commit: str, paths: tuple[str, ...]) -> str:
    """Bring ``commit`` and its ``paths`` into the submodule; returns why that failed, or an empty string."""
    if not (folder / ".git").exists():
        return _unreachable.get(url) or _initialise(folder, url, commit, paths)
    if not _has(folder, commit):
        try:
            user_git(folder, "fetch", "-q", "--filter=blob:none", "origin", commit, timeout_settings=True)
        except GitFailure as failure:
            return f"commit {commit[:12]} is not in upstream/{folder.name} and cannot be fetched ({_last(failure)})"
    return ""


def fill(folder: Path, commit: str, paths: tuple[str, ...], repo: Repo) -> None:
    """Copy the blobs of ``paths`` at ``commit`` into ``repo`` and check them out, byte for byte.

    Objects travel as a pack, so no attribute, filter or line ending of upstream or of the user takes part.
    """
    listing = user_git(folder, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
    entries = [entry for entry in listing.split("\0") if entry and not entry.startswith("160000 ")]
    blobs = "\n".join(entry.split("\t")[0].split(" ")[2] for entry in entries) + "\n"
    pack = _pack(folder, blobs)
    repo.raw("unpack-objects", "-q", data=pack)
    repo.git("update-index", "-z", "--index-info", data="\0".join(entries).encode("utf-8", "surrogateescape"))
    repo.git("checkout-index", "-a", "-f")


def _pack(folder: Path, blobs: str) -> bytes:
    # surrogateescape both ways keeps the pack's bytes through the text interface
    out = user_git(folder, "pack-objects", "-q", "--stdout", data=blobs.encode(), timeout_settings=True)
    return out.encode("utf-8", "surrogateescape")


def _has(folder: Path, commit: str) -> bool:
    try:
        # A partial clone would fetch a missing commit here, one object at a time; the fetch below does better.
        user_git(folder, "-c", "remote.origin.promisor=false", "cat-file", "-e", commit + "^{commit}")
    except GitFailure:
        return False
    return True


def _initialise(folder: Path, url: str, commit: str, paths: tuple[str, ...]) -> str:
    """Clone into a scratch folder, then move it to the submodule's place."""
    root = folder.parent.parent
    scratch = root / "build" / "scratch" / f"clone-{folder.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    try:
        user_git(scratch.parent, "ls-remote", "-q", url, "HEAD", timeout_settings=True, anywhere=True)
        progress(f"{folder.name}: cloning {url} (no blobs but those of {len(paths)} paths)")
        user_git(
            scratch.parent, "clone", "-q", "--filter=blob:none", "--no-checkout", url, str(scratch),
            timeout_settings=True, anywhere=True,
        )  # fmt: skip
        user_git(scratch, "sparse-checkout", "set", "--no-cone", *(f"/{path}" for path in paths))
        user_git(scratch, "-c", "advice.detachedHead=false", "checkout", "-q", "--detach", commit)
    except GitFailure as failure:
        shutil.rmtree(scratch, ignore_errors=True)
        _unreachable[url] = f"{url} cannot be reached ({_last(failure)})"
        return _unreachable[url]
    _adopt(root, folder, scratch)
    return ""


def _adopt(root: Path, folder: Path, scratch: Path) -> None:
    """Put a whole clone at the submodule's place; its git directory goes where git keeps submodules'."""
    folder.mkdir(parents=True, exist_ok=True)
    os.rename(scratch, folder)  # onto the empty folder of the gitlink; a folder with files in it makes this fail
    if (root / ".git").exists():
        relative = folder.relative_to(root).as_posix()
        user_git(root, "submodule", "-q", "init", relative)
        user_git(root, "submodule", "absorbgitdirs", relative)


def _last(failure: GitFailure) -> str:
    lines = [line for line in failure.err.strip().splitlines() if line.strip()]
    return lines[-1] if lines else f"exit {failure.code}"
