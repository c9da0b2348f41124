"""A step's losses on two ranks, both trees in the same two processes, by ``two_ranks.py``."""

from __future__ import annotations

import sys

import torch
import two_ranks
from bench_common import tell_versions

from nosync.measure import writing


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("backend", choices=["gloo", "nccl"])
    options = parser.parse_args()
    with writing.Lines(options.out) as lines:
        tell_versions(lines)
        if options.backend == "nccl" and torch.cuda.device_count() < two_ranks.RANKS:
            lines.write(unavailable="needs two GPUs")
            return 0
        for report in two_ranks.run(options.tree, options.patched_tree, options.backend, 0):
            tell(lines, report, options.backend)
    return 0


def tell(lines: writing.Lines, report: dict, backend: str) -> None:  # type: ignore[type-arg]
    """One rank's report; the numbers of rank 0 go by the plain name."""
    rank = report["rank"]
    tail = "" if rank == 0 else f"_rank_{rank}"
    if report["different"]:
        lines.write(wrong=f"rank {rank}: {len(report['different'])} tensors differ: {report['different'][0]}")
    for arm in ("base", "patched"):
        if backend == "nccl":
            lines.count(f"step.waits{tail}", report["waits"][arm]["count"], arm=arm)
        else:
            lines.count(f"step.all_reduces{tail}", report["all_reduces"][arm], arm=arm)


if __name__ == "__main__":
    sys.exit(main())
