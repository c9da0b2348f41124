"""For ``make audit-torch-sim``: later FIRE steps of both flavors without and with each cell filter."""

import torch
import torch_sim
from torchsim_batches import random_batch, start

batch = random_batch(torch.Generator().manual_seed(0), 3, 5, torch.float64).to(torch.device("cuda", 0))
for flavor in ("vv_fire", "ase_fire"):
    for cell_filter in (None, "unit", "frechet"):
        state, model = start(torch_sim, batch, flavor, cell_filter)
        state = torch_sim.fire_step(state, model, fire_flavor=flavor)
        with torch.profiler.record_function("step"):
            torch_sim.fire_step(state, model, fire_flavor=flavor)
