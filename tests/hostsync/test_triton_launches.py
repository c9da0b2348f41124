"""Triton kernels on the virtual device: real under the interpreter, counted otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = """
import torch, triton
import triton.language as tl
from nosync.hostsync import host_syncs, use_backend, value

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

with use_backend("virtual") as device:
    x = torch.arange(5.0, device=device)
    y = torch.zeros_like(x)
    with host_syncs() as syncs:
        double[(2,)](x, y, 5, BLOCK=4)
    print(value(y).tolist(), syncs.count, syncs.launches)
"""


@pytest.mark.parametrize(
    ("interpret", "expected"),
    [
        ("1", "[0.0, 2.0, 4.0, 6.0, 8.0] 0 ['double']"),
        ("0", "[0.0, 0.0, 0.0, 0.0, 0.0] 0 ['double']"),
    ],
)
def test_a_kernel(tmp_path: Path, interpret: str, expected: str) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": interpret,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == expected, done.stderr
