"""Of which patches the trees are that a bench runs on: noted where they are made, looked up where they were carried to.

``build/bench/trees.json``, by ``<project>@<base>``: the digest of each arm's package, and the code that was measured.
A tree that is not in it, or was changed since, is of unknown code: its numbers count for no series.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nosync import wholefile
from nosync.errors import NosyncError
from nosync.layout import Layout
from nosync.measure.bench import files_digest
from nosync.projects import Base, Project

Code = dict[str, str]
"""``<series>@<base>`` to the digest of the series' code, as in `nosync.figures`."""


def note(layout: Layout, project: Project, base: Base, roots: Mapping[str, Path], code: Code) -> None:
    """Write down that these source roots, just made, are of this code."""
    digests = {arm: digest(root, project) for arm, root in roots.items()}
    file = _file(layout)
    file.parent.mkdir(parents=True, exist_ok=True)
    noted = _read(file) | {_key(project, base): {"trees": digests, "measured": code}}
    wholefile.write(file, (json.dumps(noted, indent=1) + "\n").encode())


def look_up(layout: Layout, project: Project, base: Base, roots: Mapping[str, Path]) -> Code:
    """The code of these source roots; nothing where one of them is not known."""
    noted = _read(_file(layout)).get(_key(project, base), {"trees": {}, "measured": {}})
    known = all(noted["trees"].get(arm) == digest(root, project) for arm, root in roots.items())
    return noted["measured"] if known else {}


def digest(source_root: Path, project: Project) -> str:
    """Of the Python files of the project's package, or of all where it is a module; the rest need not be carried."""
    package = project.package(source_root)
    return files_digest(package if package.is_dir() else source_root)


def _file(layout: Layout) -> Path:
    return layout.build / "bench" / "trees.json"


def _key(project: Project, base: Base) -> str:
    return f"{project.name}@{base.id}"


def _read(file: Path) -> dict[str, dict[str, Code]]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise NosyncError(f"{file} is not JSON: {error}", "it was edited", f"rm {file}") from None
