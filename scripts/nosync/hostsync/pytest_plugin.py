"""The pytest plugin: fixture ``device``, marker ``no_host_sync``, option ``--host-syncs``.

Nothing of torch is imported, and no backend registered, before a test asks for one of them.
"""

from __future__ import annotations

import functools
import inspect
import json
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    from .recorder import Recorder

_RECORDERS = pytest.StashKey[dict[str, list["Recorder"]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("host-syncs", "waits of the host for the device")
    group.addoption(
        "--host-syncs",
        choices=["report"],
        help="report: print, at the end, what every recorded block of every test saw",
    )
    group.addoption("--host-syncs-json", metavar="FILE", help="write the same as JSON")
    group.addoption(
        "--host-syncs-backend",
        choices=["virtual", "cuda"],
        help="run the `device` fixture on one backend only (default: virtual, and cuda where there is a GPU)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_host_sync: the whole test body must not wait for the device")
    config.stash[_RECORDERS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames and _uses_our_fixture(metafunc):
        metafunc.parametrize("device", _backends(metafunc.config), indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The GPU first: once the virtual backend is registered, the process cannot use the GPU any more."""
    items.sort(key=lambda item: _backend_of(item) != "cuda")


def _backend_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device", "") if callspec else ""


def _uses_our_fixture(metafunc: pytest.Metafunc) -> bool:
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], (list, tuple)) else mark.args[0].split(",")
        if "device" in [name.strip() for name in names]:
            return False
    definitions = metafunc._arg2fixturedefs.get("device", ())
    return bool(definitions) and definitions[-1].func.__module__ == __name__


def _backends(config: pytest.Config) -> list[str]:
    from .backends import CUDA, VIRTUAL
    from .spoof import REAL_CUDA

    chosen = config.getoption("--host-syncs-backend")
    if chosen:
        return [chosen]
    return [VIRTUAL, CUDA] if REAL_CUDA() else [VIRTUAL]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device to build inputs on, once per backend; ``cuda:0`` on both. Records nothing outside blocks."""
    from .api import use_backend

    with use_backend(request.param) as chosen:
        yield chosen


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    if pyfuncitem.get_closest_marker("no_host_sync") is None:
        return (yield)
    from .api import forbid_host_syncs

    with forbid_host_syncs():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """The marker on methods of `unittest.TestCase`, which pytest does not call itself."""
    if not isinstance(item, pytest.Function) or not isinstance(item.instance, unittest.TestCase):
        return
    if item.get_closest_marker("no_host_sync") is None:
        return
    if inspect.iscoroutinefunction(item.obj):
        pytest.fail("no_host_sync: not on an async method of a TestCase; open forbid_host_syncs() in it", pytrace=False)
    item.obj = _sync_free(item.obj)


def _sync_free(method: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(method)
    def run() -> Any:
        from .api import forbid_host_syncs

        with forbid_host_syncs():
            return method()

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not (item.config.getoption("--host-syncs") or item.config.getoption("--host-syncs-json")):
        return (yield)
    from .api import reporting

    with reporting() as recorders:
        result = yield
    if recorders:
        item.config.stash[_RECORDERS][item.nodeid] = recorders
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    recorded = config.stash[_RECORDERS]
    if config.getoption("--host-syncs") == "report":
        terminalreporter.section("host syncs")
        for nodeid, recorders in recorded.items():
            terminalreporter.write_line(nodeid)
            for number, recorder in enumerate(recorders, start=1):
                head, *rows = recorder.table().splitlines()
                terminalreporter.write_line(f"  block {number}: {head}")
                for row in rows:
                    terminalreporter.write_line("  " + row)
    path = config.getoption("--host-syncs-json")
    if path:
        data = {nodeid: [recorder.as_dict() for recorder in recorders] for nodeid, recorders in recorded.items()}
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
