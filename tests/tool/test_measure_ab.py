"""A/B timing on synthetic workloads: what is a difference, and what is no number at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from measuring import runner, workload

from nosync.measure import machine, results, statistics
from nosync.measure.ab import measure

NOISE = "noise = [0.02, 0.03, -0.03, -0.02, 0.01, 0.0, -0.01, -0.01][number % 8]\n"
STEPS = (
    "for step in range(20):\n    lines.time('step', speed * (1 + noise) + (100 if step < 5 else 0.001 * (step % 3)))\n"
)


def test_arms_apart_are_a_difference(tmp_path: Path) -> None:
    """Interleaved, the warm-up dropped: 20 % less is faster, with an interval that holds the ratio."""
    given = workload(tmp_path, NOISE + STEPS, warm_up=5)
    measured = measure(runner(tmp_path, 10.0, 8.0), given)
    assert [(run.arm, run.number) for run in measured.runs] == [
        (arm, number) for number in range(4) for arm in ("base", "patched")
    ]
    (found,) = measured.times.values()
    assert found.verdict == statistics.FASTER
    assert not found.overlap
    assert found.base.slowest < 11  # the slow steps of the warm-up are in no median
    assert 0.75 < found.low <= found.ratio <= found.high < 0.85
    assert found.ratio == pytest.approx(0.8, abs=0.03)
    assert found.base.spread == pytest.approx(max(found.base.medians) - min(found.base.medians))


def test_overlapping_arms_are_no_difference(tmp_path: Path) -> None:
    """One per cent less where runs differ by five: said, and not claimed."""
    measured = measure(runner(tmp_path, 10.0, 9.9), workload(tmp_path, NOISE + STEPS, warm_up=5))
    (found,) = measured.times.values()
    assert found.overlap
    assert found.verdict == statistics.NO_DIFFERENCE


@pytest.mark.parametrize("patched", [10.0, 9.8])
def test_a_drifting_machine_is_no_difference(tmp_path: Path, patched: float) -> None:
    """A machine that becomes slower by half over the runs."""
    drifting = "for step in range(5):\n    lines.time('step', speed * (1 + 0.07 * number))\n"
    measured = measure(runner(tmp_path, 10.0, patched), workload(tmp_path, drifting))
    (found,) = measured.times.values()
    assert found.verdict == statistics.DRIFTING
    assert found.drift_ms == pytest.approx(4.9, rel=0.1)


def test_a_large_difference_outlives_a_small_drift() -> None:
    base, patched = [10.0, 10.1, 10.2, 10.3], [5.0, 5.1, 5.2, 5.3]
    found = statistics.compare(base, patched)
    assert found.drift_ms == pytest.approx(0.35, rel=0.1)
    assert found.verdict == statistics.FASTER


def test_a_slower_patch_is_called_slower() -> None:
    assert statistics.compare([5.0, 5.1, 4.9, 5.0], [6.0, 6.1, 6.0, 5.9]).verdict == statistics.SLOWER


def test_rounds_that_have_no_time_are_left_out(tmp_path: Path) -> None:
    """The rounds before the end count, the first one always, and the report says that there are fewer."""
    given = workload(tmp_path, STEPS.replace("noise", "0"), warm_up=5, runs=3)
    measured = measure(runner(tmp_path, 10.0, 8.0), given, end=time.monotonic())
    assert [(run.arm, run.number) for run in measured.runs] == [("base", 0), ("patched", 0)]
    assert measured.good
    assert measured.times["step"].verdict == statistics.TOO_FEW
    assert "Short: 1 of 3 runs" in "\n".join(results.workload_lines(results.as_dict(measured)))
    assert not measure(runner(tmp_path, 10.0, 8.0), given, end=time.monotonic() + 600).reason


@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_an_arm_claim_nothing(runs: int) -> None:
    """However far apart they are."""
    found = statistics.compare([10.0, 10.1][:runs], [5.0, 5.1][:runs])
    assert found.verdict == statistics.TOO_FEW
    assert ((found.low, found.high) == (0.0, float("inf"))) == (runs == 1)


def test_the_interval_is_the_same_on_every_call() -> None:
    base, patched = [10.0, 10.4, 9.8, 10.1], [9.0, 9.3, 8.9, 9.2]
    assert statistics.bootstrap_ratio(base, patched) == statistics.bootstrap_ratio(base, patched)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('out of memory')", "out of memory"),
        ("lines.time('step', 1.0)\nimport os\nos._exit(0)", "broke off"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit -11"),
        ("lines.time('step', 1.0)\nlines.write(wrong='the losses differ')", "the losses differ"),
        ("lines.write(imported='/usr/lib/other.py')\nlines.time('step', 1.0)", "not in the tree"),
        ("pass", "wrote no number"),
    ],
)
def test_a_run_that_is_wrong_gives_no_number(tmp_path: Path, body: str, said: str) -> None:
    """Its reason is told, and no further run of the workload starts."""
    measured = measure(runner(tmp_path), workload(tmp_path, body))
    assert measured.state == "failed"
    assert said in measured.reason
    assert not measured.times


def test_a_crash_of_a_later_run_takes_the_numbers_of_the_earlier_ones(tmp_path: Path) -> None:
    crashing = "lines.time('step', speed)\nif number == 5:\n    raise SystemExit(3)\n"
    measured = measure(runner(tmp_path), workload(tmp_path, crashing))
    assert measured.state == "failed"
    assert "patched, run 3" in measured.reason
    assert len(measured.runs) == 6
    assert not measured.times


def test_a_run_without_an_end_is_stopped_with_all_its_children(tmp_path: Path) -> None:
    hanging = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    measured = measure(runner(tmp_path), workload(tmp_path, hanging, minutes=0.03))
    assert (measured.state, "no end after" in measured.reason) == ("failed", True)
    time.sleep(0.1)
    status = Path("/proc", (tmp_path / "child").read_text(), "stat")
    assert not status.exists() or status.read_text().split()[2] in "ZX"


def test_a_quantity_that_one_run_lacks_makes_the_workload_fail(tmp_path: Path) -> None:
    partly = "lines.time('step', speed)\nif number != 3:\n    lines.time('other', speed)\n"
    measured = measure(runner(tmp_path), workload(tmp_path, partly))
    assert measured.state == "failed"
    assert "other" in measured.reason


def test_a_busy_gpu_gives_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before a run nor after it may anything else be on the device."""
    asked = []

    def ask(what: str, columns: str) -> list[list[str]]:
        asked.append(what)
        if what == "--query-gpu":
            return [["0", "0"]]
        return [["4711", "2048"]] if len(asked) > 4 else []  # it comes while the first run is on

    monkeypatch.setattr(machine, "query", ask)
    monkeypatch.setattr(machine.wait_until_idle, "__defaults__", (0.0, ask))
    measured = measure(runner(tmp_path), workload(tmp_path, "lines.time('step', speed)"))
    assert measured.state == "busy"
    assert "1 other process on the GPU" in measured.reason
    assert not measured.times


@pytest.mark.parametrize(("load", "word"), [("0", ""), ("4", ""), ("37", "GPU 1 at 37 %"), ("[N/A]", "")])
def test_load_without_a_process_is_busy_too(load: str, word: str) -> None:
    """In a container the other processes cannot be seen; their load can."""
    assert machine.busy(lambda what, columns: [["0", "0"], ["1", load]] if what == "--query-gpu" else []) == word


SMI = """#!/bin/sh
case "$*" in *--id=*) shown=1;; *) shown="1 2";; esac
for gpu in $shown; do
  case "$*" in
    *compute-apps*) [ "$shown" = 1 ] || echo "4711, 2048";;
    *utilization*) echo "$gpu, 0";;
    *) echo "NVIDIA H200, 580.1, 143771";;
  esac
done
"""


@pytest.mark.parametrize(
    ("visible", "gpus", "said"), [(None, 2, "2 other processes on the GPU"), ("1", 1, ""), ("", 0, "")]
)
def test_only_the_visible_gpus_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: int, said: str
) -> None:
    """On a host with many GPUs a neighbour on another one is nobody's business, and the report names ours alone."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    described = machine.describe()
    assert machine.busy() == said
    assert len(described["gpus"]) == gpus
    assert described.get("gpus_left_to_others", 0) == 2 - gpus


def test_idle_is_waited_for() -> None:
    """Utilisation is an average over a moment ago."""
    loads = iter(["80", "12", "0"])
    machine.wait_until_idle(30.0, lambda what, columns: [["0", next(loads)]] if what == "--query-gpu" else [])
    assert next(loads, None) is None


def test_counts_are_exact_or_nothing(tmp_path: Path) -> None:
    measured = measure(runner(tmp_path), workload(tmp_path, "lines.count('syncs', int(speed))", kind="count"))
    assert measured.counts == {"syncs": (10, 9)}
    assert len(measured.runs) == 2
    wavering = "lines.count('syncs', 1)\nlines.count('syncs', 2)\n"
    measured = measure(runner(tmp_path), workload(tmp_path, wavering, kind="count"))
    assert (measured.state, measured.counts) == ("failed", {})


def test_a_process_that_runs_both_arms(tmp_path: Path) -> None:
    both = (
        "for run in range(3):\n"
        "    for arm, ms in (('base', 10 + run / 10), ('patched', 9 + run / 10)):\n"
        "        lines.time('step', ms, arm=arm, run=run)\n"
        "        lines.count('waits', 1 if arm == 'base' else 0, arm=arm)\n"
    )
    measured = measure(runner(tmp_path), workload(tmp_path, both, kind="both"))
    assert measured.times["step"].base.medians == (10.0, 10.1, 10.2)
    assert measured.times["step"].patched.medians == (9.0, 9.1, 9.2)
    assert measured.counts == {"waits": (1, 0)}


def test_what_cannot_be_measured_here_says_why(tmp_path: Path) -> None:
    measured = measure(runner(tmp_path), workload(tmp_path, "lines.write(unavailable='no such package')"))
    assert (measured.state, measured.reason) == ("unavailable", "base, run 1: no such package")


def test_memory_and_time_of_a_run(tmp_path: Path) -> None:
    """Wall time and host memory are taken from outside; device memory is what the workload says."""
    using = (
        "held = b'x' * (150 << 20)\nimport time\ntime.sleep(0.2)\nlines.write(memory=3 << 20)\nlines.time('step', 1.0)"
    )
    measured = measure(runner(tmp_path), workload(tmp_path, using, runs=1))
    summary = measured.runs[0].summary()
    assert summary["host_rss_mib"] > 150
    assert summary["wall_s"] > 0.2
    assert summary["device_memory_mib"] == 3


def test_the_tree_is_first_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the user had on it is kept, behind."""
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    body = (
        "import os\n"
        "path = os.environ['PYTHONPATH'].split(os.pathsep)\n"
        "lines.count(path[-1], int(path[0] == str(options.tree)))\n"
    )
    measured = measure(runner(tmp_path), workload(tmp_path, body, kind="count"))
    assert measured.counts == {"/users/own": (1, 1)}
    assert os.environ["PYTHONPATH"] == "/users/own"


def test_warm_up_must_leave_a_step(tmp_path: Path) -> None:
    measured = measure(runner(tmp_path), workload(tmp_path, "lines.time('step', 1.0)", warm_up=1, runs=1))
    assert measured.state == "failed"
    assert "no step is left behind the warm-up: step" in measured.reason
