"""How upstream's own tests are judged: what fails on the base too is not ours, what passes there is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import cached
from synthetic import BaseEntry, Files, Result, World, archive, commit, in_archive, make_patches, new_repo, write

from nosync.running import run_pytest

TESTS = """\
import demo


def test_ten():
    assert demo.ten() == 10


def test_old():
    assert demo.ten() == 11
"""
FILES: Files = {"src/demo/__init__.py": "def ten():\n    return 10\n", "tests/test_ten.py": TESTS}
GOOD = "def ten():\n    return 5 + 5\n"
WRONG = "def ten():\n    return 'ten'\n"
SELECTION = '[demo.own_tests]\ncpu = ["tests/test_ten.py", "tests/test_of_another_base.py"]\n'


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``make.world(patched)``: a checkout whose one patch makes the module say that."""
    monkeypatch.setattr("nosync.testing.libraries_python", lambda: sys.executable)
    monkeypatch.setattr("nosync.testing.has_gpu", lambda python: False)
    monkeypatch.setattr("nosync.testing._our_tests", lambda bench, report, built: None)
    tool = Path(__file__).resolve().parents[2] / "scripts" / "nosync"

    def world(patched: str, files: Files = FILES) -> World:
        repo = new_repo(tmp_path / "repo")
        first = commit(repo, files, "1.0")
        digest = archive(tmp_path / "demo-1.0.tar.gz", "demo-1.0", in_archive(files))
        made = World(tmp_path / "mono", repo, f"file://{repo}", [BaseEntry("1.0", first, digest, True)])
        made.more_projects, made.paths = SELECTION, ("src", "tests")
        made.root.mkdir()
        made.save()
        made.add_series("alpha")
        made.add_patches("alpha", "1.0", make_patches(repo, first, [({"src/demo/__init__.py": patched}, "ten\n")]))
        shutil.copytree(tool, made.root / "scripts/nosync", ignore=shutil.ignore_patterns("hostsync", "__pycache__"))
        # settings of a folder above the tree are not upstream's
        write(made.root, {"pytest.ini": "[pytest]\naddopts = --no-such-option\n"})
        return made

    return SimpleNamespace(world=world, archive=tmp_path / "demo-1.0.tar.gz")


def own_tests(world: World, *more: str, code: int = 0) -> tuple[dict[str, object], Result]:
    result = world.run("test", "demo", "--json", *more)
    assert result.code == code, result.text
    return result.row(what="own tests (CPU)"), result


def test_a_failure_that_the_base_has_is_not_ours(make: SimpleNamespace) -> None:
    row, result = own_tests(make.world(GOOD))
    assert row["result"] == "1 failed, 1 passed"
    assert row["detail"] == "0 regressions, 1 pre-existing failures"
    notes = " ".join(result.json["notes"])
    assert "pre-existing: tests/test_ten.py::test_old" in notes
    assert "not in this base: tests/test_of_another_base.py" in notes


def test_a_failure_that_the_base_has_not_is_a_regression(make: SimpleNamespace) -> None:
    row, result = own_tests(make.world(WRONG), code=1)
    assert row["detail"] == "1 regressions, 1 pre-existing failures"
    assert "regression: tests/test_ten.py::test_ten" in " ".join(result.json["notes"])


def test_upstreams_own_pytest_settings_hold(make: SimpleNamespace) -> None:
    settings = '[tool.pytest.ini_options]\naddopts = ["-k", "not old"]\n'
    world = make.world(GOOD, FILES | {"pyproject.toml": settings})
    world.paths = ("src", "tests", "pyproject.toml")
    world.save()
    row, _ = own_tests(world)
    assert (row["result"], row["detail"]) == ("1 passed", "no failure")


def test_tests_that_the_archive_lacks_are_a_row_and_wrong_when_strict(make: SimpleNamespace) -> None:
    world = make.world(GOOD)
    cached(world, make.archive, world.bases[0].sha256)
    world.cut_off()
    assert own_tests(world)[0]["result"] == "not in the archive"
    assert own_tests(world, "--strict", code=1)[0]["result"] == "not in the archive"


def test_a_run_that_breaks_off_is_no_verdict(make: SimpleNamespace) -> None:
    crash = TESTS + "\n\ndef test_crash():\n    import os\n\n    os._exit(3)\n"
    row, _ = own_tests(make.world(GOOD, FILES | {"tests/test_ten.py": crash}), code=1)
    assert "ended with 3" in str(row["result"])


def test_standard_output_is_left_to_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"test_one.py": "def test_one():\n    pass\n"})
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "scripts")}
    assert run_pytest(sys.executable, ["test_one.py"], tmp_path, environment, 1, quiet=False).good
    out, err = capfd.readouterr()
    assert out == "" and "1 passed" in err
