"""The FIRE table: host syncs or milliseconds of a step by flavour and cell filter, one tree.

The quantity of a case is ``--quantity`` with the case's name, e.g. ``vv_unit``, for ``{case}``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator

import torch
import torch_sim
from bench_common import gpu, tell_memory, tell_setting, wall_ms
from torchsim_batches import FILTERS, FLAVORS, equal_systems, run_steps, start

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

NAMES = {"vv_fire": "vv", "ase_fire": "ase", None: "none", "unit": "unit", "frechet": "frechet"}
SAMPLES = 6
ALL = [NAMES[each] for each in FILTERS]


def cases(filters: Collection[str]) -> Iterator[tuple[str, str, str | None]]:
    """(name, flavour, filter) of the cases with these filters, by their names."""
    for flavor in FLAVORS:
        for cell_filter in (each for each in FILTERS if NAMES[each] in filters):
            yield f"{NAMES[flavor]}_{NAMES[cell_filter]}", flavor, cell_filter


def count(lines: writing.Lines, options: Namespace) -> None:
    """Waits of the sixth step; without a GPU by the detector, on a small batch."""
    systems, atoms = (3, 4) if options.smoke or not gpu() else (100, 32)
    with use_backend() as device:
        batch = equal_systems(systems, atoms).to(device)
        for name, flavor, cell_filter in cases(options.filters):
            state, model = start(torch_sim, batch, flavor, cell_filter)
            state = run_steps(torch_sim, state, model, flavor, 5)
            with host_syncs() as syncs:
                run_steps(torch_sim, state, model, flavor, 1)
            lines.count(options.quantity.format(case=name), syncs.count)


def time(lines: writing.Lines, options: Namespace) -> None:
    """Milliseconds of a step, in blocks. Every sample starts anew: all see the same steps."""
    systems, atoms = (3, 4) if options.smoke else (100, options.atoms)
    batch = equal_systems(systems, atoms).to(torch.device("cuda" if gpu() and not options.cpu else "cpu"))
    for name, flavor, cell_filter in cases(options.filters):
        block, samples = (5, 3) if cell_filter == "frechet" else (50, SAMPLES)
        for _ in range(samples):
            state, model = start(torch_sim, batch, flavor, cell_filter)
            state = run_steps(torch_sim, state, model, flavor, 2)
            run = wall_ms(
                lambda state=state, model=model, flavor=flavor, block=block: run_steps(
                    torch_sim, state, model, flavor, block
                )
            )
            lines.time(options.quantity.format(case=name), run / block)


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("--quantity", required=True)
    parser.add_argument("--filters", nargs="+", default=ALL)
    parser.add_argument("--atoms", type=int, default=32, help="of a system, when timed")
    parser.add_argument("--cpu", action="store_true", help="time on the CPU, on one thread, whatever else there is")
    options = parser.parse_args()
    if options.cpu:
        torch.set_num_threads(1)
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "torch_sim")
        {"count": count, "time": time}[options.mode](lines, options)
        tell_memory(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
