"""``wheels``: installable wheels of the patched trees, each installed, imported and tested on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nosync import building, lock, packaging_trees, scratch
from nosync.building import Built
from nosync.errors import NosyncError, Unreachable
from nosync.layout import Layout
from nosync.projects import choose, load_projects
from nosync.report import Report, progress
from nosync.running import libraries_python, run_pytest
from nosync.sources import archive

COLUMNS = ("project", "base", "source", "what", "result", "detail")
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
_LOOK = """\
import importlib, importlib.metadata, sys
print(importlib.metadata.version(sys.argv[1]))
print(importlib.import_module(sys.argv[2]).__path__[0])
"""


def wheels(layout: Layout, name: str | None, base: str, source: str, env: bool) -> Report:
    """Build the wheels of one project or of all; ``env``: put them into ``build/env/patched``, not to the test."""
    report = Report("wheels", COLUMNS)
    python = libraries_python()
    made = []
    for project in choose(load_projects(layout.projects_file), name):
        each = project.base(base)
        if reason := packaging_trees.table(project).get("none"):
            report.add(project=project.name, base=each.id, what="wheel", result="none", detail=reason)
            continue
        try:
            with lock.exclusive(layout.build / "lock", f"wheels {project.name}"):
                built = building.build(layout, project, each, wanted_source=source)
                wheel = None if built.failed else _build(layout, built, report)
        except NosyncError as error:
            if name is not None:
                raise
            said = " | ".join([error.seen, *error.details.strip().splitlines()[-1:]])
            unreachable = isinstance(error, Unreachable)
            word = "not reachable" if unreachable else "not built"
            report.add(unreachable, project=project.name, base=each.id, what="wheel", result=word, detail=said)
            continue
        if wheel is None:
            report.add(
                False,
                project=project.name,
                base=each.id,
                what="wheel",
                result="not built",
                detail="a patch does not fit: make apply",
            )
            continue
        _try_out(layout, built, wheel, python, report, tests=not env)
        made.append(wheel)
    if env and made:
        _environment(layout, made, report)
    if made:
        report.note(
            "into an environment that has the libraries already: pip install --no-deps --force-reinstall "
            + " ".join(map(str, made))
        )
    return report


def _row(report: Report, built: Built, ok: bool, what: str, result: str, detail: str = "") -> None:
    report.add(
        ok,
        project=built.project.name,
        base=built.base.id,
        source=built.source.kind,
        what=what,
        result=result,
        detail=detail,
    )


def _build(layout: Layout, built: Built, report: Report) -> Path:
    project, base = built.project, built.base
    progress(f"{project.name} {base.id}: building its wheel")
    wheel = packaging_trees.build(layout, project, base, layout.build / "wheels")
    _row(report, built, True, "wheel", wheel.name)
    ours = packaging_trees.metadata(wheel)
    if ours["Version"] != packaging_trees.local_version(project, base):
        _row(
            report, built, False, "version", ours["Version"], f"expected {packaging_trees.local_version(project, base)}"
        )
    _compare_metadata(layout, built, wheel, report)
    return wheel


def _compare_metadata(layout: Layout, built: Built, wheel: Path, report: Report) -> None:
    if built.base.archive is None:
        return
    try:
        theirs = packaging_trees.archive_metadata(archive.download(layout, built.base.archive))
    except Unreachable as error:
        _row(report, built, True, "metadata", "not compared", error.seen)
        return
    other = packaging_trees.differences(packaging_trees.metadata(wheel), theirs)
    _row(report, built, not other, "metadata", "differs" if other else "upstream's", "; ".join(other))


# ---- in an environment of its own ----


def _try_out(layout: Layout, built: Built, wheel: Path, python: str, report: Report, tests: bool) -> None:
    """Install the wheel into a fresh environment over the libraries' one, import it, run the sync tests on it."""
    folder = scratch.fresh(layout, f"env-{built.project.name}")
    try:
        inside = _fresh_environment(folder, python)
        done = _pip(inside, [str(wheel)])
        _row(
            report,
            built,
            done.returncode == 0,
            "pip install",
            "installed" if done.returncode == 0 else "failed",
            done.stderr.strip()[-300:],
        )
        if done.returncode == 0 and _import(built, inside, report) and tests:
            _sync_tests(layout, built, inside, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fresh_environment(folder: Path, python: str) -> str:
    """An environment that sees the libraries' packages behind its own; its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    inside = str(folder / "bin" / "python")
    libraries = subprocess.run([python, "-c", _SITE], check=True, capture_output=True, text=True).stdout.strip()
    site = Path(subprocess.run([inside, "-c", _SITE], check=True, capture_output=True, text=True).stdout.strip())
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({libraries!r})\n", encoding="utf-8")
    return inside


def _pip(inside: str, what: list[str]) -> subprocess.CompletedProcess[str]:
    """pip of this environment, for another interpreter; the dependencies are there already."""
    argv = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        inside,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        *what,
    ]
    env = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def _import(built: Built, inside: str, report: Report) -> bool:
    package = packaging_trees.table(built.project)["package"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [inside, "-c", _LOOK, package, built.project.import_name], env=env, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()[-2:]
    where = Path(inside).parents[1]
    good = done.returncode == 0 and len(lines) == 2 and Path(lines[1]).is_relative_to(where)
    good = good and lines[0] == packaging_trees.local_version(built.project, built.base)
    detail = lines[0] if good else (done.stderr.strip().splitlines() or [f"another copy was imported: {lines}"])[-1]
    _row(report, built, good, "import", built.project.import_name if good else "failed", detail)
    return good


def _sync_tests(layout: Layout, built: Built, inside: str, report: Report) -> None:
    """Our tests that fail on the base tree, on the installed package."""
    tests = layout.root / "tests" / built.project.name
    if not list(tests.glob("test_*.py")):
        _row(report, built, True, "sync tests", "none", f"no tests/{built.project.name}/test_*.py")
        return
    site = subprocess.run([inside, "-c", _SITE], check=True, capture_output=True, text=True).stdout.strip()
    source_root = layout.tree("base", built.project.name, built.base.id) / built.project.source_root
    environment = {
        "NOSYNC_TREE": "patched",
        "NOSYNC_BASE_ID": built.base.id,
        "NOSYNC_SERIES": ",".join(cell.series.name for cell in built.cells),
        "NOSYNC_BASE_PATH": str(source_root),
        "NOSYNC_PATCHED_PATH": site,
        "PYTHONPATH": os.pathsep.join((str(layout.root / "scripts"), str(layout.root / "tests"))),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    progress(f"{built.project.name} {built.base.id}: sync tests on the installed wheel")
    arguments = ["-q", "-p", "nosync.hostsync.pytest_plugin", "-m", "fails_on_base", str(tests)]
    run = run_pytest(inside, arguments, layout.root, environment, 30, quiet=True)
    _row(report, built, run.good, "sync tests", run.broken or run.counts(), "; ".join(run.bad[:3]))


def _environment(layout: Layout, made: list[Path], report: Report) -> None:
    """``build/env/patched``: the libraries' lock, then the wheels over it."""
    folder = layout.build / "env" / "patched"
    done = subprocess.run(
        [layout.root / "scripts" / "bootstrap", "libs", "patched"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NosyncError(f"{folder} could not be made", "see the lines above", "make env", done.stderr[-800:])
    installed = _pip(str(folder / "bin" / "python"), [str(wheel) for wheel in made])
    ok = installed.returncode == 0
    report.add(
        ok,
        project="all",
        what="environment",
        result=str(folder) if ok else "failed",
        detail=installed.stderr.strip()[-300:],
    )
    report.note(f"use it: {folder}/bin/python, or . {folder}/bin/activate")
