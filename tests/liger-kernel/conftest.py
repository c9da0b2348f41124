"""Fixtures of Liger's tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from interpreted import INTERPRETED, prepared


@pytest.fixture
def kernels_run(request: pytest.FixtureRequest, device: torch.device) -> torch.device:
    """``device``, where a kernel's launch has its effect: not on the virtual one beside a real GPU.

    The interpreter is chosen when a kernel is decorated, so a process has interpreted kernels or compiled ones.
    """
    if request.node.callspec.params["device"] == "virtual" and not INTERPRETED:
        pytest.skip("kernels are compiled in this process: they run for real under cuda")
    return device


@pytest.fixture
def liger(kernels_run: torch.device) -> ModuleType:
    """The tree under test."""
    import liger_kernel

    return prepared(liger_kernel)


@pytest.fixture
def seed(record_property: Callable[[str, object], None]) -> int:
    """A fresh seed; tests put it into their assertion messages."""
    chosen = int(os.environ.get("NOSYNC_SEED", random.SystemRandom().randrange(2**31)))
    record_property("seed", chosen)
    return chosen
