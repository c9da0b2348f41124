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
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from nosync import scratch
from nosync.errors import NosyncError, Unreachable
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Archive
from nosync.sources import unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unearth import Package, PackageFinder


_OTHER_INDEX = "set PIP_INDEX_URL to an index that has it"


def fill(layout: Layout, archive: Archive, repo: Repo) -> None:
    """Unpack the archive into a fresh repository and add every file of it to the index."""
    file = download(layout, archive)
    folder = scratch.fresh_folder(layout, "archive")
    try:
        for entry in unpack(file, folder).iterdir():
            shutil.move(entry, repo.path / entry.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # -f: a file that upstream's own .gitignore names is still part of the archive
    repo.git("add", "-A", "-f", ".")


def download(layout: Layout, archive: Archive, ask_again: bool = False) -> Path:
    """The archive's file, from the cache or the index; its bytes have the sha256 asked for.

    Args:
        ask_again: Ask the index even where it gave no answer a moment ago.

    Raises:
        Unreachable: it cannot be found or fetched.
        NosyncError: its bytes are others.
    """
    folder = layout.downloads / archive.sha256
    for cached in folder.glob("*.tar.gz"):
        if _sha256(cached) == archive.sha256:
            return cached
        cached.unlink()  # a cut-off or damaged copy; the index has the whole one
    if known := "" if ask_again else unreachable.remembered(layout, archive.sha256):
        raise Unreachable(known)
    place = scratch.fresh_folder(layout, "download")
    try:
        file = _fetch(archive, place)
        _check(file, archive)
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(file, folder / file.name)
    except Unreachable as error:
        unreachable.remember(layout, archive.sha256, error.seen)
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
    unreachable.forget(layout, archive.sha256)
    return folder / file.name


def _check(file: Path, archive: Archive) -> None:
    seen = _sha256(file)
    if seen != archive.sha256:
        raise NosyncError(
            f"{file.name} has sha256 {seen}, expected {archive.sha256}",
            "a cut-off download, a proxy that changed it, another file on the index, or a slip in projects.toml",
            "compare both with the release's page; nothing was unpacked",
        )


def newest(package: str) -> Archive:
    """The newest release of a package that has a source archive, as the user's index lists it."""
    for found in _ask(package, package, package):
        return found
    raise NosyncError(
        f"the index lists no source archive of {package}", "no network, or a mirror of wheels only", _OTHER_INDEX
    )


def release(package: str, version: str) -> Archive | None:
    """That release's source archive as the user's index lists it, or None where it lists none with a hash."""
    return next(_ask(package, f"{package}=={version}", f"{package} {version}", any_of_it=True), None)


def _ask(package: str, wish: str, name: str, any_of_it: bool | None = None) -> Iterator[Archive]:
    """What the user's index lists; ``any_of_it`` takes releases that were yanked or came before a release too."""
    from unearth import PackageFinder

    try:
        finder = _finder(PackageFinder, package)
        matches = list(finder.find_matches(wish, allow_yanked=any_of_it, allow_prereleases=any_of_it))
    except Exception as error:  # unearth lets its HTTP library's exceptions through
        raise Unreachable(
            f"the package index could not be asked for {name}: {error}",
            "no network, or an index's address is wrong",
            _OTHER_INDEX,
        ) from None
    return _listed(matches, package)


def _listed(matches: Iterable[Package], package: str) -> Iterator[Archive]:
    for found in matches:
        hashes = found.link.hashes or found.link.hash_option or {}  # JSON pages, HTML pages
        if found.link.filename.endswith(".tar.gz") and found.version and hashes.get("sha256"):
            digest = hashes["sha256"]  # a list or a string, by how the index states it
            yield Archive(package, found.version, digest if isinstance(digest, str) else digest[0])


def unpack(file: Path, into: Path) -> Path:
    """Unpack with tarfile's data filter; returns the single top folder.

    Raises:
        NosyncError: a member would land outside, is a device, or the archive is cut off or not one folder.
    """
    try:
        with tarfile.open(file, "r:gz") as tar:
            tar.extractall(into, filter=_strict)
            while tar.fileobj and tar.fileobj.read(1 << 20):  # to its very end, where gzip checks its sum
                pass
    except (tarfile.FilterError, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's refusal, not the archive's fault
        raise NosyncError(
            f"{file.name} cannot be unpacked safely: {error}",
            "a truncated archive, or one with unsafe members",
            f"rm -r {file.parent}\nmake apply",
        ) from None
    tops = list(into.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise NosyncError(
            f"{file.name} holds {len(tops)} entries at its top instead of one folder", "not a source archive"
        )
    return tops[0]


def _strict(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """The data filter, which refuses devices and what points outside, and beyond it absolute names and git folders."""
    if member.name.startswith(("/", os.sep)):
        raise tarfile.AbsolutePathError(member)
    if ".git" in (part.lower() for part in Path(member.name).parts):
        raise tarfile.OutsideDestinationError(member, f"{member.name}, inside a git folder")
    return tarfile.data_filter(member, path)


def _fetch(archive: Archive, folder: Path) -> Path:
    from unearth import PackageFinder  # imported here: it costs 0.2 s, and most runs find the file in the cache
    from unearth.errors import UnpackError

    wish = f"{archive.package}=={archive.version}"
    try:
        finder = _finder(PackageFinder, archive.package)
        for package in finder.find_matches(wish, allow_yanked=True, allow_prereleases=True):
            if package.link.filename.endswith(".tar.gz"):
                # its hash is checked by the caller, whose words for a wrong one are better
                package.link.hashes = None
                return finder.download(package.link, folder)
    except UnpackError as error:
        raise NosyncError(f"{wish}: {error}", "the index served another file than the one pinned") from None
    except Exception as error:  # unearth lets its HTTP library's exceptions through
        raise Unreachable(
            f"the source archive {wish} could not be fetched: {error}", "no network, or the index is down"
        ) from None
    raise Unreachable(
        f"the index has no source archive of {wish}",
        "a mirror that carries wheels only, or an index that cannot be reached",
        _OTHER_INDEX,
    )


def _finder(kind: type[PackageFinder], package: str) -> PackageFinder:
    """A finder over the user's indexes: uv's variables, else what pip would use (its variables and files)."""
    pip = _pip_settings()
    main = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or "".join(pip.get("index-url", []))
    finder = kind(
        index_urls=[main] if main else [],  # none: unearth's own default
        trusted_hosts=pip.get("trusted-host", []) + os.environ.get("UV_INSECURE_HOST", "").split(),
        no_binary=[package],
        ignore_compatibility=True,
    )
    named = [entry.rpartition("=")[2] for entry in os.environ.get("UV_INDEX", "").split()]
    for url in named + os.environ.get("UV_EXTRA_INDEX_URL", "").split() + pip.get("extra-index-url", []):
        finder.add_index_url(url)
    return finder


def _pip_settings() -> dict[str, list[str]]:
    """``pip config list`` of whichever Python has pip; pip's variables alone where none has."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return _parse_pip_config(done.stdout)
    names = {"index-url": "PIP_INDEX_URL", "extra-index-url": "PIP_EXTRA_INDEX_URL", "trusted-host": "PIP_TRUSTED_HOST"}
    return {key: os.environ[name].split() for key, name in names.items() if os.environ.get(name)}


def _parse_pip_config(text: str) -> dict[str, list[str]]:
    """``global.index-url='…'`` lines as a dict; a command's section overrides ``global``, a variable overrides both."""
    found: dict[str, dict[str, list[str]]] = {"global": {}, "install": {}, "download": {}, ":env:": {}}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value)).split()
    return {key: value for section in found.values() for key, value in section.items()}


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
