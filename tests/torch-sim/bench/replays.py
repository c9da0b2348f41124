"""FIRE's step replayed as a CUDA graph of the patched tree, and the base's eager step, in turns in one process."""

from __future__ import annotations

import sys
from typing import Any

import gpu_steps
import torch
from bench_common import tell_versions
from fire import ALL, cases
from gpu_counts import _equal_systems
from two_trees import PackageCopy

from nosync.measure import writing

RUNS = 4


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_versions(lines)
        if not torch.cuda.is_available():
            lines.write(unavailable="a CUDA graph needs a GPU")
            return 0
        copies = [PackageCopy(root.resolve(), "torch_sim") for root in (options.tree, options.patched_tree)]
        batch = _equal_systems(*(3, 4) if options.smoke else (100, 32)).to("cuda")
        for name, flavor, cell_filter in cases(ALL):
            one_case(lines, copies, batch, name, flavor, cell_filter)
    return 0


def one_case(
    lines: writing.Lines, copies: list[PackageCopy], batch: Any, name: str, flavor: str, cell_filter: str | None
) -> None:
    """Times of one flavour and filter; a capture that fails or ends elsewhere is said in place of a number."""
    base, patched = copies
    steps = gpu_steps.block("base", cell_filter)
    for run in range(RUNS):
        with base.active() as package:
            ms = gpu_steps.milliseconds(package, batch, flavor, cell_filter, steps)
            lines.time(f"step_graph_ms.{name}", ms, arm="base", run=run)
        with patched.active() as package:
            found = gpu_steps.graph_numbers(package, batch, flavor, cell_filter, compared=run == 0)
        if found.get("error") or found.get("deterministic", "equal") != "equal":
            lines.write(
                wrong=f"{name}: {found.get('error') or 'replays against eager steps: ' + found['deterministic']}"
            )
            return
        lines.time(f"step_graph_ms.{name}", found["ms"], arm="patched", run=run)


if __name__ == "__main__":
    sys.exit(main())
