"""``test``: rebuild a project's trees, check them, run upstream's own tests and ours.

Upstream's tests are judged against the base: what fails there too is listed as pre-existing, what passes there is a
regression of ours. Our tests run on the patched tree, and those that prove a removed wait run on the base tree as
well, where they must fail.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from nosync import building, lock, trees
from nosync.building import Built
from nosync.errors import NosyncError, Unreachable
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Base, Project, choose, load_projects
from nosync.report import Report, progress
from nosync.running import Run, has_gpu, libraries_python, run_pytest
from nosync.words import acceptable, summary

COLUMNS = ("project", "base", "source", "what", "result", "seconds", "detail")


@dataclass(frozen=True)
class Bench:
    """Where one project's tests run: the interpreter, the trees' paths, the variables that every run gets."""

    layout: Layout
    project: Project
    base: Base
    python: str
    gpu: bool
    strict: bool

    def tree(self, kind: str) -> Path:
        return self.layout.tree(kind, self.project.name, self.base.id)

    def source_root(self, kind: str) -> Path:
        return self.tree(kind) / self.project.source_root


def test(layout: Layout, name: str | None, base: str, source: str, strict: bool) -> Report:
    """Test one project or every one that can be reached, on one base or, with ``all``, on each."""
    report = Report("test", COLUMNS)
    python = libraries_python()
    gpu = has_gpu(python)
    for project in choose(load_projects(layout.projects_file), name):
        bases = project.bases if base == "all" else (project.base(base),)
        for each in bases:
            before = len(report.rows)
            _test_base(Bench(layout, project, each, python, gpu, strict), report, source)
            _save(layout, project, each, report.rows[before:])
    return report


def _test_base(bench: Bench, report: Report, source: str) -> None:
    try:
        with lock.exclusive(bench.layout.build / "lock", f"test {bench.project.name}"):
            built = building.build(bench.layout, bench.project, bench.base, wanted_source=source, leave=True)
    except Unreachable as error:
        _row(bench, report, "-", "trees", "not reachable", ok=not bench.strict, detail=error.seen)
        _our_tests_without_tree(bench, report)
        return
    if not _check_trees(bench, report, built):
        return
    _own_tests(bench, report, built)
    _our_tests(bench, report, built)


def _row(bench: Bench, report: Report, source: str, what: str, result: str, ok: bool = True, **more: object) -> None:
    report.add(ok, project=bench.project.name, base=bench.base.id, source=source, what=what, result=result, **more)


# ---- the trees ------------------------------------------------------------------------------------------------------


def _check_trees(bench: Bench, report: Report, built: Built) -> bool:
    """Every patch on the tree, one commit each; returns whether testing the tree makes sense."""
    wrong = []
    for cell in built.cells:
        states = [state for state in built.states if state.series == cell.series.name]
        word, detail = summary(states, len(cell.patches))
        if cell.written_for is not None and not acceptable(word, cell.inherited):
            wrong.append(f"{cell.series.name}: {word} ({detail})")
    made = len(trees.commits(Repo(bench.tree("patched")))) if not built.failed else 0
    expected = sum(bool(state.commit) for state in built.states)
    if not built.local_work and not built.failed and made != expected:
        wrong.append(f"{made} commits for {expected} patches")
    result = "wrong" if wrong else "applied"
    detail = "; ".join(wrong) or (
        f"with local work: {'; '.join(built.local_work)}" if built.local_work else f"{made} commits"
    )
    _row(bench, report, built.source.kind, "trees", result, ok=not wrong, detail=detail)
    return not built.failed


# ---- upstream's own tests -------------------------------------------------------------------------------------------


def _own_tests(bench: Bench, report: Report, built: Built) -> None:
    own = bench.project.own_tests
    selection = own.gpu if bench.gpu and own.gpu else own.cpu
    what = "own tests (GPU)" if bench.gpu and own.gpu else "own tests (CPU)"
    if not selection:
        _row(bench, report, built.source.kind, what, "none selected", detail="see own_tests in upstream/projects.toml")
        return
    folders, said = {"patched": bench.tree("patched"), "base": bench.tree("base")}, ""
    if any(path.startswith(built.source.absent) for path in selection) if built.source.absent else False:
        borrowed = _pinned_tests(bench, selection)
        if borrowed is None:
            _row(
                bench,
                report,
                built.source.kind,
                what,
                "not in the archive",
                ok=not bench.strict,
                detail=", ".join(built.source.absent),
            )
            return
        folders, said = {"patched": borrowed, "base": borrowed}, f"the tests of {bench.project.pinned.id}, from git; "
    selection, gone = _split_present(selection, folders["patched"] / own.folder)
    if gone:
        report.note(f"{bench.project.name} {bench.base.id}, {what}: not in this base: {', '.join(gone)}")
    run = _run_own(bench, selection, folders["patched"], "patched")
    verdict = _judge(bench, run, folders["base"])
    for line in run.skip_reasons() + verdict.lines:
        report.note(f"{bench.project.name} {bench.base.id}, {what}: {line}")
    _row(
        bench, report, built.source.kind, what, run.broken or run.counts(), ok=verdict.sound,
        seconds=round(run.seconds), detail=said + verdict.text,
    )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What a run of own tests says about our patches."""

    sound: bool
    text: str
    lines: list[str]


def _judge(bench: Bench, run: Run, base_folder: Path) -> Verdict:
    """Re-run the failures on the base tree: failing there too is pre-existing, passing there is our regression."""
    if run.broken:
        return Verdict(False, "the run broke off", [])
    if not run.outcomes:
        return Verdict(False, "the selection matched no test", [])
    if not run.bad:
        return Verdict(True, "no failure", [])
    progress(f"{bench.project.name} {bench.base.id}: re-running {len(run.bad)} failures on the base tree")
    again = _run_own(bench, tuple(run.bad), base_folder, "base", deselect=False)
    regressions = [test for test in run.bad if again.outcomes.get(test) not in ("failed", "error")]
    lines = [f"regression: {test}: {run.reasons[test]}" for test in regressions]
    lines += [f"pre-existing: {test}: {run.reasons[test]}" for test in run.bad if test not in regressions]
    text = f"{len(regressions)} regressions, {len(run.bad) - len(regressions)} pre-existing failures"
    return Verdict(not regressions, text, lines)


def _run_own(bench: Bench, selection: tuple[str, ...], folder: Path, kind: str, deselect: bool = True) -> Run:
    own = bench.project.own_tests
    path = [
        bench.source_root(kind),
        *(bench.tree(kind) / extra for extra in own.pythonpath),
        bench.layout.root / "scripts",
    ]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path))} | own.environment
    if not bench.gpu:
        environment |= own.cpu_environment
    drop = [f"--deselect={entry.tests}" for entry in own.exclude if "::" in entry.tests] if deselect else []
    progress(f"{bench.project.name} {bench.base.id}: own tests on the {kind} tree")
    arguments = ["-q", "--tb=short", *_isolated(folder), *drop, *selection]
    return run_pytest(bench.python, arguments, folder / own.folder, environment, own.minutes, quiet=True)


def _split_present(selection: tuple[str, ...], folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """The selection less the test files that this base does not have, and those."""
    gone = [word for word in selection if word.endswith(".py") and not (folder / word).exists()]
    return tuple(word for word in selection if word not in gone), gone


def _isolated(tree: Path) -> list[str]:
    """Test ids relative to where pytest runs, so that they name the same test in both trees; and no settings of a
    folder above the tree, which pytest looks for where upstream has none."""
    sections = {"pytest.ini": "", ".pytest.ini": "", "pyproject.toml": "[tool.pytest", "setup.cfg": "[tool:pytest"}
    own = any((tree / file).is_file() and text in (tree / file).read_text("utf-8") for file, text in sections.items())
    return ["--rootdir", "."] + ([] if own else ["-c", os.devnull])


def _pinned_tests(bench: Bench, selection: tuple[str, ...]) -> Path | None:
    """The pinned base's tests in a folder of their own, where the git source has them; None otherwise."""
    project, pinned = bench.project, bench.project.pinned
    if bench.base == pinned:
        return None
    try:
        with lock.exclusive(bench.layout.build / "lock", f"test {project.name}"):
            built = building.build(bench.layout, project, pinned, leave=True)
    except NosyncError:
        return None
    if built.source.kind != "git" or built.failed:
        return None
    folder = bench.layout.scratch / f"own-tests-{project.name}@{bench.base.id}"
    shutil.rmtree(folder, ignore_errors=True)
    tree = bench.layout.tree("patched", project.name, pinned.id)
    for prefix in project.not_in_archive:
        if (tree / prefix).is_dir():
            shutil.copytree(tree / prefix, folder / prefix)
    for settings in ("pyproject.toml", *selection):  # a selection may name pytest's settings: -c FILE
        if (tree / settings).is_file() and not (folder / settings).exists():
            (folder / settings).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / settings, folder / settings)
    return folder


# ---- our tests ------------------------------------------------------------------------------------------------------


def _our_tests(bench: Bench, report: Report, built: Built) -> None:
    source = built.source.kind
    series = [
        cell.series.name for cell in built.cells if any(state.series == cell.series.name for state in built.states)
    ]
    patched = _run_ours(bench, "patched", series, has_tree=True)
    _row(
        bench,
        report,
        source,
        "our tests, patched tree",
        patched.broken or patched.counts(),
        ok=patched.good,
        seconds=round(patched.seconds),
    )
    _say(bench, report, patched, "our tests, patched tree")
    control = _run_ours(bench, "base", series, has_tree=True)
    seen = len(control.having("xfailed"))
    good = control.good and seen > 0
    detail = (
        f"{seen} tests fail on the base tree, as they must" if good else "the sync tests must fail on the base tree"
    )
    _row(
        bench,
        report,
        source,
        "our tests, base tree (control)",
        control.broken or control.counts(),
        ok=good,
        seconds=round(control.seconds),
        detail=detail,
    )
    _say(bench, report, control, "our tests, base tree")


def _our_tests_without_tree(bench: Bench, report: Report) -> None:
    run = _run_ours(bench, "patched", [], has_tree=False)
    _row(
        bench,
        report,
        "-",
        "our tests, no tree",
        run.broken or run.counts(),
        ok=run.good,
        seconds=round(run.seconds),
    )
    _say(bench, report, run, "our tests, no tree")


def _say(bench: Bench, report: Report, run: Run, what: str) -> None:
    lines = [f"failed: {test}: {run.reasons[test]}" for test in run.bad] + run.skip_reasons()
    for line in lines:
        report.note(f"{bench.project.name} {bench.base.id}, {what}: {line}")


def _run_ours(bench: Bench, kind: str, series: list[str], has_tree: bool) -> Run:
    """Our tests of the project, with ``kind``'s tree first on the path and both trees named."""
    root = bench.layout.root
    path = [root / "scripts", root / "tests"]
    environment = {"NOSYNC_TREE": kind, "NOSYNC_BASE_ID": bench.base.id, "NOSYNC_SERIES": ",".join(series)}
    if has_tree:
        path.insert(0, bench.source_root(kind))
        environment |= {
            "NOSYNC_BASE_PATH": str(bench.source_root("base")),
            "NOSYNC_PATCHED_PATH": str(bench.source_root("patched")),
        }
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    progress(f"{bench.project.name} {bench.base.id}: our tests, {kind} tree")
    arguments = ["-q", "-p", "nosync.hostsync.pytest_plugin", str(root / "tests" / bench.project.name)]
    return run_pytest(bench.python, arguments, root, environment, 30, quiet=False)


# ---- results --------------------------------------------------------------------------------------------------------


def _save(layout: Layout, project: Project, base: Base, rows: list[dict[str, object]]) -> None:
    """What ``status`` shows as the last result."""
    own = [row for row in rows if str(row["what"]).startswith("own")]
    ours = [row for row in rows if str(row["what"]).startswith("our")]
    body = {"summary": {"own": _word(own), "ours": _word(ours)}, "rows": rows}
    file = layout.test_results(project.name, base.id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(body, indent=1, default=str), encoding="utf-8")


def _word(rows: list[dict[str, object]]) -> str:
    if not rows:
        return "-"
    if not all(row["ok"] for row in rows):
        return "FAILED"
    return str(rows[0]["result"])
