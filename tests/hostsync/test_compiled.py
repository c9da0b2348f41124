"""torch.compile and torch.export on the virtual device."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nosync.hostsync import use_backend

COMPILED_MODULE = """
import sys, torch
from nosync.hostsync import host_syncs
with host_syncs("virtual") as syncs:
    assert "torch._dynamo.eval_frame" not in sys.modules
    model = torch.compile(torch.nn.Linear(3, 2, device="cuda"))
    model(torch.ones(4, 3, device="cuda")).sum().backward()
    model.weight.grad.sum().item()
assert [event.kind for event in syncs.events] == ["not-covered", "read"], syncs.table()
"""


def test_a_module_that_is_compiled_first_in_the_block() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED_MODULE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_export_says_that_it_cannot() -> None:
    with use_backend("virtual") as device:
        model, x = torch.nn.Linear(3, 2, device=device), torch.ones(4, 3, device=device)
        with pytest.raises(NotImplementedError, match="on the CPU"):
            torch.export.export(model, (x,))
