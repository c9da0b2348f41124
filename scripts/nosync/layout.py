"""Where things lie: the repository's folders and what the tool makes under ``build/``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nosync.errors import NosyncError


@dataclass(frozen=True)
class Layout:
    """Paths of one checkout of the monorepo.

    Args:
        root: The folder that holds ``upstream/``, ``patches/`` and ``build/``.
    """

    root: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def projects_file(self) -> Path:
        return self.root / "upstream" / "projects.toml"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def downloads(self) -> Path:
        return self.build / "downloads"

    @property
    def scratch(self) -> Path:
        return self.build / "scratch"

    @property
    def results(self) -> Path:
        return self.build / "results"

    def submodule(self, project: str) -> Path:
        return self.root / "upstream" / project

    def tree(self, kind: str, project: str, base: str) -> Path:
        """``build/<kind>/<project>@<base>``; kind is ``base`` or ``patched``."""
        return self.build / kind / f"{project}@{base}"

    def test_results(self, project: str, base: str) -> Path:
        """What the last ``make test-<project>`` on that base said."""
        return self.results / "tests" / f"{project}@{base}.json"


def find_layout() -> Layout:
    """The checkout named by NOSYNC_ROOT, else the one this file lies in.

    Raises:
        NosyncError: its path cannot stand in PYTHONPATH, by which the trees are put in front.
    """
    named = os.environ.get("NOSYNC_ROOT")
    root = (Path(named) if named else Path(__file__).parents[2]).resolve()
    if os.pathsep in str(root):
        raise NosyncError(
            f"the checkout's path holds {os.pathsep!r}: {root}",
            "PYTHONPATH, which names the trees to Python, cannot hold such a path",
            "move the checkout to a folder without it",
        )
    return Layout(root)
