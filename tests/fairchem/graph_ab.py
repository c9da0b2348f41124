"""The on-the-fly neighbour graph of both trees in one process: waits, milliseconds, memory, and whether edges differ.

- waits of the host in `generate_graph`, by nosync's detector with the profiler;
- the time of `generate_graph`, the trees in turns, with a synchronization around each call;
- the peak of memory allocated in it;
- whether edges, offsets, distances and counts have the same bits; also on random batches (`KINDS` of graphs.py).
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import graphs
import torch
from graphs import KINDS, GraphCode, Options


class Bench:
    """Both trees' graph code and the device."""

    def __init__(self, base: Path, patched: Path, device: str) -> None:
        self.codes = {"base": graphs.load_from(base.resolve()), "patched": graphs.load_from(patched.resolve())}
        self.device = device

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def batch(self, code: GraphCode, scale: float) -> Any:
        batch = graphs.make_batch(code, graphs.five_datasets(scale), device=self.device)
        batch.pos.requires_grad_()
        return batch


def measure(bench: Bench, options: Options, scale: float, rounds: int, counted: bool = True) -> dict[str, Any]:
    """One case: for each tree the waits, times and memory, and which parts of the graphs differ."""
    batches = {which: bench.batch(code, scale) for which, code in bench.codes.items()}
    calls = {
        which: (lambda code=code, batch=batches[which]: graphs.build(code, batch, options))
        for which, code in bench.codes.items()
    }
    first = {which: call() for which, call in calls.items()}
    result: dict[str, Any] = {which: {} for which in calls}
    result["differing"] = graphs.differing(first["base"], first["patched"])
    del first
    times = interleaved(bench, calls, rounds)
    for which, call in calls.items():
        result[which]["samples"] = times[which]
        if counted and bench.device == "cuda":
            result[which] |= waits_and_memory(call)
    return result


def interleaved(bench: Bench, calls: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, the trees taking turns."""
    times: dict[str, list[float]] = {which: [] for which in calls}
    for _ in range(3):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for which, call in calls.items():
            bench.synchronize()
            started = time.perf_counter()
            call()
            bench.synchronize()
            times[which].append(1000 * (time.perf_counter() - started))
    return times


def waits_and_memory(call: Any) -> dict[str, Any]:
    """Waits by nosync's detector, and the peak of allocated MiB."""
    from nosync.hostsync import host_syncs

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = call()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    del graph
    with host_syncs("cuda", profile=True) as syncs:
        call()
    return {"waits": syncs.count, "peak_mib": peak}


def random_batches(bench: Bench, seed: int, count: int) -> list[str]:
    """Random batches whose graphs differ between the trees."""
    choose, generator, wrong = random.Random(seed), torch.Generator().manual_seed(seed), []
    for number in range(count):
        kinds = choose.choices(list(KINDS), k=choose.choice((1, 2, 4, 6)))
        sizes = [choose.choice((1, 2) if kind == "tiny" else (1, 3, 8, 60)) for kind in kinds]
        systems = [graphs.random_system(generator, n, kind) for n, kind in zip(sizes, kinds, strict=True)]
        options = Options(
            2, choose.choice((0, 1, 3, 10, 30, 300)), choose.random() < 0.5, choose.choice((2.0, 4.0, 6.0))
        )
        dtype = choose.choice((torch.float32, torch.float64))
        partition = choose.choice((None, 2))
        found = []
        for code in bench.codes.values():
            batch = graphs.make_batch(code, systems, dtype, bench.device)
            rows = None if partition is None else torch.arange(0, len(batch.pos), partition, device=bench.device)
            found.append(graphs.build(code, batch, options, rows))
        differing = graphs.differing(*found)
        if differing:
            wrong.append(f"{number}: {differing} of {kinds}, {sizes}, {options}, {dtype}, partition {partition}")
    return wrong
