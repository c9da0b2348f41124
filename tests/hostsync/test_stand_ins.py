"""What scripts ask ``torch.cuda`` beside tensors, and what is left when the virtual device is off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from nosync.hostsync import forbid_host_syncs, use_backend

QUESTIONS: list[Callable[[], object]] = [
    lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"],
    lambda: torch.cuda.mem_get_info(),
    lambda: torch.cuda.reset_max_memory_allocated(),
    lambda: torch.cuda.set_per_process_memory_fraction(0.5),
    lambda: torch.cuda.utilization(),
    lambda: torch.cuda.get_device_properties(0).uuid,
    lambda: torch.cuda.get_device_properties(0).shared_memory_per_block,
    lambda: torch.cuda.initial_seed(),
    lambda: torch.cuda.seed(),
    lambda: torch.cuda.default_generators[0].get_state(),
    lambda: torch.accelerator.memory_allocated(),
    lambda: torch.accelerator.max_memory_allocated(),
    lambda: torch.accelerator.reset_peak_memory_stats(),
    lambda: torch.accelerator.empty_cache(),
    lambda: torch.get_device_module().memory_allocated(),
    lambda: torch.random.fork_rng().__enter__(),
]


@pytest.mark.parametrize("ask", QUESTIONS, ids=range(len(QUESTIONS)))
def test_is_answered(ask: Callable[[], object]) -> None:
    with forbid_host_syncs("virtual"):
        ask()


def test_streams_have_what_torch_reads() -> None:
    with forbid_host_syncs("virtual"):
        stream = torch.cuda.Stream(priority=-1)
        assert (stream.device, stream.priority) == (torch.device("cuda:0"), -1)
        with torch.cuda.StreamContext(stream):
            assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream() != stream


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_after_the_block_the_host_has_no_gpu() -> None:
    with use_backend("virtual"):
        pass
    assert not torch.accelerator.is_available()
    with torch.random.fork_rng():
        torch.manual_seed(0)
    assert [batch.tolist() for batch in DataLoader([1, 2], pin_memory=True)] == [[1], [2]]
