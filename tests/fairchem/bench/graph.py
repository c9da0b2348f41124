"""The on-the-fly neighbour graph, both trees in one process, by ``graph_ab.py``: waits, time, memory, edges."""

from __future__ import annotations

import sys
from typing import Any

import torch
from bench_common import tell_versions
from graph_ab import Bench, measure, random_batches
from graphs import Options

from nosync.measure import writing

RUNS, ROUNDS, RANDOM = 4, 7, 30
MAX_NEIGHBORS = (30, 300)  # perf_check's and the released models'


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_versions(lines)
        bench = Bench(options.tree, options.patched_tree, "cuda" if torch.cuda.is_available() else "cpu")
        scale = 0.1 if options.smoke else 1.0
        for run in range(2 if options.smoke else RUNS):
            for most in MAX_NEIGHBORS:
                rounds = 2 if options.smoke else ROUNDS
                found = measure(bench, Options(max_neighbors=most), scale, rounds, counted=run == 0)
                tell(lines, found, str(most), run)
        if wrong := random_batches(bench, 0, 3 if options.smoke else RANDOM):
            lines.write(wrong=f"graphs of {len(wrong)} random batches differ: {wrong[0]}")
    return 0


def tell(lines: writing.Lines, found: dict[str, Any], name: str, run: int) -> None:
    """One case's numbers; waits and memory are counted in the first run."""
    if found["differing"]:
        lines.write(wrong=f"max_neighbors {name}: {found['differing']} differ")
    for arm in ("base", "patched"):
        for ms in found[arm]["samples"]:
            lines.time(f"graph.ms_{name}", ms, arm=arm, run=run)
        if "waits" in found[arm]:
            lines.count(f"graph.waits_{name}", found[arm]["waits"], arm=arm)
            lines.count(f"graph.mib_{name}", round(found[arm]["peak_mib"]), arm=arm)


if __name__ == "__main__":
    sys.exit(main())
