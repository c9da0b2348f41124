"""Turning a patched tree into a wheel: upstream's own build back end, upstream's metadata, a local version."""

from __future__ import annotations

import base64
import email.parser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from email.message import Message
from pathlib import Path
from typing import Any

from nosync import scratch, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Base, Project

# What else a wheel's metadata says is its form and its text.
_COMPARED = ("Name", "Summary", "Requires-Python", "Requires-Dist", "Provides-Extra")


def table(project: Project) -> dict[str, Any]:
    """The project's ``[<project>.wheel]``; ``none`` in it says why there is no wheel."""
    found: dict[str, Any] = project.extra.get("wheel", {"none": "no [wheel] in projects.toml"})
    return found


def upstream_version(base: Base) -> str:
    return base.archive.version if base.archive else base.id


def local_version(project: Project, base: Base) -> str:
    """E.g. ``2.22.0+nosync.1``."""
    return f"{upstream_version(base)}+nosync.{table(project).get('revision', 1)}"


def build(layout: Layout, project: Project, base: Base, into: Path) -> Path:
    """Build the patched tree's wheel and return its file.

    Raises:
        NosyncError: the tree lacks what building needs, or the back end refused.
    """
    tree = Repo(layout.tree("patched", project.name, base.id))
    copy = _copy(tree, scratch.fresh(layout, f"wheel-{project.name}"))
    out = scratch.fresh_folder(layout, f"wheel-out-{project.name}")
    try:
        folder = copy / table(project).get("folder", ".")
        folder = folder if (folder / "pyproject.toml").is_file() else copy
        _mend_readme(copy)
        _run_back_end(project, folder, out, _environment(project, base, tree))
        (made,) = out.glob("*.whl")
        relabelled = relabel(made, upstream_version(base), local_version(project, base))
        into.mkdir(parents=True, exist_ok=True)
        os.replace(relabelled, into / relabelled.name)
        return into / relabelled.name
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)


def _copy(tree: Repo, folder: Path) -> Path:
    """The tree's files in a repository of their own: back ends take what git lists.

    Liger's does so with folders that are no package, ``ops/experimental``.
    """
    copy = Repo.create(folder)
    trees.fetch(copy, tree.path, "HEAD", "refs/nosync/wheel")
    copy.git("reset", "-q", "--hard", "refs/nosync/wheel")
    return folder


def _mend_readme(copy: Path) -> None:
    """Give a link to a README that is not in the source archive its text, which the archive's PKG-INFO has."""
    info = copy / "PKG-INFO"
    for link in copy.rglob("README*") if info.is_file() else ():
        if link.is_symlink() and not link.exists():
            text = email.parser.Parser().parsestr(info.read_text(encoding="utf-8")).get_payload()
            link.unlink()
            link.write_text(str(text), encoding="utf-8")


def _environment(project: Project, base: Base, tree: Repo) -> dict[str, str]:
    dropped = ("GIT_", "SETUPTOOLS_SCM_", "PIP_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    # uv_build looks for its program on the path
    env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    env["SOURCE_DATE_EPOCH"] = tree.git("log", "-1", "--format=%at").strip()
    if table(project).get("version") == "scm":
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = upstream_version(base)
    return env


def relabel(wheel: Path, old: str, new: str) -> Path:
    """The same wheel under another version, beside the first: names, METADATA's one line and RECORD, nothing else.

    The version is not set before building: a back end may use it elsewhere, as Liger does for one of its extras.

    Raises:
        NosyncError: the wheel's version is not ``old``.
    """
    with zipfile.ZipFile(wheel) as file:
        members = {info.filename: (info, file.read(info)) for info in file.infolist()}
    record = next(name for name in members if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("/RECORD")
    text = members[f"{folder}/METADATA"][1]
    edited = text.replace(f"\nVersion: {old}\n".encode(), f"\nVersion: {new}\n".encode(), 1)
    if edited == text or not folder.endswith(f"-{old}.dist-info"):
        raise NosyncError(
            f"{wheel.name} is not of version {old}", "the tree's own version is another than the base's id"
        )
    new_folder = folder.removesuffix(f"{old}.dist-info") + f"{new}.dist-info"
    members[f"{folder}/METADATA"] = (members[f"{folder}/METADATA"][0], edited)
    members[record] = (members[record][0], _record(members[record][1], folder, new_folder, edited))
    out = wheel.with_name(wheel.name.replace(f"-{old}-", f"-{new}-", 1))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for info, data in members.values():
            info.filename = re.sub(rf"^{re.escape(folder)}/", f"{new_folder}/", info.filename)
            file.writestr(info, data)
    return out


def _record(data: bytes, folder: str, new_folder: str, metadata_file: bytes) -> bytes:
    """RECORD with the folder's new name and METADATA's new digest."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(metadata_file).digest()).rstrip(b"=").decode()
    lines = []
    for line in data.decode().splitlines():
        if line.startswith(f"{folder}/METADATA,"):
            line = f"{folder}/METADATA,sha256={digest},{len(metadata_file)}"
        lines.append(re.sub(rf"^{re.escape(folder)}/", f"{new_folder}/", line))
    return ("\n".join(lines) + "\n").encode()


def _run_back_end(project: Project, folder: Path, out: Path, env: dict[str, str]) -> None:
    # no isolation: the back ends are in this environment, hash-locked, and nothing is fetched while building
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(folder)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NosyncError(
            f"the wheel of {project.name} could not be built",
            "a back end that requirements/wheels.in lacks, or a file that the source lacks",
            "make wheels, which installs requirements/wheels.txt",
            (done.stdout + done.stderr)[-1500:],
        )


# ---- metadata ----


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(file.read(name).decode())


def archive_metadata(archive: Path) -> Message:
    """PKG-INFO of a source archive."""
    with tarfile.open(archive) as tar:
        member = next(member for member in tar if re.fullmatch(r"[^/]+/PKG-INFO", member.name))
        handle = tar.extractfile(member)
        assert handle is not None
        return email.parser.Parser().parsestr(handle.read().decode())


def differences(ours: Message, upstreams: Message) -> list[str]:
    """Fields that say something else than upstream's; spelling of names and requirements apart."""
    found = []
    for field in _COMPARED:
        one, other = (Counter(_plain(value) for value in message.get_all(field, [])) for message in (ours, upstreams))
        if one != other:
            mine, theirs = (", ".join(sorted(part.elements())) or "-" for part in (one - other, other - one))
            found.append(f"{field}: {mine} for {theirs}")
    return found


def _plain(value: str) -> str:
    return re.sub(r"[\s_.-]+", "-", value).replace("'", '"').lower()
