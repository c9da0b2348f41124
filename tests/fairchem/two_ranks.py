"""The loss on two ranks, base and patched, in two processes: over gloo on the CPU or over NCCL on two GPUs.

    python two_ranks.py --base <base source root> --patched <patched source root> [--backend nccl] [--json FILE]

Each rank computes every loss of `CASES` and a step of 15 tasks with both trees, forward and backward, and compares
the bits. Over NCCL it also counts the waits of the host. Prints a table; exit status 1 where something differs or
the patched tree waits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "scripts")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from uma import DATASETS, BatchSpec, Uma, batch_spec, load_from, perf_check_tasks, same_bits  # noqa: E402

RANKS = 2
# Which systems each rank holds. The structures have at most two atoms, see test_values.
CASES: dict[str, list[dict[str, Any]]] = {
    "both ranks have samples of every dataset": [
        {"natoms": (2, 1, 2, 2, 1), "datasets": DATASETS},
        {"natoms": (1, 2, 1, 1, 2, 2), "datasets": (*DATASETS, "omol")},
    ],
    "a rank has no sample of four datasets": [
        {"natoms": (2, 1, 2, 2, 1), "datasets": DATASETS, "fixed": lambda i: i == 1},
        {"natoms": (2, 2), "datasets": ("omc", "omc")},
    ],
    "no rank has a sample of a dataset": [
        {"natoms": (1,), "datasets": ("oc20",)},
        {"natoms": (2, 2), "datasets": ("omol", "oc20"), "fixed": lambda i: True},
    ],
}


def rank_cases(rank: int, seed: int) -> dict[str, BatchSpec]:
    """This rank's batch of each case."""
    generator = torch.Generator().manual_seed(seed + rank)
    return {name: batch_spec(generator, **ranks[rank]) for name, ranks in CASES.items()}


def reductions(uma: Uma, spec: BatchSpec, device: str) -> dict[str, torch.Tensor]:
    """Loss and gradient of each reduction, called one by one, of the omol forces (mean and sum too)."""
    results = {}
    batch = spec.make(uma, device)
    mask = torch.isfinite(batch.omol_forces).all(dim=1) & (batch.fixed == 0)
    for reduction in ("mean", "sum", "per_structure"):
        pred = spec.predict(device)["omol_forces"]["forces"]
        loss = uma.loss.DDPMTLoss(uma.loss.L2NormLoss(), reduction=reduction, coefficient=50)
        value = loss(pred, batch.omol_forces, mask, batch.natoms)
        value.backward()
        results |= {reduction: value.detach(), f"grad of {reduction}": pred.grad}
    return results


def step(uma: Uma, spec: BatchSpec, device: str) -> dict[str, torch.Tensor]:
    """Losses and gradients of a step of 15 tasks."""
    tasks = perf_check_tasks(uma)
    batch, predictions = spec.make(uma, device), spec.predict(device)
    return _step(uma, tasks, batch, predictions)


def _step(uma: Uma, tasks: list[Any], batch: Any, predictions: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    losses = uma.unit.compute_loss(tasks, predictions, batch)
    sum(losses.values()).backward()
    grads = {f"grad of {task.name}": predictions[task.name][task.property].grad for task in tasks}
    return {name: x.detach() for name, x in (losses | grads).items()}


def counted_waits(uma: Uma, spec: BatchSpec, device: str) -> dict[str, Any]:
    """Waits of the host in one step on a GPU: how many, and where."""
    from nosync.hostsync import host_syncs

    tasks = perf_check_tasks(uma)
    step(uma, spec, device)  # what is set up once per process
    batch, predictions = spec.make(uma, device), spec.predict(device)
    torch.cuda.synchronize()
    with host_syncs("cuda") as syncs:
        _step(uma, tasks, batch, predictions)
    sites = [[f"{file}:{line}", operator, count] for (file, line, operator, _), count in syncs.by_site().items()]
    return {"count": syncs.count, "cross_checks": syncs.cross_checks, "sites": sites}


def on_rank(rank: int, roots: dict[str, Path], backend: str, seed: int, folder: str) -> None:
    """What one process does; leaves ``rank<n>.json`` in the folder."""
    trees = {which: load_from(root) for which, root in roots.items()}
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    report: dict[str, Any] = {"rank": rank, "compared": 0, "different": [], "waits": {}, "all_reduces": {}}
    try:
        for name, spec in rank_cases(rank, seed).items():
            for what in (reductions, step):
                old, new = (what(trees[which], spec, device) for which in ("base", "patched"))
                report["compared"] += len(old)
                assert old.keys() == new.keys()
                for key, value in old.items():
                    if not same_bits(value.cpu(), new[key].cpu()):
                        report["different"].append(f"{name}: {key}: {value.tolist()} and {new[key].tolist()}")
        for which, uma in trees.items():
            report["all_reduces"][which] = counted_all_reduces(uma, spec, device)
            if backend == "nccl":
                report["waits"][which] = counted_waits(uma, spec, device)
    finally:
        dist.destroy_process_group()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(report))


def counted_all_reduces(uma: Uma, spec: BatchSpec, device: str) -> int:
    """All-reduces of one step."""
    seen = []
    all_reduce = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        step(uma, spec, device)
    finally:
        dist.all_reduce = all_reduce
    return len(seen)


def run(base: Path, patched: Path, backend: str, seed: int) -> list[dict[str, Any]]:
    """Start the two processes and gather their reports.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank failed.
    """
    roots = {"base": base, "patched": patched}
    start = "spawn"  # a GPU cannot be used on both sides of a fork
    if backend == "gloo":
        start = "fork"
        for root in roots.values():
            load_from(root)  # imported once, for both ranks
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(on_rank, args=(roots, backend, seed, folder), nprocs=RANKS, start_method=start)
        return [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="source root of the base tree")
    parser.add_argument("--patched", type=Path, required=True, help="source root of the patched tree")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the reports here")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    reports = run(options.base, options.patched, options.backend, options.seed)
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1) + "\n")
    good = True
    for report in reports:
        print(f"rank {report['rank']}: {report['compared']} tensors compared, {len(report['different'])} differ")
        print(f"  all-reduces a step: {report['all_reduces']}")
        for line in report["different"]:
            print("  " + line)
        for which, waits in report["waits"].items():
            print(f"  {which}: {waits['count']} waits a step, other counters {waits['cross_checks']}")
            for site, operator, count in waits["sites"]:
                print(f"    {count:4d}  {site}  {operator}")
        good &= not report["different"] and not report["waits"].get("patched", {}).get("count")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
