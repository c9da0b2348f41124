"""Triton kernels on the virtual device: real under the interpreter, counted otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nosync.hostsync import host_syncs, use_backend, value

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def launch() -> tuple[list[float], int, list[str]]:
    """Values after one launch, waits, launches."""
    with use_backend("virtual") as device:
        x = torch.arange(5.0, device=device)
        y = torch.zeros_like(x)
        with host_syncs() as syncs:
            double[(2,)](x, y, 5, BLOCK=4)
        return value(y).tolist(), syncs.count, syncs.launches


def test_without_the_interpreter_a_launch_is_counted_and_does_nothing() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter is on")
    assert launch() == ([0, 0, 0, 0, 0], 0, ["double"])


def test_under_the_interpreter_the_kernel_runs() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", f"import {Path(__file__).stem} as test; print(test.launch())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "([0.0, 2.0, 4.0, 6.0, 8.0], 0, ['double'])", done.stderr
