"""The recipe's step loop: what it logs is the base's, to the bit and in order, and no step waits for the device."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch
from epochs import Epoch, on
from landing import hold_copies
from two_trees import PackageCopy, base_and_patched

from nosync.hostsync import host_syncs

pytestmark = pytest.mark.skipif(
    "NOSYNC_PATCHED_PATH" not in os.environ,
    reason="the recipe is in no release and its repository was not reached: no tree to run the step loop of",
)


@pytest.fixture(scope="module")
def copies() -> tuple[PackageCopy, PackageCopy]:
    """``train`` of the base and of the patched tree."""
    return base_and_patched("train")


@pytest.fixture
def base(copies: tuple[PackageCopy, PackageCopy]) -> ModuleType:
    with on(copies[0]) as train:
        return train


@pytest.fixture
def patched(copies: tuple[PackageCopy, PackageCopy]) -> ModuleType:
    with on(copies[1]) as train:
        return train


@pytest.fixture
def under_test(copies: tuple[PackageCopy, PackageCopy]) -> ModuleType:
    with on(copies[os.environ.get("NOSYNC_TREE", "patched") != "base"]) as train:
        return train


# ---- the same records ----------------------------------------


def test_only_the_loop_differs() -> None:
    """The premise of running both loops in one process: every other module of the recipe is the base's."""
    base, patched = Path(os.environ["NOSYNC_BASE_PATH"]), Path(os.environ["NOSYNC_PATCHED_PATH"])
    files = sorted(file.name for file in patched.glob("*.py"))
    assert set(files) - {file.name for file in base.glob("*.py")} == {"readback.py"}
    same = [name for name in files if name not in ("train.py", "readback.py")]
    assert len(same) > 5
    assert [name for name in same if (base / name).read_bytes() != (patched / name).read_bytes()] == []


@pytest.mark.parametrize("landing", ["at once", "at the end"])
@pytest.mark.parametrize("metrics", [None, []], ids=["metrics", "no-metrics"])
@pytest.mark.parametrize("mode", ["train", "val"])
def test_logs_are_the_base_s(
    base: ModuleType, patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch,
    mode: str, metrics: list[str] | None, landing: str,
) -> None:  # fmt: skip
    """Console lines, JSONL records (keys in order) and TensorBoard scalars of the same run, but for the clock."""
    if landing == "at the end":
        hold_copies(monkeypatch, patched.StepReadback)
    epochs = [
        Epoch(train, tmp_path / name, seed, mode=mode, metrics=metrics) for name, train in (("b", base), ("p", patched))
    ]
    results = [epoch.run() for epoch in epochs]
    assert repr(results[0]) == repr(results[1])
    assert epochs[0].everything() == epochs[1].everything()
    assert epochs[1].logged_steps() == [0, 1, 2, 3, 4]
    assert all(torch.equal(one, two) for one, two in zip(*(epoch.model.parameters() for epoch in epochs), strict=True))


def test_logs_on_the_device_are_the_base_s_on_the_cpu(
    base: ModuleType, patched: ModuleType, tmp_path: Path, seed: int, device: torch.device
) -> None:
    """The same comparison through pinned memory and real or virtual events, against the base on the same device."""
    epochs = [Epoch(train, tmp_path / name, seed, device=device) for name, train in (("b", base), ("p", patched))]
    for epoch in epochs:
        epoch.run()
    assert epochs[0].jsonl() == epochs[1].jsonl()
    assert epochs[0].console() == epochs[1].console()
    assert epochs[1].logged_steps() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("update_mode", ["step", "epoch"])
def test_each_step_s_learning_rate_is_its_own(
    base: ModuleType, patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, update_mode: str
) -> None:
    """Also when the scheduler has moved on by the time the step is logged."""
    hold_copies(monkeypatch, patched.StepReadback)
    epochs = [
        Epoch(train, tmp_path / name, seed, update_mode=update_mode) for name, train in (("b", base), ("p", patched))
    ]
    for epoch in epochs:
        epoch.run()
    rates = [1e-2 * 0.5 ** (i + 1) for i in range(5)] if update_mode == "step" else [1e-2] * 5
    assert epochs[1].learning_rates() == pytest.approx(rates)
    assert epochs[1].learning_rates() == epochs[0].learning_rates()


def test_the_profile_stop_loses_no_step(
    base: ModuleType, patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_copies(monkeypatch, patched.StepReadback)
    epochs = [
        Epoch(train, tmp_path / name, seed, profile=True, n_steps=15) for name, train in (("b", base), ("p", patched))
    ]
    for epoch in epochs:
        epoch.run()
    assert epochs[1].logged_steps() == list(range(11))
    assert epochs[0].everything() == epochs[1].everything()


def test_each_step_is_logged_before_the_next_on_the_cpu(patched: ModuleType, tmp_path: Path, seed: int) -> None:
    epoch = Epoch(patched, tmp_path / "run", seed)
    seen: list[list[int]] = []
    epoch.loader.before_step = lambda i: seen.append(epoch.logged_steps())
    epoch.run()
    assert seen == [list(range(i)) for i in range(6)]


def test_an_empty_epoch_still_ends(patched: ModuleType, tmp_path: Path, seed: int) -> None:
    epoch = Epoch(patched, tmp_path / "run", seed, n_steps=0)
    assert epoch.run() == (0.0, {})
    assert epoch.logged_steps() == []


# ---- errors ----------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
@pytest.mark.parametrize("where", ["loader", "forward", "optimizer"])
def test_a_raising_step_logs_what_has_landed(
    patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch,
    where: str, at: int, error: type[BaseException],
) -> None:  # fmt: skip
    """In a batch's load, a forward pass or an optimizer step, at the first, a middle and the last step.

    The last started copy has not landed: its step is not logged, and nothing waits for it.
    """
    held = hold_copies(monkeypatch, patched.StepReadback)
    epoch, calls = Epoch(patched, tmp_path / "run", seed), iter(range(100))

    def fail_at(i: int) -> None:
        if i == at:
            for copy in held[:-1]:
                copy.land()
            raise error("here")

    if where == "loader":
        epoch.loader.before_step = fail_at
    else:
        owner, name = (epoch.model, "forward") if where == "forward" else (epoch.optimizer, "step")
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (fail_at(next(calls)), original(*a, **k))[1])
    with pytest.raises(error, match="here"):
        epoch.run()
    assert epoch.logged_steps() == list(range(at - 1))
    assert [copy.waits for copy in held] == [0] * at
    assert not any(record["phase"].endswith("summary") for record in epoch.jsonl())


def test_an_error_while_the_epoch_drains(
    patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during the wait for step 2, whose copy has landed by then: steps 0 to 2 are logged, and no summary."""
    held = hold_copies(monkeypatch, patched.StepReadback)
    epoch = Epoch(patched, tmp_path / "run", seed)

    def interrupted() -> None:
        held[2].land()
        raise KeyboardInterrupt

    def at_the_end(i: int) -> None:
        if i == 5:
            held[2].synchronize = interrupted

    epoch.loader.before_step = at_the_end
    with pytest.raises(KeyboardInterrupt):
        epoch.run()
    assert epoch.logged_steps() == [0, 1, 2]
    assert [record["phase"] for record in epoch.jsonl()] == ["train_step"] * 3


def test_a_full_disk_does_not_repeat_a_record(
    patched: ModuleType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing step 1 fails in the drain: it is tried once, and nothing is written after it."""
    held = hold_copies(monkeypatch, patched.StepReadback)
    epoch = Epoch(patched, tmp_path / "run", seed)
    write, tried = epoch.write_jsonl, []

    def full(record: dict) -> None:
        tried.append(record["global_step"] - 15)
        if tried[-1] == 1:
            raise OSError("disk full")
        write(record)

    epoch.write_jsonl = full
    epoch.loader.before_step = lambda i: held[2].land() if i == 5 else None
    with pytest.raises(OSError, match="disk full"):
        epoch.run()
    assert tried == [0, 1]
    assert epoch.logged_steps() == [0]


# ---- no wait ----------------------------------------


def waits_per_step(epoch: Epoch) -> list[int]:
    """Host syncs and explicit waits from one request for a batch to the next, and, last, in the epoch's end."""
    counts: list[int] = []
    with host_syncs() as syncs:
        epoch.loader.before_step = lambda i: counts.append(syncs.count)
        epoch.run()
    counts.append(syncs.count)
    return [after - before for before, after in itertools.pairwise(counts)]


@pytest.mark.fails_on_base
@pytest.mark.parametrize("mode", ["train", "val"])
def test_no_step_waits_for_the_device(
    under_test: ModuleType, tmp_path: Path, seed: int, device: torch.device, mode: str
) -> None:
    """The recipe's forward pass, loss, metrics, backward, optimizer and logging; the epoch's end may wait."""
    *steps, _ = waits_per_step(Epoch(under_test, tmp_path / "run", seed, device=device, mode=mode, n_steps=6))
    assert steps == [0] * 6


@pytest.mark.base_only
@pytest.mark.parametrize("mode", ["train", "val"])
def test_each_base_step_waits_for_one_event(
    base: ModuleType, tmp_path: Path, seed: int, device: torch.device, mode: str
) -> None:
    """What sync-debug does not see: the event wait inside `TensorDict.cpu`, once a step and once for the summary."""
    epoch = Epoch(base, tmp_path / "run", seed, device=device, mode=mode, n_steps=6)
    with host_syncs() as syncs:
        epoch.run()
    waits = [event for event in syncs.events if event.counted]
    assert {event.kind for event in waits} == {"explicit"}
    assert syncs.count == 7


def test_the_epoch_s_end_waits_for_its_summary_only(
    patched: ModuleType, tmp_path: Path, seed: int, device: torch.device
) -> None:
    """Virtual copies land at once: one wait, for the summary. Real ones may be in flight: up to one more for each."""
    *steps, end = waits_per_step(Epoch(patched, tmp_path / "run", seed, device=device))
    in_flight = 0 if torch.cuda.get_device_name() == "virtual" else 5
    assert sum(steps) == 0
    assert 1 <= end <= 1 + in_flight
