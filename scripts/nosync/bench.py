"""``bench``: a project's workloads on its base and patched trees, by one protocol (see `nosync.measure`).

Trees are made as ``apply`` does, or taken as given with ``--base-tree`` and ``--patched-tree``: on a GPU host that has
neither git nor a package index they are carried there as folders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nosync import building, figures, lock, provenance, scratch, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.measure import bench as measuring
from nosync.measure.options import typed
from nosync.measure.suite import Suite, SuiteError, load_suite
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report
from nosync.running import libraries_python
from nosync.series import cells, load_series

COLUMNS = ("workload", "state", "what", "base", "patched", "ratio", "verdict")
UNKNOWN = (
    "a tree was not made by this checkout, or was changed since (make bench-<project>; carry build/bench/trees.json)"
)


@dataclass(frozen=True)
class Asked:
    """Which workloads, how often, and where trees and results are; empty: made and put under build/."""

    only: Sequence[str] = ()
    runs: int = 0
    gpus: int = 0
    seconds: float = float("inf")
    smoke: bool = False
    base_tree: Path | None = None
    patched_tree: Path | None = None
    series_trees: Sequence[str] = ()
    out: Path | None = None


def bench(layout: Layout, name: str, base_word: str, asked: Asked) -> Report:
    """Run ``tests/<project>/bench/bench.toml``; results go to ``build/results/bench/<project>/``."""
    (project,) = choose(load_projects(layout.projects_file), name)
    base = project.base(base_word)
    suite = _suite(layout, project)
    given = _given(asked)
    folders = given or _made(layout, project, base, suite)
    roots = {arm: _source_root(folder, project) for arm, folder in folders.items()}
    if given:
        code = provenance.look_up(layout, project, base, roots)
    else:
        series = cells(project, load_series(layout.patches, project), base)
        code = figures.code_of(series)
        provenance.note(layout, project, base, roots, code)
    request = measuring.Request(
        suite=suite,
        base=base.id,
        trees=roots,
        python=libraries_python("torch") if "NOSYNC_PYTHON" in os.environ else sys.executable,
        out=(asked.out or layout.results / "bench" / project.name).resolve(),
        only=asked.only,
        runs=asked.runs,
        gpus=asked.gpus,
        seconds=asked.seconds,
        path=(layout.root / "scripts", layout.root / "tests"),
        smoke=asked.smoke,
        measured=code,
        command=typed(["python", "-m", "nosync", *sys.argv[1:]], given | ({"out": asked.out} if asked.out else {})),
    )
    try:
        file, body = measuring.bench(request)
    except SuiteError as error:
        raise NosyncError(str(error), "a workload's name is misspelt, or bench.toml is wrong") from None
    return _report(file, body)


def tree_of_series(layout: Layout, project: Project, base: Base, series: str) -> Path:
    """``build/bench/<project>@<base>+<series>``: the patched tree as it is after that series, made anew."""
    tree = Repo(layout.tree("patched", project.name, base.id))
    record = trees.read_record(tree)
    states = record.patches if record else []
    names = [state.series for state in states]
    if series not in names:
        raise NosyncError(f"{project.name} {base.id} has no series {series}", "an arm in bench.toml names it")
    upto = [state.commit for state in states[: len(names) - names[::-1].index(series)] if state.commit]
    final = layout.build / "bench" / f"{project.name}@{base.id}+{series}"
    repo = Repo.create(scratch.fresh(layout, f"bench-{project.name}"))
    trees.fetch(repo, tree.path, upto[-1], "refs/heads/series")
    repo.git("checkout", "-q", "--detach", "refs/heads/series")
    trees.recover(final, layout)
    trees.move_into_place(repo.path, final, layout)
    return final


def _suite(layout: Layout, project: Project) -> Suite:
    try:
        return load_suite(layout.root / "tests" / project.name / "bench" / "bench.toml")
    except SuiteError as error:
        raise NosyncError(str(error), "bench.toml says what is measured; see nosync.measure.suite") from None


def _given(asked: Asked) -> dict[str, Path]:
    """The trees named on the command line."""
    if (asked.base_tree is None) != (asked.patched_tree is None):
        raise NosyncError("only one of --base-tree and --patched-tree was given", "", "give both, or neither")
    if asked.base_tree is None or asked.patched_tree is None:
        return {}
    named = dict(each.split("=", 1) for each in asked.series_trees)
    return {"base": asked.base_tree, "patched": asked.patched_tree} | {arm: Path(path) for arm, path in named.items()}


def _made(layout: Layout, project: Project, base: Base, suite: Suite) -> dict[str, Path]:
    """Both trees and those of the series that an arm names, built where needed."""
    with lock.exclusive(layout.build / "lock", f"bench {project.name}"):
        built = building.build(layout, project, base)
        if built.failed:
            raise NosyncError(f"{project.name} {base.id}: not every patch applies", "", f"make apply P={project.name}")
        found = {kind: layout.tree(kind, project.name, base.id) for kind in ("base", "patched")}
        series = {arm for workload in suite.workloads for arm in workload.arms} - found.keys()
        return found | {arm: tree_of_series(layout, project, base, arm) for arm in sorted(series)}


def _source_root(folder: Path, project: Project) -> Path:
    """The tree's source root; a folder that is no tree but a source root itself is taken as it is."""
    inside = folder / project.source_root
    root = (inside if inside.is_dir() else folder).resolve()
    package = project.package(root)
    if not (package.is_dir() or package.with_suffix(".py").is_file()):
        raise NosyncError(
            f"{folder}: there is no {project.import_name} in it, nor in its {project.source_root}/",
            "it is neither a tree of the project nor the source root of one",
        )
    return root


def _report(file: Path, body: dict) -> Report:  # type: ignore[type-arg]
    report = Report(f"bench {body['suite']} {body['base']}", COLUMNS)
    for workload in body["workloads"]:
        name, state = workload["name"], workload["state"]
        if state != "measured":
            report.add(state in ("unavailable", "not run"), workload=name, state=state, what=workload["reason"])
        for what, each in workload["times"].items():
            shown = {arm: f"{each[arm]['mean']:.4g} ms" for arm in ("base", "patched")}
            report.add(workload=name, what=what, ratio=f"{each['ratio']:.3f}", verdict=each["verdict"], **shown)
        for what, (base, patched) in workload["counts"].items():
            report.add(workload=name, what=what, base=base, patched=patched)
        for what, (value, unit) in workload["values"].items():
            report.add(workload=name, what=what, patched=f"{value:.4g} {unit}")
        if outcome := workload.get("equivalence"):
            word = "equivalent" if outcome["equivalent"] else f"{len(outcome['exceedances'])} exceedances"
            report.add(outcome["equivalent"], workload=name, what="values", verdict=word)
    if not body["measured"]:
        report.note(f"the numbers count for no series: {UNKNOWN}")
    report.note(f"written: {file}, .md and .svg; commit the JSON under results/{body['suite']}/ to publish it")
    return report
