"""A Frechet FIRE relaxation of 100 crystals with SevenNet-0 and ``ts.optimize``, one tree.

The checkpoint ships with the package sevenn. ``--neighbors`` names the neighbor list: TorchSim's default is
alchemiops_nl_n2 where warp can be imported, and vesin_nl_ts elsewhere. ``time``: of the whole relaxation, a step, a
converged structure (60,000 over it is structures per minute) and of the model alone. ``count``: steps, converged
structures, and the host syncs of ten later steps with their two checks, by where they are.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_sim
from bench_common import gpu, tell_memory, tell_versions, wall_ms
from crystals import mixed_crystals

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

CRYSTALS, MAX_STEPS, FORCE_TOL = 100, 100, 0.02  # eV/Angstrom, cell forces too
WARM_UP_STEPS, MODEL_CALLS = 10, 5
COUNTED_STEPS = 10
NEIGHBORS = ("neighbors", "transforms.py")
NEEDS = {"vesin_nl_ts": "vesin-torch", "alchemiops_nl_n2": "nvalchemi-toolkit-ops and warp-lang"}


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("--neighbors", choices=("vesin_nl_ts", "alchemiops_nl_n2"), default="vesin_nl_ts")
    parser.add_argument("--name", default="sevennet")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with writing.Lines(options.out) as lines:
        lines.write(imported=torch_sim.__file__)
        if importlib.util.find_spec("sevenn") is None:
            lines.write(
                unavailable="sevenn, which ships SevenNet-0, is not installed; make bench-torch-sim installs it"
            )
            return 0
        if not available(options.neighbors):
            lines.write(unavailable=f"{options.neighbors} cannot be imported: it needs {NEEDS[options.neighbors]}")
            return 0
        size = (2, 2) if options.smoke else (CRYSTALS, MAX_STEPS)
        job = Job.make(*size, neighbors=options.neighbors, name=options.name)
        tell_versions(lines, "sevenn", "e3nn", more={"neighbor list": options.neighbors})
        job.relax(job.shortened(WARM_UP_STEPS))
        {"count": count, "time": time}[options.mode](lines, job, options.smoke)
        tell_memory(lines)
    return 0


@dataclass
class Job:
    """The crystals, the model, how far they are relaxed, and what the quantities are named after."""

    start: Any
    model: Any
    max_steps: int
    name: str
    steps: int = 0

    @classmethod
    def make(cls, number: int, max_steps: int, *, neighbors: str, name: str) -> Job:
        """That many crystals and SevenNet-0, on the GPU where there is one."""
        from torch_sim.models.sevennet import SevenNetModel

        device = torch.device("cuda" if gpu() else "cpu")
        start = torch_sim.initialize_state(mixed_crystals(number), device=device, dtype=torch.float32)
        listed = getattr(torch_sim.neighbors, neighbors)
        return cls(start, SevenNetModel("7net-0", device=device, neighbor_list_fn=listed), max_steps, name)

    def shortened(self, most: int) -> int:
        """That many steps, or fewer in a dry run."""
        return min(most, self.max_steps)

    def relax(self, max_steps: int) -> Any:
        """Frechet FIRE in its default flavour; counts the steps of the batch."""
        self.steps = 0
        return torch_sim.optimize(
            self.start,
            self.model,
            optimizer=(torch_sim.fire_init, self._step),
            convergence_fn=criterion(),
            max_steps=max_steps,
            init_kwargs={"cell_filter": torch_sim.CellFilter.frechet},
        )

    def _step(self, **kwargs: Any) -> Any:
        self.steps += 1
        return torch_sim.fire_step(**kwargs)


def criterion() -> Callable[..., torch.Tensor]:
    """Forces and cell forces below the tolerance."""
    return torch_sim.generate_force_convergence_fn(force_tol=FORCE_TOL, include_cell_forces=True)


def converged(state: Any) -> int:
    """How many of the systems."""
    return int(criterion()(state).sum())


def time(lines: writing.Lines, job: Job, smoke: bool) -> None:
    """One relaxation, and the model on the crystals that it starts from."""
    result: list[Any] = []
    run = wall_ms(lambda: result.append(job.relax(job.max_steps)))
    done = converged(result[0])
    print(f"{job.steps} steps, {done} of {job.start.n_systems} converged, {run / 1e3:.1f} s", file=sys.stderr)
    if not done and not smoke:
        lines.write(wrong=f"not one crystal converged in {job.max_steps} steps")
    lines.time(f"{job.name}_ms.relaxation", run)
    lines.time(f"{job.name}_ms.ase", run / job.steps)
    lines.time(f"{job.name}_ms.structure", run / max(done, 1))
    model = wall_ms(lambda: [job.model(job.start) for _ in range(MODEL_CALLS)])
    lines.time(f"{job.name}_ms.model", model / MODEL_CALLS)


def count(lines: writing.Lines, job: Job, smoke: bool) -> None:
    """A relaxation's steps and converged structures; the waits that ten more steps add, by place."""
    result = job.relax(job.max_steps)
    lines.count(f"{job.name}.atoms", job.start.n_atoms)
    lines.count(f"{job.name}.steps", job.steps)
    lines.count(f"{job.name}.converged", converged(result))
    if not gpu():
        return
    with use_backend():
        short, long = (waits(job, steps) for steps in (COUNTED_STEPS, 2 * COUNTED_STEPS))
    sites = {site: number - short.get(site, 0) for site, number in long.items() if number != short.get(site, 0)}
    places: dict[str, int] = {}
    for (file, _, _), number in sites.items():
        places[place(file)] = places.get(place(file), 0) + number
    for name in ("optimizer", "runner", "neighbor_list", "model"):
        lines.count(f"{job.name}_syncs.{name}", places.get(name, 0))
    for (file, line, source), number in sorted(sites.items(), key=lambda item: -item[1])[:40]:
        print(f"{number:7d}  {Path(file).name}:{line}  {source.strip()[:90]}", file=sys.stderr)


def waits(job: Job, steps: int) -> dict[tuple[str, int, str], int]:
    """Host syncs of a relaxation that ends after that many steps, by file, line and source."""
    with host_syncs() as syncs:
        job.relax(steps)
    found: dict[tuple[str, int, str], int] = {}
    for event in syncs.counted:
        site = (event.file, event.line, event.source)
        found[site] = found.get(site, 0) + event.count
    return found


def place(file: str) -> str:
    """Whose line it is: the optimizer's, the runner's and the states', the neighbour list's, the model's."""
    parts = Path(file).parts
    if "torch_sim" not in parts:
        return "model"
    inside = parts[len(parts) - parts[::-1].index("torch_sim") :]
    if inside[0] in NEIGHBORS:
        return "neighbor_list"
    return "runner" if inside[0] in ("runners.py", "autobatching.py", "state.py", "trajectory.py") else "optimizer"


def available(neighbors: str) -> bool:
    """Can this neighbor list be computed here?"""
    from torch_sim.neighbors import ALCHEMIOPS_AVAILABLE, VESIN_TORCHSCRIPT_AVAILABLE

    return bool({"vesin_nl_ts": VESIN_TORCHSCRIPT_AVAILABLE, "alchemiops_nl_n2": ALCHEMIOPS_AVAILABLE}[neighbors])


if __name__ == "__main__":
    sys.exit(main())
