"""Fixtures: one upstream for all tests, one monorepo checkout a test, an index on this machine."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic import (
    BASE_FILES,
    LINES,
    NEXT_FILES,
    BaseEntry,
    World,
    archive,
    commit,
    in_archive,
    make_patches,
    new_repo,
    patched_environment,
    replaced,
)

CORE = replaced(LINES, 10, "line ten\n")
CORE_2 = replaced(CORE, 20, "line twenty\nline twenty and a half\n")
TESTS_2 = "def test_one():\n    assert True\n\n\ndef test_two():\n    assert True\n"


@pytest.fixture(autouse=True)
def no_outside_world(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No user configuration, no index but a closed port, no colours."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "PIP_", "UV_")):
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setattr("nosync.sources.archive._pip_settings", dict)  # half a second each, and this machine's own


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The upstream repository, its two versions, their archives and the patches of two series on the first."""
    folder = tmp_path_factory.mktemp("upstream")
    repo = new_repo(folder / "repo")
    first = commit(repo, BASE_FILES, "1.0")
    second = commit(repo, NEXT_FILES, "1.1")
    alpha = make_patches(
        repo,
        first,
        [
            ({"src/demo/core.py": CORE}, "core: say ten\n\nThe number is a word now.\n"),
            (
                {"src/demo/core.py": CORE_2, "tests/test_core.py": TESTS_2},
                "core: say twenty, and test it\n\nBoth.\n",
            ),
            ({"tests/test_more.py": "def test_more():\n    pass\n"}, "tests: one more\n"),
        ],
    )
    loss = replaced(str(BASE_FILES["src/demo/loss.py"]), 5, "loss five\n", "loss")
    beta = make_patches(repo, first, [({"src/demo/loss.py": loss}, "loss: say five\n")])
    files = folder / "files"
    hashes = {
        "1.0": archive(files / "demo-1.0.tar.gz", "demo-1.0", in_archive(BASE_FILES)),
        "1.1": archive(files / "demo-1.1.tar.gz", "demo-1.1", in_archive(BASE_FILES | NEXT_FILES)),
    }
    return SimpleNamespace(
        repo=repo,
        url=f"file://{repo}",
        first=first,
        second=second,
        alpha=alpha,
        beta=beta,
        files=files,
        hashes=hashes,
    )


def _bare(upstream: SimpleNamespace, root: Path) -> World:
    bases = [
        BaseEntry("1.0", upstream.first, upstream.hashes["1.0"], True),
        BaseEntry("1.1", upstream.second, upstream.hashes["1.1"]),
    ]
    made = World(root, upstream.repo, upstream.url, bases)
    made.root.mkdir(parents=True)
    (made.root / "patches").mkdir()
    made.save()
    return made


def _with_series(bare: World, upstream: SimpleNamespace) -> World:
    bare.add_series("alpha", 10)
    bare.add_patches("alpha", "1.0", upstream.alpha)
    bare.add_series("beta", 20, depends=["alpha"])
    bare.add_patches("beta", "1.0", upstream.beta)
    return bare


@pytest.fixture
def bare(upstream: SimpleNamespace, tmp_path: Path) -> World:
    """A checkout with bases 1.0 (pinned) and 1.1 and no series yet."""
    return _bare(upstream, tmp_path / "mono")


@pytest.fixture
def world(bare: World, upstream: SimpleNamespace) -> World:
    """A checkout with the series alpha (three patches) and beta (one) on 1.0, nothing applied yet."""
    return _with_series(bare, upstream)


@pytest.fixture(scope="session")
def _applied(upstream: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = _with_series(_bare(upstream, tmp_path_factory.mktemp("applied") / "mono"), upstream)
    with patched_environment({"HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}):
        made.apply()
    return made


@pytest.fixture
def applied(_applied: World, tmp_path: Path) -> World:
    """As ``world``, with both trees of 1.0 made from git."""
    return _applied.copy(tmp_path / "applied")


@pytest.fixture(scope="session")
def _applied_archive(upstream: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = _with_series(_bare(upstream, tmp_path_factory.mktemp("archive") / "mono"), upstream)
    made.cut_off()
    cached(made, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    cached(made, upstream.files / "demo-1.1.tar.gz", upstream.hashes["1.1"])
    with patched_environment({"HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}):
        made.apply()
    return made


@pytest.fixture
def applied_archive(_applied_archive: World, tmp_path: Path) -> World:
    """As ``offline``, with both trees of 1.0 made from the archive."""
    return _applied_archive.copy(tmp_path / "applied-archive")


@pytest.fixture
def offline(world: World, upstream: SimpleNamespace) -> World:
    """As ``world``, with the repository out of reach and both archives in the cache."""
    world.cut_off()
    cached(world, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    cached(world, upstream.files / "demo-1.1.tar.gz", upstream.hashes["1.1"])
    return world


def cached(world: World, file: Path, digest: str) -> None:
    folder = world.root / "build" / "downloads" / digest
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, folder / file.name)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A package index on this machine: ``index.url``, and ``index.serve(file)`` to put one in."""
    folder = tmp_path / "index"
    (folder / "simple" / "demo").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def serve(file: Path) -> None:
        page = folder / "simple" / "demo" / "index.html"
        shutil.copy(file, folder / file.name)
        links = page.read_text() if page.exists() else ""
        page.write_text(f'{links}<a href="/{file.name}">{file.name}</a>\n')

    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}/simple", serve=serve, folder=folder)
    server.shutdown()
    server.server_close()
