"""Recordings of FIRE's states over the first steps, by flavour and cell filter, one tree."""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch_sim
from bench_common import gpu, tell_setting
from torchsim_batches import FILTERS, FLAVORS, equal_systems, fields, start

from nosync.measure import writing

STEPS = 12


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    device = torch.device("cuda" if gpu() else "cpu")
    recorded: dict[str, np.ndarray] = {}
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "torch_sim")
        batch = equal_systems(*(3, 4) if options.smoke else (20, 32)).to(device)
        for flavor in FLAVORS:
            for cell_filter in FILTERS:
                state, model = start(torch_sim, batch, flavor, cell_filter)
                for step in range(STEPS):
                    state = torch_sim.fire_step(state, model, fire_flavor=flavor)
                    for name, tensor in fields(state).items():
                        key = f"{step}/{name}/{flavor}-{cell_filter or 'none'}"
                        recorded[key] = np.ascontiguousarray(tensor.cpu().numpy())
        np.savez(options.recording, **recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
