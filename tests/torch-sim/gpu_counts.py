"""Host syncs and milliseconds per FIRE step on a GPU, base against patched.

    python gpu_counts.py BASE_TREE PATCHED_TREE [--json FILE] [--systems 100] [--atoms 32] [--device cuda]

Each tree's torch_sim runs in a process of its own: 100 systems of 32 atoms, float64, a harmonic model. Host syncs are
those of torch's sync-debug mode ("warn"), by source line; the first step, a later one, and one with a system freshly
swapped in are counted. Times are medians over blocks of steps without the debug mode, with one synchronization around
each block. The end positions of a run are compared, also between two runs of the base, whose scatter_add_ sums in
another order each time. Needs torch and what torch_sim imports; nothing of this project.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAVORS = ("vv_fire", "ase_fire")
FILTERS = (None, "unit", "frechet")
SEEN = "called a synchronizing CUDA operation"


def main() -> int:
    """Run both trees, print the table, write the JSON; exit code 1 if a tree's process failed."""
    args = _arguments()
    if args.worker:
        Path(args.worker).write_text(json.dumps(measure_tree(args)), encoding="utf-8")
        return 0
    results = {"base": _in_process(args, args.base), "patched": _in_process(args, args.patched)}
    _compare_ends(results)
    report = {"config": {"systems": args.systems, "atoms": args.atoms}, **results}
    print(table(results))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def table(results: dict[str, Any]) -> str:
    """The printed report."""
    lines = [f"{results['base']['card']}, torch {results['base']['torch']}", ""]
    lines.append(f"{'':24}{'host syncs of a step':^42}{'ms per step':^20}  end positions, largest distance")
    lines.append(
        f"{'flavor':10}{'filter':14}{'first':^14}{'later':^14}{'some NaN':^14}{'base':>9}{'patched':>9}"
        f"{'base/base':>14}{'base/patched':>14}"
    )
    for key, base in results["base"]["cases"].items():
        patched = results["patched"]["cases"][key]
        flavor, cell_filter = key.split("/")
        row = f"{flavor:10}{cell_filter:14}"
        for kind in ("first", "later", "some_nan"):
            row += f"{base['syncs'][kind]['total']:5d} -> {patched['syncs'][kind]['total']:<5d}"
        row += f"{base['ms']:9.2f}{patched['ms']:9.2f}"
        row += f"{base['moved_from_itself']:14.1e}{patched['moved_from_base']:14.1e}"
        lines.append(row)
    lines.append("\nleft in a later step of the patched tree:")
    for key, case in results["patched"]["cases"].items():
        lines.append(f"  {key}")
        lines += [f"    {n:3d}  {site}" for site, n in case["syncs"]["later"]["sites"].items()]
    return "\n".join(lines)


def _compare_ends(results: dict[str, Any]) -> None:
    """Replace the positions by the distances between them, in place."""
    for key, base in results["base"]["cases"].items():
        patched = results["patched"]["cases"][key]
        patched["moved_from_base"] = _distance(base["ends"][0], patched["ends"][0])
        for case in (base, patched):
            case["moved_from_itself"] = _distance(*case.pop("ends"))


def _distance(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="folder that holds the base's torch_sim")
    parser.add_argument("patched", help="folder that holds the patched torch_sim")
    parser.add_argument("--json", help="write the numbers here too")
    parser.add_argument("--systems", type=int, default=100)
    parser.add_argument("--atoms", type=int, default=32)
    parser.add_argument("--device", default="cuda", help="cpu: a dry run, which counts nothing")
    parser.add_argument("--seconds", type=float, default=4.0, help="time to spend on each timing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_process(args: argparse.Namespace, tree: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        options = [f"--systems={args.systems}", f"--atoms={args.atoms}", f"--device={args.device}"]
        command = [sys.executable, __file__, tree, tree, *options, f"--seconds={args.seconds}", f"--worker={out}"]
        paths = [str(Path(tree).resolve()), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))})
        return json.loads(out.read_text(encoding="utf-8"))


# ------------------------------------------------------------------ in the process of one tree
def measure_tree(args: argparse.Namespace) -> dict[str, Any]:
    """Counts, times and end positions of the torch_sim that the process imports."""
    import torch
    import torch_sim

    assert Path(torch_sim.__file__).resolve().is_relative_to(Path(args.base).resolve()), torch_sim.__file__
    cuda = args.device == "cuda"
    cases = {}
    for flavor in FLAVORS:
        for cell_filter in FILTERS:
            with contextlib.redirect_stdout(sys.stderr):
                cases[f"{flavor}/{cell_filter or 'none'}"] = _measure_case(args, flavor, cell_filter)
            print(f"{args.base}: {flavor} {cell_filter or 'none'} done", file=sys.stderr, flush=True)
    card = torch.cuda.get_device_name() if cuda else "CPU (dry run)"
    return {"torch": torch.__version__, "card": card, "torch_sim": torch_sim.__version__, "cases": cases}


def _measure_case(args: argparse.Namespace, flavor: str, cell_filter: str | None) -> dict[str, Any]:
    import torch
    import torch_sim
    from torchsim_batches import start, swap_in

    device = torch.device(args.device)
    batch = _equal_systems(args.systems, args.atoms).to(device)
    slow = cell_filter == "frechet"  # its matrix logarithm goes through the host

    def steps(state: Any, model: Any, number: int) -> Any:
        for _ in range(number):
            state = torch_sim.fire_step(state, model, fire_flavor=flavor)
        return state

    def end() -> list[float]:
        state, model = start(torch_sim, batch, flavor, cell_filter)
        return steps(state, model, 8 if slow else 30).positions.flatten().tolist()

    ends = end(), end()  # also the warm-up
    state, model = start(torch_sim, batch, flavor, cell_filter)
    syncs = {}
    with _host_syncs(device) as syncs["first"]:
        state = steps(state, model, 1)
    state = steps(state, model, 4)
    with _host_syncs(device) as syncs["later"]:
        state = steps(state, model, 1)
    swap_in(state, [args.systems // 2])
    with _host_syncs(device) as syncs["some_nan"]:
        state = steps(state, model, 1)
    counts = {kind: {"total": sum(sites.values()), "sites": dict(sites.most_common())} for kind, sites in syncs.items()}
    milliseconds = _milliseconds(
        lambda number: steps(*start(torch_sim, batch, flavor, cell_filter), number), args, block=4 if slow else 20
    )
    return {"syncs": counts, "ms": milliseconds, "ends": ends}


def _equal_systems(n_systems: int, n_atoms: int) -> Any:
    import torch
    from torchsim_batches import Batch

    generator = torch.Generator().manual_seed(0)
    total = n_systems * n_atoms

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rest, cell = 2.0 * normal(total, 3), 5.0 * torch.eye(3, dtype=torch.float64) + 0.2 * normal(n_systems, 3, 3)
    system_idx = torch.arange(n_systems).repeat_interleave(n_atoms)
    return Batch(
        positions=rest + 0.3 * normal(total, 3),
        rest=rest,
        masses=torch.full((total,), 10.0, dtype=torch.float64),
        stiffness=(0.1 + 5.0 * torch.rand(n_systems, generator=generator, dtype=torch.float64))[system_idx],
        cell=cell,
        rest_cell=cell + 0.05 * normal(n_systems, 3, 3),
        system_idx=system_idx,
    )


def _milliseconds(run: Any, args: argparse.Namespace, block: int) -> float:
    """Median over blocks of what one step costs; a block's start is made anew, outside its time."""
    import torch

    def wait() -> None:
        if args.device == "cuda":
            torch.cuda.synchronize()

    def seconds(number: int) -> float:
        wait()
        begin = time.perf_counter()
        run(number)
        wait()
        return time.perf_counter() - begin

    seconds(2)
    found: list[float] = []
    until = time.perf_counter() + args.seconds
    while len(found) < 3 or (time.perf_counter() < until and len(found) < 40):
        found.append((seconds(block + 1) - seconds(1)) / block)  # the difference holds no fire_init
    return 1e3 * statistics.median(found)


@contextlib.contextmanager
def _host_syncs(device: Any) -> Iterator[collections.Counter[str]]:
    """Counts of the block's host syncs by source line, innermost frame outside torch."""
    import torch

    sites: collections.Counter[str] = collections.Counter()
    if device.type != "cuda":
        yield sites
        return
    torch_folder = str(Path(torch.__file__).parent)

    def site() -> str:
        frame = sys._getframe(2)
        while frame and (
            frame.f_code.co_filename.startswith(torch_folder) or frame.f_code.co_filename == warnings.__file__
        ):
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "?"

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if SEEN in str(message):
            sites[site()] += 1

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")  # its own first warning is not counted: another text
        try:
            yield sites
        finally:
            torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    sys.exit(main())
