"""The ``git`` source: the project's submodule, cloned as thinly as the need is.

A submodule that is not there yet is cloned without a checkout, without blobs and sparsely, in a scratch folder that
is moved into place when it is whole. One that is there is only read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nosync import scratch
from nosync.errors import NosyncError
from nosync.git import BYTE_EXACT, GitFailure, Repo, user_git
from nosync.layout import Layout
from nosync.projects import Project
from nosync.report import progress
from nosync.sources import unreachable

_ANSWER = 20.0  # seconds in which a repository's host must answer before the archive is taken


def make_ready(layout: Layout, project: Project, commit: str, ask_again: bool = False) -> str:
    """Bring ``commit`` and the project's paths of it into the submodule; returns why that failed, or an empty string.

    Args:
        ask_again: Ask the network even where it gave no answer a moment ago.
    """
    folder = layout.submodule(project.name)
    if not (folder / ".git").exists():
        if folder.is_dir() and any(folder.iterdir()):
            return f"upstream/{project.name} holds files but is no git repository"
        known = "" if ask_again else unreachable.remembered(layout, project.url)
        if reason := known or _initialise(layout, project):
            return reason
    elif (folder / ".git").is_dir():
        _absorb(layout.root, folder)
    if _has(folder, commit) and not _missing(folder, commit, project.paths):
        return ""
    what = f"{project.url} {commit}"
    known = "" if ask_again else unreachable.remembered(layout, what)
    return known or _fetch(layout, project, commit, what)


def fill(folder: Path, commit: str, paths: tuple[str, ...], repo: Repo) -> None:
    """Copy the blobs of ``paths`` at ``commit`` into ``repo`` and check them out, byte for byte.

    Objects travel as a pack, so no attribute, filter or line ending of upstream or of the user takes part.
    """
    entries = _entries(folder, commit, paths)
    if not entries:
        raise NosyncError(
            f"{commit[:12]} of upstream/{folder.name} holds none of: {', '.join(paths)}",
            "'paths' in projects.toml is wrong",
        )
    repo.raw("unpack-objects", "-q", data=_pack(folder, entries))
    repo.git("update-index", "-z", "--index-info", data="\0".join(entries).encode("utf-8", "surrogateescape"))
    repo.git("checkout-index", "-a", "-f")


def _entries(folder: Path, commit: str, paths: tuple[str, ...]) -> list[str]:
    """``mode type id<TAB>path`` of every file under ``paths``; upstream's own submodules stay away."""
    listing = user_git(folder, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
    return [entry for entry in listing.split("\0") if entry and not entry.startswith("160000 ")]


def _pack(folder: Path, entries: list[str]) -> bytes:
    blobs = "\n".join(entry.split("\t")[0].split(" ")[2] for entry in entries) + "\n"
    out = user_git(folder, "pack-objects", "-q", "--stdout", data=blobs.encode(), timeout_settings=True)
    return out.encode("utf-8", "surrogateescape")  # both ways, which keeps the pack's bytes through the text interface


def _has(folder: Path, commit: str) -> bool:
    try:
        # A partial clone would fetch a missing commit here, one object at a time; the fetch below does better.
        user_git(folder, "-c", f"remote.{remote(folder)}.promisor=false", "cat-file", "-e", commit + "^{commit}")
    except GitFailure:
        return False
    return True


def _missing(folder: Path, commit: str, paths: tuple[str, ...]) -> bool:
    """Does a thin clone lack objects of these paths?"""
    try:
        listing = user_git(folder, "rev-list", "--objects", "--no-walk", "--missing=print", commit, "--", *paths)
    except GitFailure:
        return True
    return any(line.startswith("?") for line in listing.splitlines())


def _fetch(layout: Layout, project: Project, commit: str, what: str) -> str:
    folder = layout.submodule(project.name)
    try:
        user_git(folder, "ls-remote", "-q", remote(folder), "HEAD", timeout_settings=True, within=_ANSWER)
        if not _has(folder, commit):
            fetch(folder, commit)
        _pack(folder, _entries(folder, commit, project.paths))  # in a thin clone this brings the blobs, all at once
    except GitFailure as failure:
        _refuse_full_disk(folder, failure)
        why = f"could not be fetched ({failure.reason})"
        return unreachable.remember(
            layout, what, f"commit {commit[:12]} is not whole in upstream/{folder.name} and {why}"
        )
    unreachable.forget(layout, what)
    return ""


def _initialise(layout: Layout, project: Project) -> str:
    """Clone into a scratch folder, at the pinned commit, then move it to the submodule's place."""
    url, folder = project.url, layout.submodule(project.name)
    clone = scratch.fresh(layout, f"clone-{project.name}")
    failed = "could not be reached"
    try:
        user_git(clone.parent, "ls-remote", "-q", url, "HEAD", timeout_settings=True, anywhere=True, within=_ANSWER)
        progress(f"{project.name}: cloning {url} (no blobs but those of {len(project.paths)} paths)")
        failed = "answered, but could not be cloned"
        _clone(project, clone)
    except GitFailure as failure:
        shutil.rmtree(clone, ignore_errors=True)
        _refuse_full_disk(clone, failure)
        return unreachable.remember(layout, url, f"{url} {failed} ({failure.reason})")
    unreachable.forget(layout, url)
    folder.mkdir(parents=True, exist_ok=True)
    os.rename(clone, folder)  # onto the empty folder of the gitlink
    _absorb(layout.root, folder)
    return ""


def _clone(project: Project, clone: Path) -> None:
    user_git(
        clone.parent, "clone", "-q", "--filter=blob:none", "--no-checkout", "-o", "origin", project.url, str(clone),
        timeout_settings=True, anywhere=True,
    )  # fmt: skip
    (clone / ".git" / "info").mkdir(exist_ok=True)
    (clone / ".git" / "info" / "attributes").write_text(BYTE_EXACT)  # or it may look edited from the start
    user_git(clone, "sparse-checkout", "set", "--no-cone", *(f"/{path}" for path in project.paths))
    if commit := project.pinned.commit:
        if not _has(clone, commit):
            fetch(clone, commit)
        user_git(clone, "-c", "advice.detachedHead=false", "checkout", "-q", "--detach", commit)


def fetch(folder: Path, what: str) -> None:
    """A ref or commit of upstream, without blobs, as FETCH_HEAD."""
    user_git(folder, "fetch", "-q", "--filter=blob:none", remote(folder), what, timeout_settings=True)


def remote(folder: Path) -> str:
    """The remote of a submodule: ``origin``, or what the user's own clone calls it (clone.defaultRemoteName)."""
    names = user_git(folder, "remote").split()
    return "origin" if "origin" in names or not names else names[0]


def _refuse_full_disk(folder: Path, failure: GitFailure) -> None:
    if failure.full_disk:
        raise NosyncError(f"{folder} could not be written", "a full disk", "free some space", failure.err) from None


def _absorb(root: Path, folder: Path) -> None:
    """Move a submodule's git directory to where git keeps those of submodules."""
    if (root / ".git").exists():
        relative = folder.relative_to(root).as_posix()
        user_git(root, "submodule", "-q", "init", relative)
        user_git(root, "submodule", "absorbgitdirs", relative)
