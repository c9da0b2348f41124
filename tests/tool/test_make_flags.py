"""The Makefile: what its variables become on the command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FLAGS = {
    "JSON": ("status", "--json"),
    "FORCE": ("apply", "--force"),
    "STRICT": ("test-fairchem", "--strict"),
    "DRY": ("refresh-fairchem", "--dry"),
    "CONTINUE": ("rebase-fairchem", "--continue"),
    "ABORT": ("rebase-fairchem", "--abort"),
    "SEND": ("export-fairchem", "--send"),
    "SMOKE": ("bench-fairchem", "--smoke"),
}


def commands(*argv: str) -> str:
    """What make would run; ``PYTHON`` keeps it from making environments."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", "PYTHON=python3", *argv]
    return subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_given_by_1_and_not_by_0_no_false_or_nothing(name: str) -> None:
    target, option = FLAGS[name]
    assert option in commands(target, f"{name}=1").split() and option in commands(target, f"{name}=yes").split()
    for no in ("0", "no", "false", ""):
        assert option not in commands(target, f"{name}={no}").split()


@pytest.mark.parametrize("target", ["clean-fairchem", "test"])
def test_all_bases_are_meant_unless_one_is_given(target: str) -> None:
    assert "--base all" in commands(target)
    assert "--base pinned" in commands(target, "BASE=pinned") and "--base 2.24.0" in commands(target, "BASE=2.24.0")
