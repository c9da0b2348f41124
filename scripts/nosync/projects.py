"""The four projects and their bases, read from ``upstream/projects.toml``."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync import tomlfile
from nosync.errors import NosyncError
from nosync.tomlfile import FieldError, field, strings


@dataclass(frozen=True)
class Archive:
    """A release's source archive: package name, version and the sha256 of its bytes (hex)."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Base:
    """One upstream version that patches are written for.

    ``commit`` is the full upstream commit, or empty when it is not known; ``archive`` is None for a version that
    is in no release. ``archive_differs`` are the files that the release does not have as the commit has them.
    """

    id: str
    commit: str
    archive: Archive | None
    pinned: bool
    archive_differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exclusion:
    """Own tests that are not run, and why."""

    tests: str
    reason: str


@dataclass(frozen=True)
class OwnTests:
    """How an upstream project's own tests run on our trees.

    Args:
        cpu, gpu: pytest arguments (paths and node ids relative to ``folder``), per kind of machine.
        folder: Where pytest runs, relative to the tree.
        pythonpath: Folders of the tree that go on PYTHONPATH beside the source root.
        environment: Variables set for every run; ``cpu_environment`` adds those of a machine without a GPU.
        exclude: What the selection leaves out, with the reason; node ids here are deselected.
        minutes: After so long the run counts as hung.
    """

    cpu: tuple[str, ...]
    gpu: tuple[str, ...]
    folder: str
    pythonpath: tuple[str, ...]
    environment: dict[str, str]
    cpu_environment: dict[str, str]
    exclude: tuple[Exclusion, ...]
    minutes: int


@dataclass(frozen=True)
class Project:
    """One upstream project.

    Args:
        name: The word used everywhere, e.g. ``torch-sim``.
        url: The address of its repository.
        licence: SPDX id; the patches are under it too.
        import_name: The package that its source root provides.
        source_root: The folder of a tree that goes on PYTHONPATH.
        paths: What a git source brings; everything else of the repository stays away.
        not_in_archive: Path prefixes that a release archive lacks by nature.
        bases: Oldest first.
    """

    name: str
    url: str
    licence: str
    import_name: str
    source_root: str
    paths: tuple[str, ...]
    not_in_archive: tuple[str, ...]
    bases: tuple[Base, ...]
    own_tests: OwnTests
    extra: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def package(self, source_root: Path) -> Path:
        """Where its package lies in a source root: a folder, or a module's file without the suffix."""
        return source_root.joinpath(*self.import_name.split("."))

    @property
    def pinned(self) -> Base:
        return next(base for base in self.bases if base.pinned)

    @property
    def latest(self) -> Base:
        return self.bases[-1]

    def base(self, word: str) -> Base:
        """The base called ``pinned``, ``latest`` or by its id."""
        if word == "pinned":
            return self.pinned
        if word == "latest":
            return self.latest
        for base in self.bases:
            if base.id == word:
                return base
        known = ", ".join(base.id for base in self.bases)
        raise NosyncError(
            f"{self.name} has no base {word!r}; it has {known}",
            "a mistyped release, or one that no patches are written for yet",
            f"make apply P={self.name} BASE=pinned\nmake apply P={self.name} BASE={self.latest.id}",
        )


def load_projects(file: Path) -> dict[str, Project]:
    """All projects by name, in the order of the file.

    Raises:
        NosyncError: the file is missing, is not TOML, or lacks a field.
    """
    way_out = f"git diff {file.parent.name}/{file.name}"
    try:
        table = tomlfile.load(file, way_out)
    except FileNotFoundError:
        raise NosyncError(
            f"{file} is missing", "not run from a checkout of the monorepo", "cd to the checkout"
        ) from None
    try:
        return {name: _project(name, tomlfile.field(table, name, dict)) for name in table}
    except ValueError as error:
        raise NosyncError(f"{file}: {error}", "a slip while editing", way_out) from None


def choose(projects: dict[str, Project], name: str | None) -> list[Project]:
    """All projects, or the one named."""
    if not name:
        return list(projects.values())
    if name not in projects:
        raise NosyncError(f"no project {name!r}", "a mistyped name", "one of: " + ", ".join(projects))
    return [projects[name]]


def _project(name: str, body: dict[str, Any]) -> Project:
    try:
        project = _read(name, body)
    except (FieldError, TypeError) as error:
        raise ValueError(f"[{name}]: {error}") from None
    if sum(base.pinned for base in project.bases) != 1:
        raise ValueError(f"[{name}] must have exactly one pinned base")
    for base in project.bases:
        if base.commit and not re.fullmatch(r"[0-9a-f]{40}", base.commit):
            raise ValueError(f"[{name}] base {base.id}: {base.commit!r} is not a full commit id")
    return project


_KNOWN = {"url", "licence", "import", "source_root", "paths", "not_in_archive", "bases", "own_tests"}


def _read(name: str, body: dict[str, Any]) -> Project:
    return Project(
        name=name,
        url=field(body, "url", str),
        licence=field(body, "licence", str),
        import_name=field(body, "import", str),
        source_root=field(body, "source_root", str),
        paths=strings(body, "paths"),
        not_in_archive=strings(body, "not_in_archive", ()),
        bases=tuple(_base(entry) for entry in tomlfile.tables(body, "bases")),
        own_tests=_own_tests(field(body, "own_tests", dict, {})),
        extra={key: body[key] for key in body.keys() - _KNOWN},
    )


def _base(entry: dict[str, Any]) -> Base:
    named = tomlfile.table_of_strings(entry, "archive")
    archive = Archive(**named) if named else None
    commit, pinned = field(entry, "commit", str, ""), field(entry, "pinned", bool, False)
    return Base(field(entry, "id", str), commit, archive, pinned, strings(entry, "archive_differs", ()))


def _own_tests(body: dict[str, Any]) -> OwnTests:
    return OwnTests(
        cpu=strings(body, "cpu", ()),
        gpu=strings(body, "gpu", ()),
        folder=field(body, "folder", str, "."),
        pythonpath=strings(body, "pythonpath", ()),
        environment=tomlfile.table_of_strings(body, "environment"),
        cpu_environment=tomlfile.table_of_strings(body, "cpu_environment"),
        exclude=tuple(Exclusion(**entry) for entry in tomlfile.tables(body, "exclude", [])),
        minutes=field(body, "minutes", int, 30),
    )
