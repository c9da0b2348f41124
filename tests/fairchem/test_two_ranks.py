"""Two processes over gloo: the patched losses have the base's bits, with one all-reduce a step.

The processes start from one of their own (`two_ranks`), so that what this process did with a GPU does not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from two_trees import tree_path

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    file = tmp_path_factory.mktemp("ranks") / "reports.json"
    trees = ["--base", str(tree_path("base")), "--patched", str(tree_path("patched"))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *trees, "--json", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert file.exists(), done.stdout + done.stderr
    return json.loads(file.read_text())


def test_losses_and_gradients_have_the_bits_of_the_base(reports: list[dict]) -> None:
    for report in reports:
        # three cases; three reductions and 15 tasks, each with its gradient
        assert (report["compared"], report["different"]) == (3 * 2 * (3 + 15), [])


@pytest.mark.needs_series("uma-loss-collectives")
def test_a_step_has_one_all_reduce(reports: list[dict]) -> None:
    assert [report["all_reduces"] for report in reports] == [{"base": 15, "patched": 1}] * 2
