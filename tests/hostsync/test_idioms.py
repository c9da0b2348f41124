"""Every idiom waits as often as it was recorded to wait on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from idioms import IDIOMS, Idiom, Inputs

from nosync.hostsync import forbid_host_syncs, host_syncs
from nosync.hostsync.backends import VIRTUAL, default_backend

TRUTH = json.loads((Path(__file__).parent / "h200.json").read_text(encoding="utf-8"))
IDS = [idiom.name for idiom in IDIOMS]


def recorded(idiom: Idiom) -> int:
    """Synchronize calls of the CUDA runtime in the idiom, on the card that the data file names."""
    row = TRUTH["idioms"].get(idiom.name)
    if row is None:
        pytest.skip("no count recorded on a GPU yet: run record_truth.py")
    if "error" in row:
        pytest.skip(f"did not run on the GPU: {row['error']}")
    return row["profiler"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("idiom", IDIOMS, ids=IDS)
def test_counts_as_recorded(idiom: Idiom, device: torch.device) -> None:
    backend = default_backend()
    if idiom.only and not idiom.only.startswith(backend):
        pytest.skip(idiom.only)
    expected = recorded(idiom)
    if backend != VIRTUAL:
        idiom.make(Inputs(device))()
    run = idiom.make(Inputs(device))
    with host_syncs(profile=backend != VIRTUAL) as syncs:
        run()
    if idiom.differs:
        assert (syncs.count == 0) == (expected == 0), syncs.table()
    else:
        assert syncs.count == expected, syncs.table()


SYNC_FREE = [
    idiom
    for idiom in IDIOMS
    if TRUTH["idioms"].get(idiom.name, {}).get("profiler") == 0 and not (idiom.differs or idiom.only)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("idiom", SYNC_FREE, ids=[idiom.name for idiom in SYNC_FREE])
def test_sync_free_ones_pass_forbid(idiom: Idiom, device: torch.device) -> None:
    idiom.make(Inputs(device))()
    run = idiom.make(Inputs(device))
    with forbid_host_syncs():
        run()


def test_names_are_unique() -> None:
    assert len(set(IDS)) == len(IDS)


def test_every_recorded_idiom_exists() -> None:
    assert set(TRUTH["idioms"]) <= set(IDS)
