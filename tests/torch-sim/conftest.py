"""Both copies of torch_sim, a seed that a failure shows, and the check that the right tree is under test."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from two_trees import PackageCopy, base_and_patched, tree_path


@pytest.fixture(scope="session", autouse=True)
def one_thread_and_the_right_tree() -> Iterator[None]:
    """Sums in one order only; and ``import torch_sim`` must find the tree that NOSYNC_TREE names."""
    import torch_sim

    expected = tree_path(os.environ.get("NOSYNC_TREE", "patched")).resolve()
    assert Path(torch_sim.__file__).resolve().is_relative_to(expected), f"{torch_sim.__file__} is not in {expected}"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def both_trees() -> tuple[PackageCopy, PackageCopy]:
    """The copies of torch_sim, base first, both imported."""
    copies = base_and_patched("torch_sim")
    for copy in copies:
        with copy.active():
            pass
    return copies


@pytest.fixture
def generator() -> torch.Generator:
    """Fresh randomness. The seed is in a failure's captured output; TORCHSIM_SEED=<seed> runs it again."""
    seed = int(os.environ.get("TORCHSIM_SEED") or random.SystemRandom().randrange(2**31))
    print(f"TORCHSIM_SEED={seed}")
    return torch.Generator().manual_seed(seed)
