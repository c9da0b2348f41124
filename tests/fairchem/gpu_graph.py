"""The on-the-fly neighbour graph on a GPU, base against patched: waits, milliseconds, memory, edges.

    python gpu_graph.py BASE_SRC PATCHED_SRC [--json FILE] [--rounds N] [--smoke]

The arguments are the ``src`` folders of a base and a patched tree. For batches with the sizes of upstream's perf_check
corpus, small and large ones, with a maximum of 30 neighbours (perf_check), of 300 (the released models), strictly,
and for version 1:

- waits of the host in `generate_graph`, by nosync's detector with the profiler, and by torch's sync-debug mode;
- the median time of `generate_graph`, both trees alternating, with a synchronization around each call;
- the peak of memory allocated in it;
- whether edges, offsets, distances and counts have the same bits; also on random batches (`KINDS` of graphs.py).

Exit code 1 if edges differ or the patched tree waits more often than its bound. ``--smoke`` runs small batches on
the CPU, without waits and memory.
Needs torch and what fairchem's atomic_data imports (ase, numpy, monty, …).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "scripts")]

import graphs  # noqa: E402
import torch  # noqa: E402
from graphs import KINDS, GraphCode, Options  # noqa: E402

CASES: dict[str, tuple[Options, float, int]] = {  # options, scale of the batch, most waits of the patched tree
    "five datasets, max 30": (Options(max_neighbors=30), 1.0, 3),
    "five datasets, max 300": (Options(max_neighbors=300), 1.0, 3),
    "five datasets, max 30 strictly": (Options(max_neighbors=30, strictly=True), 1.0, 5),
    "a tenth of it, max 30": (Options(max_neighbors=30), 0.1, 3),
    "ten times it, max 300": (Options(max_neighbors=300), 10.0, 3),
    "crystals of it, version 1, max 30": (Options(version=1, max_neighbors=30), 1.0, 7),
}


class Bench:
    """Both trees' graph code and the device."""

    def __init__(self, base: Path, patched: Path, device: str) -> None:
        self.codes = {"base": graphs.load_from(base.resolve()), "patched": graphs.load_from(patched.resolve())}
        self.device = device

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def batch(self, code: GraphCode, options: Options, scale: float) -> Any:
        systems = graphs.five_datasets(scale)
        if options.version == 1:  # no batch of periodic and other systems; the small ones of them
            systems = [systems[2], systems[4]]
        batch = graphs.make_batch(code, systems, device=self.device)
        batch.pos.requires_grad_()
        return batch


def measure(bench: Bench, options: Options, scale: float, rounds: int, counted: bool = True) -> dict[str, Any]:
    """One case: for each tree the waits, times and memory, and which parts of the graphs differ."""
    batches = {which: bench.batch(code, options, scale) for which, code in bench.codes.items()}
    calls = {
        which: (lambda code=code, batch=batches[which]: graphs.build(code, batch, options))
        for which, code in bench.codes.items()
    }
    first = {which: call() for which, call in calls.items()}
    result: dict[str, Any] = {which: {} for which in calls}
    result["differing"] = graphs.differing(first["base"], first["patched"])
    result["edges"] = first["base"]["edge_index"].shape[1]
    del first
    times = interleaved(bench, calls, rounds)
    for which, call in calls.items():
        result[which]["samples"] = times[which]
        result[which]["ms"] = statistics.median(times[which])
        result[which]["ms_least"] = min(times[which])
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
    """Waits by sync-debug and by nosync's detector (with their call sites), and the peak of allocated MiB."""
    from nosync.hostsync import host_syncs

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = call()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    del graph
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    debug = sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)
    with host_syncs("cuda", profile=True) as syncs:
        call()
    sites = [
        [f"{Path(event.file).name}:{event.line}", event.operator, str(event.kind), event.count]
        for event in syncs.counted
    ]
    return {"waits": syncs.count, "waits_sync_debug": debug, "peak_mib": peak, "sites": sites}


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


def table(cases: dict[str, Any]) -> str:
    """The printed report."""
    lines = [
        f"{'case':36}{'edges':>8}{'waits':>12}{'sync-debug':>12}{'ms (median)':>18}{'ratio':>7}{'peak MiB':>18}  same"
    ]
    for name, case in cases.items():
        old, new = case["base"], case["patched"]
        waits, debug = (f"{old.get(key, '-')} > {new.get(key, '-')}" for key in ("waits", "waits_sync_debug"))
        peak = f"{old['peak_mib']:.1f} > {new['peak_mib']:.1f}" if "peak_mib" in old else "-"
        lines.append(
            f"{name:36}{case['edges']:8}{waits:>12}{debug:>12}{old['ms']:9.3f} >{new['ms']:7.3f}"
            f"{new['ms'] / old['ms']:7.2f}{peak:>18}  {'yes' if not case['differing'] else case['differing']}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure all cases, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="src folder of the base tree")
    parser.add_argument("patched", type=Path, help="src folder of the patched tree")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--random", type=int, default=150, help="how many random batches to compare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="few rounds of small batches on the CPU")
    options = parser.parse_args()
    bench = Bench(options.base, options.patched, "cpu" if options.smoke else "cuda")
    started, cases, failed = time.perf_counter(), {}, []
    for name, (wanted, scale, bound) in CASES.items():
        rounds = 2 if options.smoke else max(5, round(options.rounds / max(1.0, scale / 2)))
        case = cases[name] = measure(bench, wanted, 0.1 if options.smoke else scale, rounds)
        if case["differing"] or case["patched"].get("waits", 0) > bound:
            failed.append(name)
    wrong = random_batches(bench, options.seed, 10 if options.smoke else options.random)
    print("device: " + ("cpu" if options.smoke else torch.cuda.get_device_name()) + f", torch {torch.__version__}")
    print(table(cases))
    for site in cases["five datasets, max 30"]["patched"].get("sites", []):
        print("  stays:", *site)
    print(f"random batches that differ: {len(wrong)}", *wrong[:5], sep="\n  ")
    print(f"{time.perf_counter() - started:.0f} s; failed: {failed or 'nothing'}")
    if options.json:
        body = {"torch": torch.__version__, "cases": cases, "random": options.random, "wrong": wrong, "failed": failed}
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
