"""Choosing a base's source, and filling a fresh repository with the base's files."""

from __future__ import annotations

from dataclasses import dataclass

from nosync.errors import NosyncError, Unreachable
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Base, Project
from nosync.report import progress
from nosync.sources import archive, submodule


@dataclass(frozen=True)
class Source:
    """What a base can be made from now.

    Args:
        kind: ``git`` or ``archive``.
        reason: Why it is not git, where it is not.
    """

    project: Project
    base: Base
    kind: str
    reason: str = ""

    @property
    def absent(self) -> tuple[str, ...]:
        """Path prefixes that this source lacks by nature."""
        return self.project.not_in_archive if self.kind == "archive" else ()

    @property
    def differs(self) -> tuple[str, ...]:
        """Files that this source is known to have in another form than the commit."""
        return self.base.archive_differs if self.kind == "archive" else ()

    @property
    def identity(self) -> str:
        """Names the files it gives: the same identity, the same files."""
        if self.kind == "git":
            return f"git {self.base.commit} {' '.join(self.project.paths)}"
        assert self.base.archive is not None
        other = f", other {' '.join(self.differs)}" if self.differs else ""
        return f"archive {self.base.archive.sha256} without {' '.join(self.absent)}{other}"

    def fill(self, layout: Layout, repo: Repo) -> None:
        """Put the base's files into the index and the folder of a fresh repository."""
        if self.kind == "git":
            submodule.fill(layout.submodule(self.project.name), self.base.commit, self.project.paths, repo)
        else:
            assert self.base.archive is not None
            archive.fill(layout, self.base.archive, repo)


def obtain(layout: Layout, project: Project, base: Base, wanted: str = "", ask_again: bool = False) -> Source:
    """The best source of a base that can be reached now; git is tried first.

    Args:
        wanted: ``git`` or ``archive`` to take no other.
        ask_again: Ask the network even where it gave no answer a moment ago.

    Raises:
        Unreachable: neither can be reached.
    """
    if wanted not in ("", "git", "archive"):
        raise NosyncError(f"no source {wanted!r}", "", "SOURCE=git or SOURCE=archive")
    reason = "SOURCE=archive was asked for" if wanted == "archive" else _why_not_git(layout, project, base, ask_again)
    if not reason:
        return Source(project, base, "git")
    if wanted == "git" or base.archive is None:
        none = "" if base.archive else ", and no archive of it exists"
        raise _cannot_be_had(
            project, base, reason + none, f"git config --global url.<mirror>.insteadOf {project.url}\n"
        )
    try:
        archive.download(layout, base.archive, ask_again)
    except Unreachable as error:
        raise _cannot_be_had(project, base, f"{reason}; {error.seen}", error.way_out and error.way_out + "\n") from None
    if wanted != "archive":
        progress(f"{project.name} {base.id}: source archive, since {reason}")
    return Source(project, base, "archive", reason)


def _cannot_be_had(project: Project, base: Base, reason: str, way_out: str) -> Unreachable:
    again = f"make apply P={project.name} BASE={base.id}      # asks the network again"
    cause = "no network, where no other reason is named"
    return Unreachable(f"{project.name} {base.id} cannot be had: {reason}", cause, way_out + again)


def _why_not_git(layout: Layout, project: Project, base: Base, ask_again: bool) -> str:
    """Empty when the git source has the base's files."""
    if not base.commit:
        return f"the commit of {base.id} is not known"
    return submodule.make_ready(layout, project, base.commit, ask_again)
