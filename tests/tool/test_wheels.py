"""``wheels``: a patched tree as an installable package with a local version."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from synthetic import BaseEntry, Files, Result, World, archive, commit, make_patches, new_repo, write

from nosync import packaging_trees
from nosync.layout import Layout
from nosync.projects import load_projects

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "demo"
version = "1.0"
"""
# A back end of a few lines: setuptools takes seconds to do the same.
BACKEND = """\
import pathlib, subprocess, tomllib, zipfile

METADATA = '''Metadata-Version: 2.1
Name: demo
Version: VERSION
Summary: A demo
Requires-Python: >=3.10
Requires-Dist: tabulate>=0.8; python_version >= '3.10'
'''

def build_wheel(folder, config_settings=None, metadata_directory=None):
    version = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["version"]
    info = f"demo-{version}.dist-info/"
    # as setuptools-scm finds files: those that git has, of a repository whose top is here
    listed = subprocess.run(["git", "ls-files", "--", "src"], capture_output=True, text=True, check=True).stdout
    found = [pathlib.Path(name) for name in listed.split() if name.endswith(".py")]
    files = {path.relative_to("src").as_posix(): path.read_bytes() for path in found}
    files[info + "METADATA"] = METADATA.replace("VERSION", version).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: demo\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[info + "RECORD"] = "".join(f"{name},,\\n" for name in [*files, info + "RECORD"]).encode()
    name = f"demo-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as file:
        for path, data in files.items():
            file.writestr(zipfile.ZipInfo(path), data)
    return name
"""
PKG_INFO = """\
Metadata-Version: 2.1
Name: demo
Version: 1.0
Summary: A demo
Requires-Python: >=3.10
Requires-Dist: tabulate>=0.8; python_version >= "3.10"

text
"""
TABLE = '[demo.wheel]\npackage = "demo"\nrevision = 3\n'
TEST = """\
import demo, pytest

@pytest.mark.fails_on_base
def test_it_is_the_patched_one():
    assert demo.ten() == "ten"

def test_of_another_kind():
    raise AssertionError("not asked for")
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A checkout whose project is a real package, with one series that makes ``ten()`` say ten."""
    folder = tmp_path_factory.mktemp("packaged")
    files: Files = {
        "src/demo/__init__.py": "def ten():\n    return 10\n",
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
    }
    repo = new_repo(folder / "up")
    one = commit(repo, files, "1.0")
    digest = archive(folder / "demo-1.0.tar.gz", "demo-1.0", {**files, "PKG-INFO": PKG_INFO})
    world = World(folder / "mono", repo, f"file://{repo}", [BaseEntry("1.0", one, digest, True)], more_projects=TABLE)
    world.paths = ("src", "backend.py", "pyproject.toml")
    world.root.mkdir()
    world.save()
    kept = world.root / "build/downloads" / digest
    kept.mkdir(parents=True)
    shutil.copy(folder / "demo-1.0.tar.gz", kept)
    world.add_series("alpha", 10)
    patched = {"src/demo/__init__.py": "def ten():\n    return 'ten'\n"}
    world.add_patches("alpha", "1.0", make_patches(repo, one, [(patched, "ten: say so\n")]))
    return world


@pytest.fixture
def packaged(built: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("nosync.wheels.libraries_python", lambda: sys.executable)
    return built.copy(tmp_path / "mono")


def wheels(world: World, *more: str, code: int = 0) -> Result:
    result = world.run("wheels", "--json", *more)
    assert result.code == code, result.text
    return result


def only_wheel(world: World) -> Path:
    (found,) = (world.root / "build/wheels").iterdir()
    return found


def with_sync_tests(world: World) -> None:
    """Our tests of the project, and in place of the detector's plugin one that needs no torch."""
    tool = Path(__file__).resolve().parents[2] / "scripts/nosync"
    copy = world.root / "scripts/nosync"
    shutil.copytree(tool, copy, ignore=shutil.ignore_patterns("hostsync", "measure", "__pycache__"))
    marks = "def pytest_configure(config):\n    config.addinivalue_line('markers', 'fails_on_base: x')\n"
    write(copy, {"hostsync/__init__.py": "", "hostsync/pytest_plugin.py": marks})
    write(world.root, {"tests/demo/test_demo.py": TEST})


def test_the_wheel_has_a_local_version_and_else_upstreams_metadata(packaged: World, tmp_path: Path) -> None:
    with_sync_tests(packaged)
    result = wheels(packaged)
    assert only_wheel(packaged).name == "demo-1.0+nosync.3-py3-none-any.whl"
    assert result.row(what="metadata")["result"] == "upstream's"
    assert result.row(what="pip install")["result"] == "installed"
    assert result.row(what="import")["detail"] == "1.0+nosync.3"
    assert result.row(what="sync tests")["result"] == "1 passed"
    with zipfile.ZipFile(only_wheel(packaged)) as file:
        assert b"return 'ten'" in file.read("demo/__init__.py")
    assert packaged.leftovers() == []
    assert packaged.log() == ["ten: say so"]
    assert in_an_environment_of_its_own(only_wheel(packaged), tmp_path / "env") == "ten\n"


def in_an_environment_of_its_own(wheel: Path, folder: Path) -> str:
    """What ``demo.ten()`` says where nothing but the wheel is installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True)
    return subprocess.run(
        [python, "-c", "import demo; print(demo.ten())"], check=True, capture_output=True, text=True
    ).stdout


def test_a_wheel_that_is_not_the_patched_one_is_found_out(packaged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with_sync_tests(packaged)
    inner = packaging_trees.build

    def unpatched(layout: object, project: object, base: object, into: Path) -> Path:
        tree = packaged.tree() / "src/demo/__init__.py"
        text = tree.read_text()
        wheel = inner(layout, project, base, into)  # type: ignore[arg-type]
        with zipfile.ZipFile(wheel) as file:
            members = {name: file.read(name) for name in file.namelist()}
        members["demo/__init__.py"] = text.replace("'ten'", "10").encode()
        members = {name: data for name, data in members.items() if not name.endswith("RECORD")}
        with zipfile.ZipFile(wheel, "w") as file:
            for name, data in members.items():
                file.writestr(name, data)
            file.writestr("demo-1.0+nosync.3.dist-info/RECORD", "".join(f"{name},,\n" for name in members))
        return wheel

    monkeypatch.setattr("nosync.packaging_trees.build", unpatched)
    assert "1 failed" in wheels(packaged, code=1).row(what="sync tests")["result"]


def test_metadata_that_is_not_upstreams_is_wrong(packaged: World) -> None:
    text = PKG_INFO.replace("tabulate>=0.8", "tabulate>=0.9")
    files = {"src/demo/__init__.py": "", "PKG-INFO": text}
    digest = archive(packaged.root.parent / "demo-1.0.tar.gz", "demo-1.0", files)
    packaged.bases = [BaseEntry("1.0", packaged.bases[0].commit, digest, True)]
    packaged.save()
    kept = packaged.root / "build/downloads" / digest
    kept.mkdir(parents=True)
    shutil.copy(packaged.root.parent / "demo-1.0.tar.gz", kept)
    result = wheels(packaged, code=1)
    row = result.row(what="metadata")
    assert result.row(what="sync tests")["result"] == "none"
    assert row["result"] == "differs"
    assert "Requires-Dist" in row["detail"]


def test_the_same_tree_gives_the_same_wheel(packaged: World, tmp_path: Path) -> None:
    packaged.apply()
    project = load_projects(packaged.root / "upstream/projects.toml")["demo"]
    one, other = (
        packaging_trees.build(Layout(packaged.root), project, project.pinned, tmp_path / name) for name in "ab"
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_tree_of_another_version_than_its_base_says_so(packaged: World) -> None:
    packaged.bases = [BaseEntry("1.0.0", packaged.bases[0].commit, "", True)]
    packaged.save()
    shutil.copytree(packaged.root / "patches/demo/alpha/1.0", packaged.root / "patches/demo/alpha/1.0.0")
    result = packaged.run("wheels", "demo")
    assert result.code == 2
    assert "is not of version 1.0.0" in result.err
    assert packaged.leftovers() == []


def test_the_record_of_a_relabelled_wheel_is_right(packaged: World, tmp_path: Path) -> None:
    packaged.apply()
    project = load_projects(packaged.root / "upstream/projects.toml")["demo"]
    wheel = packaging_trees.build(Layout(packaged.root), project, project.pinned, tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = [row[0] for row in csv.reader(file.read("demo-1.0+nosync.3.dist-info/RECORD").decode().splitlines())]
        assert sorted(names) == sorted(file.namelist())
        for name, digest, size in csv.reader(file.read("demo-1.0+nosync.3.dist-info/RECORD").decode().splitlines()):
            if digest:
                made = base64.urlsafe_b64encode(hashlib.sha256(file.read(name)).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={made}", len(file.read(name)))


def test_a_project_without_a_package_says_why(packaged: World) -> None:
    packaged.more_projects = '[demo.wheel]\nnone = "an example, in no package"\n'
    packaged.save()
    assert wheels(packaged).row(what="wheel")["detail"] == "an example, in no package"


def test_a_version_from_the_repository_is_given_from_outside(packaged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged.more_projects = TABLE + 'version = "scm"\n'
    packaged.save()
    seen: dict[str, str] = {}

    def back_end(project: object, folder: Path, out: Path, env: dict[str, str]) -> None:
        seen.update(env, text=(folder / "pyproject.toml").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr("nosync.packaging_trees._run_back_end", back_end)
    assert packaged.run("wheels", "demo").code == 130
    assert seen["SETUPTOOLS_SCM_PRETEND_VERSION"] == "1.0"
    assert 'version = "1.0"' in seen["text"]
