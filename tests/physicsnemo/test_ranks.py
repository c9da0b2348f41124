"""Two ranks: every rank logs the all-rank mean, and a rank that fails does not keep the other for good."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from landing import blocking, random_step, same_bits
from ranks import run_two_ranks, wait_for_result

STEPS = 6
TIMEOUT = 5.0

needs_tree = pytest.mark.skipif(
    "NOSYNC_PATCHED_PATH" not in os.environ,
    reason="the recipe is in no release and its repository was not reached: no tree to run the step loop of",
)


@pytest.fixture
def all_reduce() -> Callable[..., Any]:
    """The installed library's, imported before the ranks fork: a rank that imports misses the group's timeout."""
    from physicsnemo.distributed import fused_all_reduce

    return fused_all_reduce


def run_loop(
    readback: ModuleType,
    all_reduce: Callable[..., Any],
    rank: int,
    seed: int,
    log: list[dict],
    at: int | None = None,
    then: Any = None,
) -> None:
    """The loop's use of the readback, with the recipe's all-reduce. Rank 1 calls ``then`` at step ``at``."""
    generator = torch.Generator().manual_seed(seed + rank)
    with readback.StepReadback("cpu", log.append) as steps:
        for i in range(STEPS):
            if rank == 1 and i == at:
                then()
            steps.start(all_reduce(random_step(generator), op=dist.ReduceOp.AVG))
            steps.landed()


def local_steps(seed: int, rank: int) -> list[dict]:
    generator = torch.Generator().manual_seed(seed + rank)
    return [blocking(random_step(generator)) for _ in range(STEPS)]


def mean_of(one: Any, two: Any) -> Any:
    """The mean in float32, as the group forms it."""
    if isinstance(one, dict):
        return {key: mean_of(one[key], two[key]) for key in one}
    return ((torch.tensor(one) + torch.tensor(two)) / 2).item()


def test_every_rank_logs_the_all_rank_mean(
    readback: ModuleType, all_reduce: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    def work(rank: int) -> list[dict]:
        log: list[dict] = []
        run_loop(readback, all_reduce, rank, seed, log)
        return log

    ranks = run_two_ranks(work, tmp_path)
    expected = [mean_of(one, two) for one, two in zip(local_steps(seed, 0), local_steps(seed, 1), strict=True)]
    assert [rank["error"] for rank in ranks] == ["", ""]
    assert same_bits(ranks[0]["result"], expected)
    assert same_bits(ranks[1]["result"], expected)


@pytest.mark.parametrize("alive", [False, True], ids=["gone", "alive"])
def test_a_failing_rank_does_not_hang_the_other(
    readback: ModuleType, all_reduce: Callable[..., Any], tmp_path: Path, seed: int, alive: bool
) -> None:
    """Rank 1 raises at step 3, or stops taking part: rank 0 gets an error by the group's timeout, its steps logged."""

    def fail() -> None:
        if alive:
            wait_for_result(tmp_path, 0)
        raise RuntimeError("rank 1 fails")

    def work(rank: int) -> None:
        log: list[dict] = []
        try:
            run_loop(readback, all_reduce, rank, seed, log, at=3, then=fail)
        finally:
            (tmp_path / f"log{rank}").write_text(json.dumps(len(log)))

    ranks = run_two_ranks(work, tmp_path, TIMEOUT)
    assert [rank["error"] != "" for rank in ranks] == [True, True]
    assert [json.loads((tmp_path / f"log{rank}").read_text()) for rank in range(2)] == [3, 3]


# ---- the step loop itself ----------------------------------------


@needs_tree
def test_two_ranks_log_what_the_base_logs(tmp_path: Path, seed: int) -> None:
    """Rank 0's console, JSONL and TensorBoard with both loops, two ranks with data of their own."""
    from epochs import Epoch, on
    from two_trees import base_and_patched

    texts = []
    for name, copy in zip(("base", "patched"), base_and_patched("train"), strict=True):
        with on(copy) as train:

            def work(rank: int, train: ModuleType = train, name: str = name) -> list[str]:
                epoch = Epoch(train, tmp_path / f"{name}{rank}", seed, rank=rank, world_size=2)
                result = epoch.run()
                return [repr(result), epoch.everything()]

            folder = tmp_path / name
            folder.mkdir()
            ranks = run_two_ranks(work, folder)
        assert [rank["error"] for rank in ranks] == ["", ""]
        assert ranks[0]["result"][0] == ranks[1]["result"][0], "the ranks disagree about the epoch"
        texts.append([rank["result"] for rank in ranks])
    assert texts[0] == texts[1]
    assert "train_step" in texts[1][0][1]


@needs_tree
def test_a_rank_whose_step_raises_does_not_hang_the_other(tmp_path: Path, seed: int) -> None:
    """Rank 1's loader raises at step 2: it ends at once, rank 0 by the group's timeout; steps 0 and 1 are logged."""
    from epochs import Epoch, on
    from two_trees import base_and_patched

    with on(base_and_patched("train")[1]) as train:

        def work(rank: int) -> None:
            epoch = Epoch(train, tmp_path / f"run{rank}", seed, rank=rank, world_size=2)

            def fail(i: int) -> None:
                if rank == 1 and i == 2:
                    raise RuntimeError("rank 1 fails")

            epoch.loader.before_step = fail
            epoch.run()

        folder = tmp_path / "ranks"
        folder.mkdir()
        ranks = run_two_ranks(work, folder, TIMEOUT)
    assert [rank["error"] != "" for rank in ranks] == [True, True]
    records = [json.loads(line) for line in (tmp_path / "run0" / "metrics.jsonl").read_text().splitlines()]
    assert [record["global_step"] for record in records] == [15, 16]
