"""Upstream's perf_check training step of several trees, interleaved in one process on one device, or one a rank.

    python perf_check_ab.py --configs <tree>/configs --json FILE base=<source root> [loss=…] patched=<source root>
                            [--ranks N] [--rounds N] [--steps N] [--seconds S] [--smoke] [hydra overrides …]

Each tree gets its own copy of fairchem, model, optimizer and data loader, with the same seeds. After some first steps,
whose losses are compared, rounds of steps alternate between the trees (in turn forward and backward through the list),
each step timed by its end on the device. Then two steps are counted: waits of the host by call site, operators, and
blocked time. Peak memory is that of a tree's steps without what the other trees hold. On several ranks all is rank 0's,
and the collectives of one more step are counted.
The first tree is the reference. ``--smoke``: a small model on the CPU, to see that it starts; waits are not counted.
Needs what `perf_check_step` needs. Example of an override: ``++optimizer.fused=true``.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "scripts")]

import torch  # noqa: E402
from perf_check_step import (  # noqa: E402
    BENCHMARK,
    job_config,
    join_group,
    make_runner,
    stand_in_for_cluster,
    start_ranks,
    waits_of,
)
from uma import LightCopy, collectives_of, operators_of  # noqa: E402

SMOKE = ["num_experts=4", "backbone.sphere_channels=16", "backbone.hidden_channels=16", "backbone.edge_channels=16"]


class Job:
    """The training job of one tree: `step` runs one step in the tree's copy of fairchem."""

    def __init__(self, name: str, root: Path, options: argparse.Namespace, folder: Path) -> None:
        self.name, self.root, self.on_gpu = name, root, options.device == "cuda"
        self.copy = LightCopy(root, BENCHMARK)
        self.step_ms: list[float] = []
        self.losses: list[float] = []
        self.waits: list[dict[str, Any]] = []
        self.operators = self.collectives = 0
        self.peak_mb = 0.0
        self._number = 0
        before = self._allocated()
        with self.copy.active():
            self._build(options, folder)
        self._batches = self._endless()
        self.step()  # makes the optimizer's state
        self.losses.append(self._loss())
        self._own = self._allocated() - before

    def _build(self, options: argparse.Namespace, folder: Path) -> None:
        from fairchem.core.components.benchmark.fake_dataset import create_fake_benchmark_dataset
        from hydra.core.global_hydra import GlobalHydra

        corpus, results = folder / "corpus", folder / self.name
        results.mkdir(exist_ok=True)
        if not torch.distributed.is_initialized():
            join_group(options, options.ranks, folder)
        if torch.distributed.get_rank() == 0 and not corpus.exists():
            create_fake_benchmark_dataset(str(corpus))
        torch.distributed.barrier()
        GlobalHydra.instance().clear()
        more = SMOKE if options.smoke else []
        config = job_config(options, corpus, results, options.ranks, *more, *options.overrides)
        runner = make_runner(config)
        self.unit, self.loader = runner.train_eval_unit, runner.train_dataloader
        self._state = types.SimpleNamespace(train_state=types.SimpleNamespace(dataloader=self.loader))
        self.unit.on_train_start(self._state)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.on_gpu else 0

    def _loss(self) -> float:
        return float(self.unit.last_loss)

    def step(self) -> None:
        """One training step, with random numbers that depend on its number only."""
        with self.copy.active():
            torch.manual_seed(self._number)
            batch = next(self._batches)
            self.unit.train_step(self._state, batch)
        self.unit.train_progress.increment_step()
        self._number += 1

    def first_steps(self, count: int) -> None:
        """Steps whose losses are kept."""
        for _ in range(count):
            self.step()
            self.losses.append(self._loss())

    def timed_steps(self, count: int) -> float:
        """Milliseconds per step of a round; the device is idle before it and after it."""
        torch.distributed.barrier()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        others = self._allocated() - self._own
        started = time.perf_counter()
        for _ in range(count):
            self.step()
        if self.on_gpu:
            torch.cuda.synchronize()
            self.peak_mb = max(self.peak_mb, (torch.cuda.max_memory_allocated() - others) / 2**20)
        ms = 1000 * (time.perf_counter() - started) / count
        self.step_ms.append(ms)
        return ms

    def counted_steps(self, count: int) -> None:
        """Waits of some steps, and the operators and, on several ranks, the collectives of one."""
        from nosync.hostsync import host_syncs

        for _ in range(count if self.on_gpu else 0):
            with host_syncs("cuda", profile=True) as syncs:
                self.step()
            self.waits.append(waits_of(syncs, self.root))
        self.operators = operators_of(self.step)
        if torch.distributed.get_world_size() > 1:
            self.collectives = collectives_of(self.step)

    def report(self) -> dict[str, Any]:
        return {
            "tree": str(self.root),
            "ms_per_step_of_rounds": self.step_ms,
            "ms_per_step_median": statistics.median(self.step_ms),
            "losses": self.losses,
            "peak_memory_mb": self.peak_mb,
            "operators_of_a_step": self.operators,
            "collectives_of_a_step": self.collectives,
            "waits": self.waits,
        }


def measure(jobs: list[Job], options: argparse.Namespace, deadline: float) -> None:
    """First steps, rounds until the time is up, counted steps."""
    for job in jobs:
        job.first_steps(options.first)
        print(f"{time.monotonic():.0f} s: {job.name}: first steps done", file=sys.stderr, flush=True)
    for number in range(options.rounds):
        if number and is_over(deadline):
            break
        for job in jobs if number % 2 == 0 else jobs[::-1]:
            ms = job.timed_steps(options.steps)
            print(f"{time.monotonic():.0f} s: {job.name}: {ms:.2f} ms/step", file=sys.stderr, flush=True)
    for job in jobs:
        job.counted_steps(options.counted)


def is_over(deadline: float) -> bool:
    """What rank 0's clock says, on every rank."""
    said = [time.monotonic() > deadline]
    torch.distributed.broadcast_object_list(said, src=0)
    return said[0]


def print_table(jobs: list[Job]) -> None:
    reference = jobs[0]
    for job in jobs:
        ratios = [mine / theirs for mine, theirs in zip(job.step_ms, reference.step_ms, strict=True)]
        apart = max(abs(a - b) / abs(b) for a, b in zip(job.losses, reference.losses, strict=True))
        print(
            f"{job.name:>10}: {statistics.median(job.step_ms):8.2f} ms/step, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rounds), peak {job.peak_mb:.0f} MB, "
            f"{job.operators} operators, {job.collectives} collectives, waits {[step['count'] for step in job.waits]}, "
            f"losses of {len(job.losses)} steps apart by {apart:.2e}"
        )
        print(" " * 12 + "first losses " + ", ".join(f"{loss:.8g}" for loss in job.losses[:4]))
    for job in jobs:
        for step in job.waits[-1:]:
            print(
                f"{job.name}: {step['count']} waits, other counters {step['cross_checks']}, pageable copies "
                f"{step['pageable_copies']}, host blocked {step['blocked_ms']:.1f} ms"
            )
            for site, operator, kind, count in step["sites"]:
                print(f"    {count:4d}  {site}  {operator} [{kind}]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=Path, required=True, help="the configs folder of a git tree")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1, help="processes, one a device")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=9, help="steps whose losses are compared, and that warm up")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="steps of a round")
    parser.add_argument("--counted", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=180, help="start no round after this time")
    parser.add_argument("--smoke", action="store_true")
    options, rest = parser.parse_known_args()
    trees = {}
    options.overrides = []
    for argument in rest:
        name, _, path = argument.partition("=")
        if name.isidentifier() and Path(path, "fairchem", "core").is_dir():
            trees[name] = Path(path).resolve()
        else:
            options.overrides.append(argument)
    options.configs = options.configs.resolve()
    options.device = "cpu" if options.smoke else "cuda"
    if options.smoke:
        options.first, options.rounds, options.steps, options.counted = 1, 2, 1, 1
    if options.folder is not None:
        compare(trees, options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        argv = [str(Path(__file__).resolve()), *sys.argv[1:], "--folder", folder]
        start_ranks(argv, options.ranks, Path(folder, "log"), shown=True)
    return 0


def compare(trees: dict[str, Path], options: argparse.Namespace) -> None:
    """One rank: build each tree's job, measure, and on rank 0 report."""
    logging.disable(logging.INFO)  # the job reports each step
    deadline = time.monotonic() + options.seconds
    stand_in_for_cluster()
    jobs = [Job(name, root, options, options.folder) for name, root in trees.items()]
    measure(jobs, options, deadline)
    if torch.distributed.get_rank() == 0:
        device = "cpu" if options.smoke else torch.cuda.get_device_name()
        report = {"device": device, "torch": torch.__version__, "overrides": options.overrides}
        report |= {"ranks": options.ranks, "trees": {job.name: job.report() for job in jobs}}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
        print_table(jobs)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
