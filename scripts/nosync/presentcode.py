"""Which committed results are of the present code: of the same patches, or of trees that are the same file for file."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nosync import figures
from nosync.layout import Layout
from nosync.measure.claims import ResultFile
from nosync.projects import Project
from nosync.series import cells, load_series

BASE, PATCHED = "base", "patched"


def result_files(layout: Layout, project: Project) -> list[ResultFile]:
    """A project's committed results, newest first, a workload each, with the series of its arms that changed since."""
    code_on = functools.cache(lambda base: figures.code_of(cells(project, load_series(layout.patches, project), base)))
    found, trees = [], []
    for path, body in figures.results(layout, project.name):
        if body.get("smoke") or "base" not in body:
            continue
        code = code_on(project.base(body["base"]))
        for own, arms in _parts(body):
            stale = _changed(code, body.get("measured", {}), arms)
            found.append(ResultFile(str(path.relative_to(layout.root)), body | {"figures": own}, stale))
            trees.append({(body["base"], arm, tree) for arm, tree in body["trees"].items() if arm in arms})
    return _of_known_trees(found, trees)


def _parts(body: dict[str, Any]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The figures of each workload and its arms, and those of none."""
    rest = dict(body["figures"])
    for workload in body["workloads"]:
        quantities = (name for kind in ("times", "counts", "values") for name in workload.get(kind, ()))
        names = [f"{body['suite']}.{name}" for name in (workload["name"], *quantities)]
        own = {
            key: text for key, text in rest.items() if any(key == name or key.startswith(f"{name}.") for name in names)
        }
        rest = {key: text for key, text in rest.items() if key not in own}
        yield own, workload.get("arms", [BASE, PATCHED])
    yield rest, [BASE, PATCHED]


def _changed(code: dict[str, str], measured: dict[str, str], arms: list[str]) -> tuple[str, ...]:
    """The series in the arms' trees, in order, whose code is not what was measured; an arm ends with its series."""
    order = [BASE, *(key.partition("@")[0] for key in code)]
    length = max(order.index(arm) if arm in order else len(code) for arm in arms)
    changed = [
        key for key, digest in list(code.items())[:length] if not measured or measured.get(key, digest) != digest
    ]
    return tuple(key.partition("@")[0] for key in changed)


def _of_known_trees(found: list[ResultFile], trees: list[set[tuple[str, str, str]]]) -> list[ResultFile]:
    """A result whose trees are, file for file, those of one of the present code is of the present code too."""
    known = set().union(*(each for file, each in zip(found, trees, strict=True) if not file.stale))
    return [
        replace(file, stale=()) if each and each <= known else file for file, each in zip(found, trees, strict=True)
    ]
