"""Host syncs, milliseconds and CUDA graph replay of a FIRE step on a GPU, base against patched, in one process.

    python gpu_steps.py BASE_TREE PATCHED_TREE [--json FILE] [--device cpu] [--smoke]

For both flavors with each cell filter, 100 systems of 32 atoms in float64 and a harmonic model (so nearly all of a
step is the optimizer): host syncs of the first and of a later step by torch's sync-debug mode; eager milliseconds per
step in interleaved rounds, medians; and for the patched tree a step captured in a CUDA graph, its milliseconds per
replay, and how far 200 replays end from 200 eager steps, beside how far two eager runs end from each other
(scatter_add_ sums in another order each time) and whether they end equal bit by bit with deterministic algorithms.
With ``--device cpu`` only the eager times. Needs torch and what torch_sim imports, and the files of this folder and
two_trees.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic algorithms ask for
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from gpu_counts import _equal_systems, _host_syncs  # noqa: E402
from torchsim_batches import FILTERS, FLAVORS, fields, run_steps, start  # noqa: E402
from two_trees import PackageCopy  # noqa: E402

REPLAYS = 200
ROUNDS = 7


def main() -> int:
    """Measure, print the table, write the JSON."""
    args = _arguments()
    warnings.simplefilter("ignore")
    copies = {name: PackageCopy(Path(getattr(args, name)).resolve(), "torch_sim") for name in ("base", "patched")}
    device = torch.device(args.device)
    batch = _equal_systems(*((3, 5) if args.smoke else (args.systems, args.atoms))).to(device)
    card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    report: dict[str, Any] = {"card": card, "torch": torch.__version__, "systems": batch.n_systems, "cases": {}}
    for flavor in FLAVORS:
        for cell_filter in FILTERS:
            case = measure(copies, batch, flavor, cell_filter, rounds=2 if args.smoke else ROUNDS)
            report["cases"][f"{flavor}/{cell_filter or 'none'}"] = case
            print(f"{flavor} {cell_filter or 'none'} done", file=sys.stderr, flush=True)
    print(table(report))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def table(report: dict[str, Any]) -> str:
    """The printed report."""
    lines = [f"{report['card']}, torch {report['torch']}, {report['systems']} systems", ""]
    lines.append(
        f"{'case':20}{'syncs first':>14}{'later':>12}{'ms base':>10}{'patched':>9}{'ratio':>7}"
        f"{'graph ms':>10}{'ratio':>8}{'replay-eager':>14}{'eager-eager':>13}  deterministic"
    )
    for key, case in report["cases"].items():
        base, patched = case["base"], case["patched"]
        row = f"{key:20}"
        for kind in ("first", "later"):
            syncs = f"{base['syncs'][kind]} -> {patched['syncs'][kind]}" if "syncs" in base else "-"
            row += f"{syncs:>{14 if kind == 'first' else 12}}"
        row += f"{base['ms']:10.3f}{patched['ms']:9.3f}{base['ms'] / patched['ms']:7.1f}"
        graph = case.get("graph", {})
        if "ms" in graph:
            row += f"{graph['ms']:10.3f}{base['ms'] / graph['ms']:8.1f}"
            row += f"{graph['from_eager']:14.1e}{graph['eager_from_itself']:13.1e}  {graph['deterministic']}"
        else:
            row += f"  {graph.get('error', 'no graph on the CPU')}"
        lines.append(row)
    return "\n".join(lines)


def measure(
    copies: dict[str, PackageCopy], batch: Any, flavor: str, cell_filter: str | None, rounds: int
) -> dict[str, Any]:
    """All numbers of one flavor and cell filter."""
    case: dict[str, Any] = {name: {} for name in copies}
    cuda = batch.positions.device.type == "cuda"
    if cuda:
        for name, copy in copies.items():
            case[name]["syncs"] = _in_copy(copy, lambda package: count_syncs(package, batch, flavor, cell_filter))
    times: dict[str, list[float]] = {name: [] for name in copies}
    for _ in range(rounds):
        for name, copy in copies.items():
            n_steps = block(name, cell_filter)
            times[name].append(
                _in_copy(copy, lambda package, n=n_steps: milliseconds(package, batch, flavor, cell_filter, n))
            )
    for name, found in times.items():
        case[name] |= {"ms": statistics.median(found), "ms_rounds": found}
    if cuda:
        case["graph"] = _in_copy(copies["patched"], lambda package: graph_numbers(package, batch, flavor, cell_filter))
    return case


def block(name: str, cell_filter: str | None) -> int:
    """Steps that are timed together: few where the base computes its slow logarithm."""
    return 4 if cell_filter == "frechet" and name == "base" else 20


def count_syncs(package: Any, batch: Any, flavor: str, cell_filter: str | None) -> dict[str, Any]:
    """Host syncs of the first step and of the fifth, and the latter's places."""
    state, model = start(package, batch, flavor, cell_filter)
    found: dict[str, Any] = {}
    for kind, before in (("first", 0), ("later", 3)):
        state = run_steps(package, state, model, flavor, before)
        with _host_syncs(batch.positions.device) as sites:
            state = package.fire_step(state, model, fire_flavor=flavor)
        found[kind] = sum(sites.values())
    return found | {"sites": dict(sites.most_common())}


def milliseconds(package: Any, batch: Any, flavor: str, cell_filter: str | None, n_steps: int) -> float:
    """One eager step's time: a block of steps after some that warm up."""
    state, model = start(package, batch, flavor, cell_filter)
    state = run_steps(package, state, model, flavor, 4)  # deformed cells: the base's logarithm is cheap at the identity
    _wait(batch)
    begin = time.perf_counter()
    run_steps(package, state, model, flavor, n_steps)
    _wait(batch)
    return 1e3 * (time.perf_counter() - begin) / n_steps


def graph_numbers(
    package: Any, batch: Any, flavor: str, cell_filter: str | None, compared: bool = True
) -> dict[str, Any]:
    """Replays of a captured step: milliseconds of one, and if ``compared``, how they end against eager steps."""

    def eager() -> dict[str, torch.Tensor]:
        state, model = start(package, batch, flavor, cell_filter)
        return fields(run_steps(package, state, model, flavor, REPLAYS))

    def replayed() -> tuple[dict[str, torch.Tensor], float]:
        graph, static = capture(package, batch, flavor, cell_filter)
        _wait(batch)
        begin = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        _wait(batch)
        return static, 1e3 * (time.perf_counter() - begin) / REPLAYS

    try:
        found, milliseconds_each = replayed()
        first, second = (eager(), eager()) if compared else (None, None)
    except RuntimeError as error:
        return {"error": f"capture failed: {str(error).splitlines()[0]}"}
    if first is None or second is None:
        return {"ms": milliseconds_each}
    return {
        "ms": milliseconds_each,
        "from_eager": _distance(found, first),
        "eager_from_itself": _distance(first, second),
        "deterministic": _deterministic(lambda: _equal(replayed()[0], eager())),
    }


def capture(
    package: Any, batch: Any, flavor: str, cell_filter: str | None
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


def _deterministic(equal: Callable[[], bool]) -> str:
    torch.use_deterministic_algorithms(True)
    try:
        return "equal" if equal() else "differ"
    except RuntimeError as error:
        return f"failed: {str(error).splitlines()[0]}"
    finally:
        torch.use_deterministic_algorithms(False)


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def _distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest relative distance of positions, cells and energies."""
    names = ("positions", "cell", "energy")
    return max(((a[name] - b[name]).abs().amax() / b[name].abs().amax()).item() for name in names)


def _in_copy(copy: PackageCopy, function: Callable[[Any], Any]) -> Any:
    with copy.active() as package:
        return function(package)


def _wait(batch: Any) -> None:
    if batch.positions.device.type == "cuda":
        torch.cuda.synchronize()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="folder that holds the base's torch_sim")
    parser.add_argument("patched", help="folder that holds the patched torch_sim")
    parser.add_argument("--json", help="write the numbers here too")
    parser.add_argument("--systems", type=int, default=100)
    parser.add_argument("--atoms", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="small and short: does it run?")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
