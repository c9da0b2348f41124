"""Where a rebase goes: a base that the project knows, a newer release, or a git ref of upstream."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from nosync.errors import NosyncError
from nosync.git import GitFailure, user_git
from nosync.layout import Layout
from nosync.projects import Base, Project
from nosync.report import progress
from nosync.series import Cell, Series, newest
from nosync.sources import archive, submodule

_ANSWER = 20.0  # seconds within which a host that is asked for a tag must answer


@dataclass(frozen=True)
class Target:
    """A base to take series to.

    Args:
        project: The project with the base among its bases, also where projects.toml does not have it yet.
        known: Does projects.toml have it?
    """

    project: Project
    base: Base
    known: bool

    @property
    def to(self) -> str:
        """What TO= takes for it: upstream's host gives a commit by its full id alone."""
        commit = self.base.commit
        return commit if not self.known and commit.startswith(self.base.id) else self.base.id


def find(layout: Layout, project: Project, word: str) -> Target:
    """The base that ``word`` names: a base's id, ``latest``, a release, a tag, a branch or a commit.

    Raises:
        NosyncError: it names nothing that can be reached.
    """
    if any(base.id == word for base in project.bases) or word in ("latest", "pinned"):
        return Target(project, project.base(word), True)
    base = _release(layout, project, word) or _ref(layout, project, word)
    same = next((known for known in project.bases if known.commit and known.commit == base.commit), None)
    return Target(project, same, True) if same else Target(with_base(project, base), base, False)


def with_base(project: Project, base: Base) -> Project:
    """The project with one base more, where its version puts it; without a version, last."""
    place = next((n for n, known in enumerate(project.bases) if _newer(known.id, base.id)), len(project.bases))
    return replace(project, bases=(*project.bases[:place], base, *project.bases[place:]))


def earlier_cell(target: Target, series: Series) -> Cell | None:
    """The series' patches of the newest base before the target that has some, to be taken to the target."""
    bases = target.project.bases
    found = newest(series, target.base, bases[: bases.index(target.base)])
    return found if found.written_for else None


def commit_of_release(layout: Layout, project: Project, version: str) -> str:
    """The commit that upstream tagged as this release, or an empty string where it cannot be told."""
    patterns = project.extra.get("upstreaming", {}).get("tags", ["v{version}", "{version}"])
    names = [f"refs/tags/{pattern.format(version=version)}" for pattern in patterns]
    asked = [part for name in names for part in (name, name + "^{}")]
    try:
        out = user_git(
            layout.root, "ls-remote", project.url, *asked, timeout_settings=True, anywhere=True, within=_ANSWER
        )
    except GitFailure:
        return ""
    found = {name: commit for commit, _, name in (line.partition("\t") for line in out.splitlines())}
    return next((found[name] for pair in names for name in (pair + "^{}", pair) if name in found), "")


def _release(layout: Layout, project: Project, word: str) -> Base | None:
    """The release ``word`` as the package index lists it, with its commit where upstream's tags can be asked."""
    packages = [base.archive.package for base in project.bases if base.archive]
    version = word.removeprefix("v")
    if not packages or not _is_version(version):
        return None
    found = archive.release(packages[-1], version)
    if found is None:
        return None
    progress(f"{project.name} {version}: {found.package} {found.version} on the package index")
    return Base(found.version, commit_of_release(layout, project, found.version), found, False)


def _ref(layout: Layout, project: Project, word: str) -> Base:
    """A tag, branch or commit of upstream; its id is the tag's version or the commit's first twelve digits."""
    folder = layout.submodule(project.name)
    reason = (
        submodule.make_ready(layout, project, project.pinned.commit) if project.pinned.commit else "no commit is pinned"
    )
    if not reason:
        try:
            submodule.fetch(folder, word)
            commit = user_git(folder, "rev-parse", "FETCH_HEAD^{commit}").strip()
        except GitFailure as failure:
            reason = failure.reason
        else:
            tag = re.fullmatch(r"v?(\d+(?:\.\d+)+\S*)", word)
            return Base(tag.group(1) if tag else commit[:12], commit, None, False)
    raise NosyncError(
        f"{project.name} has no base, no release and no git ref {word!r}",
        f"a mistyped name, or no network ({reason})",
        f"make rebase-{project.name} TO=<release>\nmake rebase-{project.name} TO=<tag, branch or full commit>",
    )


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return "." in text  # '2024' may as well be a branch


def _newer(known: str, asked: str) -> bool:
    return _is_version(known) and _is_version(asked) and Version(known) > Version(asked)
