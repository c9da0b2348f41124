"""FIRE's step replayed as a CUDA graph of the patched tree, and the base's eager step, in turns in one process."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench_common import tell_versions, wall_ms
from fire import ALL, cases
from torchsim_batches import Batch, equal_systems, fields, run_steps, start
from two_trees import PackageCopy

from nosync.measure import writing

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic algorithms ask for

RUNS = 4
REPLAYS = 200


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")
    with writing.Lines(options.out) as lines:
        tell_versions(lines)
        if not torch.cuda.is_available():
            lines.write(unavailable="a CUDA graph needs a GPU")
            return 0
        copies = [PackageCopy(root.resolve(), "torch_sim") for root in (options.tree, options.patched_tree)]
        batch = equal_systems(*(3, 4) if options.smoke else (100, 32)).to(torch.device("cuda"))
        for name, flavor, cell_filter in cases(ALL):
            one_case(lines, copies, batch, name, flavor, cell_filter)
    return 0


def one_case(
    lines: writing.Lines, copies: list[PackageCopy], batch: Batch, name: str, flavor: str, cell_filter: str | None
) -> None:
    """Times of one flavour and filter; a capture that fails or ends elsewhere is said in place of a number."""
    base, patched = copies
    steps = 4 if cell_filter == "frechet" else 20  # the base's matrix logarithm is slow
    for run in range(RUNS):
        with base.active() as package:
            lines.time(
                f"step_graph_ms.{name}", eager_ms(package, batch, flavor, cell_filter, steps), arm="base", run=run
            )
        try:
            with patched.active() as package:
                ms = replayed(package, batch, flavor, cell_filter)[1]
                same = run > 0 or ends_equal(package, batch, flavor, cell_filter)
        except RuntimeError as error:
            lines.write(wrong=f"{name}: capture or replay failed: {str(error).splitlines()[0]}")
            return
        if not same:
            lines.write(wrong=f"{name}: replays end elsewhere than eager steps")
            return
        lines.time(f"step_graph_ms.{name}", ms, arm="patched", run=run)


def eager_ms(package: Any, batch: Batch, flavor: str, cell_filter: str | None, steps: int) -> float:
    """Milliseconds of an eager step: a block of steps after some that warm up."""
    state, model = start(package, batch, flavor, cell_filter)
    state = run_steps(package, state, model, flavor, 4)  # deformed cells: the base's logarithm is cheap at the identity
    return wall_ms(lambda: run_steps(package, state, model, flavor, steps)) / steps


def replayed(package: Any, batch: Batch, flavor: str, cell_filter: str | None) -> tuple[dict[str, torch.Tensor], float]:
    """The state after `REPLAYS` replays of a captured step, and milliseconds of one."""
    graph, static = capture(package, batch, flavor, cell_filter)

    def replay() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    return static, wall_ms(replay) / REPLAYS


def ends_equal(package: Any, batch: Batch, flavor: str, cell_filter: str | None) -> bool:
    """Do replays end bit for bit where as many eager steps do? By deterministic algorithms."""

    def eager() -> dict[str, torch.Tensor]:
        state, model = start(package, batch, flavor, cell_filter)
        return fields(run_steps(package, state, model, flavor, REPLAYS))

    def compare() -> bool:
        one, other = replayed(package, batch, flavor, cell_filter)[0], eager()
        return all(torch.equal(one[name], other[name]) for name in one)

    return _deterministic(compare)


def capture(
    package: Any, batch: Batch, flavor: str, cell_filter: str | None
) -> tuple[torch.cuda.CUDAGraph, dict[str, torch.Tensor]]:
    """A graph of one step, and the tensors that each replay reads and writes, at the state before the first step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        state, model = start(package, batch, flavor, cell_filter)
        run_steps(package, state, model, flavor, 3)
    torch.cuda.current_stream().wait_stream(side)

    state, model = start(package, batch, flavor, cell_filter)
    static = fields(state)
    for name, tensor in static.items():
        setattr(state, name, tensor)
    before = {name: tensor.clone() for name, tensor in static.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        after = package.fire_step(state, model, fire_flavor=flavor)
        for name, tensor in static.items():
            tensor.copy_(getattr(after, name))
    for name, tensor in static.items():
        tensor.copy_(before[name])
    return graph, static


def _deterministic(compare: Callable[[], bool]) -> bool:
    torch.use_deterministic_algorithms(True)
    try:
        return compare()
    finally:
        torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    sys.exit(main())
