"""vesin's neighbor list of 100 crystals of mixed size: host syncs, or milliseconds, of one call, one tree."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch_sim
from bench_common import gpu, tell_memory, tell_versions, wall_ms
from crystals import mixed_crystals

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

CUTOFF = 5.0  # Angstrom, SevenNet-0's
CALLS, SAMPLES = 20, 6


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")
    with writing.Lines(options.out) as lines:
        lines.write(imported=torch_sim.__file__)
        tell_versions(lines, "vesin", "vesin_torch")
        number = 2 if options.smoke else 100
        {"count": count, "time": time}[options.mode](lines, number)
        tell_memory(lines)
    return 0


def inputs(number: int, device: torch.device) -> tuple[Any, ...]:
    """What a model gives a neighbor list: positions, cells as rows, pbc, the cutoff and system_idx."""
    state = torch_sim.initialize_state(mixed_crystals(number), device=torch.device("cpu"), dtype=torch.float32)
    tensors = (state.positions, state.row_vector_cell, state.pbc, state.system_idx)
    positions, cell, pbc, system_idx = (each.to(device) for each in tensors)
    return positions, cell, pbc, CUTOFF, system_idx


def functions() -> dict[str, Any]:
    """The two of TorchSim's neighbor lists that vesin computes."""
    return {name: getattr(torch_sim.neighbors, name) for name in ("vesin_nl", "vesin_nl_ts")}


def count(lines: writing.Lines, number: int) -> None:
    """Waits of a call; without a GPU by the detector."""
    with use_backend() as device:
        given = inputs(number, device)
        for name, function in functions().items():
            with host_syncs() as syncs:
                function(*given)
            lines.count(f"neighbors.{name}.syncs", syncs.count)


def time(lines: writing.Lines, number: int) -> None:
    """Milliseconds of a call, in blocks."""
    given = inputs(number, torch.device("cuda" if gpu() else "cpu"))
    for name, function in functions().items():
        function(*given)
        for _ in range(SAMPLES):
            block = wall_ms(lambda function=function: [function(*given) for _ in range(CALLS)])
            lines.time(f"neighbors.{name}.ms", block / CALLS)


if __name__ == "__main__":
    sys.exit(main())
