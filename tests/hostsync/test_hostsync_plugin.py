"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import json
import os
import sys

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import torch
from nosync.hostsync import allow_host_syncs, host_syncs

def test_waits(device):
    x = torch.ones(3, device=device)
    with host_syncs() as syncs:
        x.sum().item()
    assert syncs.count == 1

@pytest.mark.no_host_sync
def test_sync_free(device):
    x = torch.ones(3, device=device)
    with allow_host_syncs("the log"):
        x.sum().item()

@pytest.mark.no_host_sync
def test_marked_but_waits(device):
    torch.ones(3, device=device).sum().item()
"""


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=tests)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # pytester undoes it
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return pytester.runpytest_subprocess(
        "-p", "nosync.hostsync.pytest_plugin", "--host-syncs-backend=virtual", "-q", *options
    )


def test_fixture_marker_and_report(pytester: pytest.Pytester) -> None:
    result = run(pytester, TESTS, "--host-syncs=report", "--host-syncs-json=syncs.json")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*HostSyncError: the host waits for the device*",
            "*host syncs*",
            "test_it.py::test_waits?virtual?",
            "*1 host syncs in 1 events (virtual)*",
            "*aten::_local_scalar_dense*",
            "test_it.py::test_sync_free?virtual?",
            "*allowed: the log*",
        ]
    )
    data = json.loads((pytester.path / "syncs.json").read_text(encoding="utf-8"))
    assert data["test_it.py::test_waits[virtual]"][0]["count"] == 1


def test_the_marker_on_a_test_case(pytester: pytest.Pytester) -> None:
    tests = """
import unittest
import pytest
import torch

@pytest.mark.no_host_sync
class TestIt(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(3, device="cuda").cpu() if torch.cuda.is_available() else torch.ones(3)

    def test_waits(self):
        torch.ones(3, device="cuda").sum().item()

    def test_sync_free(self):
        torch.ones(3, device="cuda").sum()

class TestAsync(unittest.IsolatedAsyncioTestCase):
    @pytest.mark.no_host_sync
    async def test_waits(self):
        pass
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*HostSyncError: the host waits*", "*not on an async method of a TestCase*"])


def test_a_fixture_of_the_same_name_is_left_alone(pytester: pytest.Pytester) -> None:
    tests = """
import pytest

@pytest.fixture
def device():
    return "mine"

def test_own(device):
    assert device == "mine"

@pytest.mark.parametrize("device", ["a", "b"])
def test_parametrised(device):
    assert device in "ab"
"""
    run(pytester, tests).assert_outcomes(passed=3)


def test_nothing_is_imported_or_registered_unasked(pytester: pytest.Pytester) -> None:
    tests = """
import sys

def test_no_torch():
    assert "torch" not in sys.modules
"""
    run(pytester, tests).assert_outcomes(passed=1)
