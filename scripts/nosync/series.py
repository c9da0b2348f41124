"""The series of a project, read from ``patches/<project>/<series>/``."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from nosync import tomlfile
from nosync.errors import NosyncError
from nosync.patchfile import PatchText, parse
from nosync.projects import Base, Project
from nosync.tomlfile import FieldError, field

STATUSES = ("draft", "open", "merged", "closed")


@dataclass(frozen=True)
class Patch:
    """One patch file."""

    file: Path

    def text(self) -> PatchText:
        return parse(self.file.read_bytes())


@dataclass(frozen=True)
class Series:
    """The ordered patches of one upstream pull request.

    Args:
        folder: ``patches/<project>/<name>``.
        order: Position on the tree; lower lies below.
        depends: Series of the same project that must lie below.
        status: What upstream has done with it: draft, open, merged or closed.
    """

    project: str
    name: str
    folder: Path
    title: str
    pull_request: str
    status: str
    merged_as: str
    order: int
    depends: tuple[str, ...]
    sign_off: bool
    upstream: bool

    def own_folder(self, base: Base) -> Path:
        return self.folder / base.id


@dataclass(frozen=True)
class Cell:
    """A series on a base: its patches there.

    Args:
        written_for: The base whose folder the patches come from; None when no base at or before has one.
    """

    series: Series
    base: Base
    written_for: Base | None
    patches: tuple[Patch, ...]

    @property
    def inherited(self) -> bool:
        """Are the patches another base's, to be applied with a three-way merge?"""
        return self.written_for is not None and self.written_for.id != self.base.id


def load_series(patches: Path, project: Project) -> list[Series]:
    """A project's series, lowest first.

    Raises:
        NosyncError: a ``series.toml`` is missing, wrong, or contradicts the order of its dependencies.
    """
    folder = patches / project.name
    found = [_load(project, path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    found.sort(key=lambda series: (series.order, series.name))
    _check_dependencies(found)
    return found


def cells(project: Project, all_series: list[Series], base: Base) -> list[Cell]:
    """Every series on one base, lowest first."""
    return [cell(project, series, base) for series in all_series]


def cell(project: Project, series: Series, base: Base) -> Cell:
    """The series' own patches for the base, else those of the newest earlier base that has some."""
    return newest(series, base, project.bases[: project.bases.index(base) + 1])


def newest(series: Series, base: Base, candidates: tuple[Base, ...]) -> Cell:
    """The series on a base, with the patches of the last of the candidates that has some."""
    for candidate in reversed(candidates):
        folder = series.own_folder(candidate)
        if folder.is_dir():
            return Cell(series, base, candidate, tuple(Patch(file) for file in sorted(folder.glob("*.patch"))))
    return Cell(series, base, None, ())


def digest(cells_of_base: list[Cell]) -> str:
    """A fingerprint of every byte that the patched tree is made of, beside its base."""
    total = hashlib.sha256()
    for item in cells_of_base:
        written_for = item.written_for.id if item.written_for else "-"
        total.update(os.fsencode(f"{item.series.name}\0{written_for}\0"))
        for patch in item.patches:
            total.update(os.fsencode(patch.file.name) + b"\0" + hashlib.sha256(patch.file.read_bytes()).digest())
    return total.hexdigest()


def _load(project: Project, folder: Path) -> Series:
    file = folder / "series.toml"
    try:
        body = tomlfile.load(file, f"git diff {file.relative_to(folder.parents[2])}")
        series = Series(
            project=project.name,
            name=folder.name,
            folder=folder,
            title=field(body, "title", str),
            pull_request=field(body, "pull_request", str, ""),
            status=field(body, "status", str),
            merged_as=field(body, "merged_as", str, ""),
            order=field(body, "order", int),
            depends=tomlfile.strings(body, "depends", ()),
            sign_off=field(body, "sign_off", bool, False),
            upstream=field(body, "upstream", bool, True),
        )
    except FileNotFoundError:
        raise NosyncError(f"{folder} has no series.toml", "a new series without its description", "") from None
    except FieldError as error:
        raise NosyncError(f"{file}: {error}", "a field is missing or misspelt", "see README.md, 'A series'") from None
    if series.status not in STATUSES:
        raise NosyncError(f"{file}: status {series.status!r}", "", "one of: " + ", ".join(STATUSES))
    return series


def _check_dependencies(ordered: list[Series]) -> None:
    below: set[str] = set()
    for series in ordered:
        missing = [name for name in series.depends if name not in below]
        if missing:
            raise NosyncError(
                f"{series.project}/{series.name} depends on {', '.join(missing)}, which does not lie below it",
                "'order' or 'depends' in series.toml is wrong",
                f"edit {series.folder / 'series.toml'}",
            )
        below.add(series.name)
