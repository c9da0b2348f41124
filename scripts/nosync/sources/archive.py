"""The ``archive`` source: a release's source archive from the user's Python package index.

Found by name and version with unearth, taken only with the right sha256, kept under ``build/downloads``.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Archive

if TYPE_CHECKING:
    from unearth import PackageFinder


def fill(layout: Layout, archive: Archive, repo: Repo) -> None:
    """Unpack the archive into a fresh repository and add every file of it to the index."""
    file = download(layout, archive)
    with tempfile.TemporaryDirectory(dir=_made(layout.scratch)) as folder:
        top = unpack(file, Path(folder))
        for entry in top.iterdir():
            if entry.name == ".git":
                raise NosyncError(f"{file.name} holds a .git folder", "a tampered archive", "")
            shutil.move(entry, repo.path / entry.name)
    # -f: a file that upstream's own .gitignore names is still part of the archive
    repo.git("add", "-A", "-f", ".")


def download(layout: Layout, archive: Archive) -> Path:
    """The archive's file, from the cache or the index; its bytes have the sha256 asked for.

    Raises:
        NosyncError: it cannot be found or fetched, or its bytes are others.
    """
    folder = layout.downloads / archive.sha256
    for cached in folder.glob("*.tar.gz"):
        if _sha256(cached) == archive.sha256:
            return cached
        cached.unlink()  # a cut-off or damaged copy; the index has the whole one
    with tempfile.TemporaryDirectory(dir=_made(layout.scratch)) as scratch:
        file = _fetch(archive, Path(scratch))
        seen = _sha256(file)
        if seen != archive.sha256:
            raise NosyncError(
                f"{file.name} has sha256 {seen}, expected {archive.sha256}",
                "the index served another file, a proxy changed it, or projects.toml is wrong",
                "compare both with the release's page; nothing was unpacked",
            )
        return Path(os.replace(file, _made(folder) / file.name) or folder / file.name)


def newest(package: str) -> Archive:
    """The newest release of a package that has a source archive, as the user's index lists it."""
    from unearth import PackageFinder

    for found in _finder(PackageFinder, package).find_matches(package):
        hashes = found.link.hashes or {}
        if found.link.filename.endswith(".tar.gz") and found.version and hashes.get("sha256"):
            digest = hashes["sha256"]  # a list or a string, by how the index states it
            return Archive(package, found.version, digest if isinstance(digest, str) else digest[0])
    raise NosyncError(f"the index lists no source archive of {package}", "no network, or a mirror of wheels only", "")


def unpack(file: Path, into: Path) -> Path:
    """Unpack with tarfile's data filter; returns the single top folder.

    Raises:
        NosyncError: a member would land outside, is a device, or the archive is cut off or not one folder.
    """
    try:
        with tarfile.open(file, "r:gz") as tar:
            tar.extractall(into, filter="data")
    except (tarfile.FilterError, tarfile.TarError, EOFError, OSError) as error:
        raise NosyncError(
            f"{file.name} cannot be unpacked safely: {error}",
            "a truncated download, a full disk, or an archive with unsafe members",
            f"rm -r {file.parent}\nmake apply",
        ) from None
    tops = list(into.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise NosyncError(f"{file.name} holds {len(tops)} entries at its top instead of one folder", "", "")
    return tops[0]


def _fetch(archive: Archive, folder: Path) -> Path:
    from unearth import PackageFinder  # imported here: it costs 0.2 s, and most runs find the file in the cache
    from unearth.errors import UnpackError

    wish = f"{archive.package}=={archive.version}"
    finder = _finder(PackageFinder, archive.package)
    try:
        found = finder.find_matches(wish, allow_yanked=True, allow_prereleases=True)
        for package in found:
            if package.link.filename.endswith(".tar.gz"):
                return finder.download(package.link, folder, hashes={"sha256": [archive.sha256]})
    except UnpackError as error:
        raise NosyncError(f"{wish}: {error}", "the index served another file than the one pinned", "") from None
    except Exception as error:  # unearth lets its HTTP library's exceptions through
        raise NosyncError(
            f"the source archive {wish} cannot be fetched: {error}", "no network, or the index is down", "make apply, later"
        ) from None
    raise NosyncError(
        f"the index has no source archive of {wish}",
        "a mirror that carries wheels only, or an index that cannot be reached",
        "set PIP_INDEX_URL to an index that has it, then: make apply",
    )


def _finder(kind: type[PackageFinder], package: str) -> PackageFinder:
    """A finder over the user's indexes: uv's variables, else what pip would use (its variables and files)."""
    pip = _pip_settings()
    main = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or "".join(pip.get("index-url", []))
    finder = kind(
        index_urls=[main] if main else [],  # none: unearth's own default
        trusted_hosts=pip.get("trusted-host", []),
        no_binary=[package],
        ignore_compatibility=True,
    )
    named = [entry.rpartition("=")[2] for entry in os.environ.get("UV_INDEX", "").split()]
    for url in named + os.environ.get("UV_EXTRA_INDEX_URL", "").split() + pip.get("extra-index-url", []):
        finder.add_index_url(url)
    return finder


def _pip_settings() -> dict[str, list[str]]:
    """``pip config list`` of whichever Python has pip; empty where none has."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return _parse_pip_config(done.stdout)
    return {}


def _parse_pip_config(text: str) -> dict[str, list[str]]:
    """``global.index-url='…'`` lines as a dict; ``:env:`` overrides, as in pip."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "download", "install", ":env:"):
            settings[key] = str(ast.literal_eval(value)).split()
    return settings


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
