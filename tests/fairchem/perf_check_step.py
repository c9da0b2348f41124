"""Upstream's perf_check training, base and patched: waits of the host per step with their call sites, and ms/step.

    python perf_check_step.py --base <source root> --patched <source root> --configs <tree>/configs --json FILE
                              [--device cuda|cpu] [--ranks N] [--warmup N] [--timed N] [--counted N] [--rounds N]
                              [hydra overrides …]

Runs ``uma/benchmark/perf_check/training_inner.yaml`` on the corpus that upstream's own generator makes (five
datasets, about 1 MB, no network), each tree in processes of its own, alternating. A run has warm-up steps, timed
steps without any instrument, and counted steps. On ``--device cpu`` the waits are not counted. On several ranks one
more step follows, whose collectives are counted.
Hydra overrides go to the job as they are, e.g. ``num_experts=4`` or ``++optimizer.fused=true``.

Needs, beside torch: ase, ase-db-backends, e3nn, hydra-core, lmdb, monty, numba, orjson, tabulate, torchtnt and the
pkg_resources of setuptools < 81. ray, clusterscope, wandb and the NVIDIA graph kernels are stood in for.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "scripts")]

CONFIG = "uma/benchmark/perf_check/training_inner.yaml"
BENCHMARK = "fairchem.core.components.benchmark"


# ------------------------------------------------------------------------------------------- one rank of one tree
def train(options: argparse.Namespace) -> None:
    """Run the job in this process; rank 0 writes its report to ``options.json``."""
    use_tree(options.tree)
    import torch
    from fairchem.core.common import distutils
    from fairchem.core.components.benchmark.fake_dataset import create_fake_benchmark_dataset
    from torchtnt.framework.train import train as train_steps

    run_dir = options.json.parent / options.json.stem
    rank = int(os.environ["RANK"])
    if rank == 0:
        create_fake_benchmark_dataset(str(options.corpus))
    steps = options.warmup + options.timed + options.counted + (options.ranks > 1)
    ends = [f"max_steps={steps}", "max_epochs=null"]
    cfg = job_config(options, options.corpus, run_dir, options.ranks, *ends, *options.overrides)
    shared = run_dir / "run"
    shared.mkdir(parents=True, exist_ok=True)
    join_group(options, options.ranks, shared)
    distutils.synchronize()  # the corpus is there
    runner = make_runner(cfg)
    watch = make_watch(options)
    # the runner's fit() without its evaluation of every epoch
    train_steps(runner.train_eval_unit, runner.train_dataloader, max_steps=steps, callbacks=[*runner.callbacks, watch])
    if rank == 0:
        report = watch.report() | {
            "tree": str(options.tree),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "ranks": options.ranks,
            "overrides": options.overrides,
            "losses": runner.callbacks[0].losses,
            "grad_norms": runner.callbacks[0].grad_norms,
            "peak_memory_mb": runner.callbacks[0].peak_memory_mb,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    distutils.cleanup()


def job_config(options: argparse.Namespace, corpus: Path, results: Path, ranks: int, *more: str) -> Any:
    """The job's configuration; ``more``: overrides after those that every run here needs."""
    from fairchem.core._cli import get_hydra_config_from_yaml

    overrides = [
        f"datasets.data_root_dir={corpus}",
        f"job.device_type={options.device.upper()}",
        "++job.seed=42",
        f"++job.run_dir={results}",
        "++job.timestamp_id=run",
        f"++job.scheduler.ranks_per_node={ranks}",
        f"runner.callbacks.0.benchmark_results_path={results}/results.pkl",
        *more,
    ]
    return get_hydra_config_from_yaml(str(options.configs / CONFIG), overrides)


def join_group(options: argparse.Namespace, ranks: int, shared: Path) -> None:
    """Join the process group of the ranks, which meet in a folder."""
    from fairchem.core.common import distutils

    distutils.setup(
        {
            "world_size": ranks,
            "distributed_backend": "nccl" if options.device == "cuda" else "gloo",
            "submit": False,
            "cpu": options.device == "cpu",
            "init_method": "file",
            "shared_file_dir": str(shared),
        }
    )


def make_runner(cfg: Any) -> Any:
    """The job's runner, seeded as the job's launcher does."""
    from hydra.utils import instantiate

    seed_everything(cfg.job.seed)
    runner = instantiate(cfg.runner)
    runner.job_config = cfg.job
    return runner


def use_tree(source_root: Path) -> None:
    """Make the tree's fairchem the one that imports find, without the package code that the job does not need."""
    from uma import light_modules

    sys.modules.update(light_modules(source_root, BENCHMARK))
    sys.path.insert(0, str(source_root))
    stand_in_for_cluster()


def stand_in_for_cluster() -> None:
    """The job asks clusterscope where it runs: on no cluster."""
    from uma import stand_in_for

    stand_in_for("clusterscope", cluster=_no_cluster)


def _no_cluster() -> str:
    raise RuntimeError("not on a cluster")


def seed_everything(seed: int) -> None:
    """As the job's launcher does."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_watch(options: argparse.Namespace) -> Any:
    """The torchtnt callback that times the timed steps and counts the waits of the counted ones."""
    import torch
    from torchtnt.framework.callback import Callback
    from uma import collectives_in

    on_gpu = options.device == "cuda"

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    class Watch(Callback):
        def __init__(self) -> None:
            self.step = 0
            self.window: list[float] = []
            self.step_ms: list[float] = []
            self.waits: list[dict[str, Any]] = []
            self.collectives: list[int] = []
            self._block: Any = None
            self._profile: Any = None

        def on_train_step_start(self, state: Any, unit: Any) -> None:
            if self.step == options.warmup:
                self.window.append(now())
            self._started = time.perf_counter()
            counted = self.step - options.warmup - options.timed
            if counted >= options.counted:
                self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                self._profile.start()
            elif on_gpu and counted >= 0:
                from nosync.hostsync import host_syncs

                self._block = host_syncs("cuda", profile=True)
                self._syncs = self._block.__enter__()

        def on_train_step_end(self, state: Any, unit: Any) -> None:
            if self._profile is not None:
                self._profile.stop()
                self.collectives.append(collectives_in(self._profile))
            elif self._block is not None:
                self._block.__exit__(None, None, None)
                self.waits.append(waits_of(self._syncs, options.tree))
                self._block = None
            elif self.step >= options.warmup:
                self.step_ms.append(1000 * (time.perf_counter() - self._started))
            self.step += 1
            if self.step == options.warmup + options.timed:
                self.window.append(now())

        def report(self) -> dict[str, Any]:
            timed = self.step_ms[: options.timed]
            return {
                "ms_per_step_median": statistics.median(timed),
                "ms_per_step_mean_of_window": 1000 * (self.window[1] - self.window[0]) / options.timed,
                "step_ms": timed,
                "waits": self.waits,
                "collectives": self.collectives,
            }

    return Watch()


def waits_of(syncs: Any, tree: Path) -> dict[str, Any]:
    """One counted step: the waits by call site, largest first."""
    from uma import sites

    return {
        "count": syncs.count,
        "cross_checks": syncs.cross_checks,
        "pageable_copies": syncs.pageable_copies,
        "blocked_ms": sum(syncs.blocked_ms.values()),
        "sites": [[*key, count] for key, count in sites(syncs, tree).items()],
    }


# ------------------------------------------------------------------------------------------------- all the trees
def run_tree(options: argparse.Namespace, tree: Path, report: Path) -> dict[str, Any]:
    """One run of one tree: its report."""
    argv = [str(Path(__file__).resolve()), "--tree", str(tree.resolve()), "--json", str(report)]
    for name in ("configs", "corpus", "device", "ranks", "warmup", "timed", "counted"):
        argv += [f"--{name}", str(getattr(options, name))]
    start_ranks([*argv, *options.overrides], options.ranks, report.with_suffix(""))
    return json.loads(report.read_text())


def start_ranks(argv: list[str], ranks: int, logs: Path, shown: bool = False) -> None:
    """Start a script as the ranks of a group and wait for them.

    Args:
        argv: The script and its arguments.
        logs: Their output goes to files of this name with ``.rank<number>.log``.
        shown: Rank 0 writes to this process' output instead.

    Raises:
        SystemExit: a rank failed; its log is printed.
    """
    started: list[tuple[subprocess.Popen[bytes], Path]] = []
    for rank in range(ranks):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        log = logs.with_suffix(f".rank{rank}.log")
        with log.open("w") as out:
            output = {} if shown and rank == 0 else {"stdout": out, "stderr": subprocess.STDOUT}
            process = subprocess.Popen([sys.executable, *argv], env=environment, **output)
        started.append((process, log))
    ranks_left = [process for process, _ in started]
    while ranks_left and not any(process.returncode for process, _ in started):
        time.sleep(0.1)
        ranks_left = [process for process in ranks_left if process.poll() is None]
    # one that failed leaves the others waiting for it
    if failed := [log for process, log in started if process.returncode]:
        for process in ranks_left:
            process.kill()
        sys.exit(f"{shlex.join(argv)}: a rank failed\n" + failed[0].read_text()[-6000:])


def print_report(which: str, reports: list[dict[str, Any]]) -> None:
    """A table of one tree's runs."""
    for report in reports:
        print(
            f"{which}: {report['ms_per_step_median']:.2f} ms/step median, "
            f"{report['ms_per_step_mean_of_window']:.2f} mean, loss of the first steps "
            + ", ".join(f"{float(loss):.6g}" for loss in report["losses"][:3])
        )
    for step in reports[0]["waits"]:
        print(
            f"  waits of a step: {step['count']}, other counters {step['cross_checks']}, "
            f"pageable copies {step['pageable_copies']}, host blocked {step['blocked_ms']:.1f} ms"
        )
    for site, operator, kind, count in reports[0]["waits"][-1]["sites"] if reports[0]["waits"] else []:
        print(f"    {count:4d}  {site}  {operator} [{kind}]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, help="source root of the base tree")
    parser.add_argument("--patched", type=Path, help="source root of the patched tree")
    parser.add_argument("--configs", type=Path, required=True, help="the configs folder of a git tree")
    parser.add_argument("--corpus", type=Path, help="where the corpus is or goes (default: a temporary folder)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--timed", type=int, default=40)
    parser.add_argument("--counted", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each tree, alternating")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tree", type=Path, help=argparse.SUPPRESS)
    options, options.overrides = parser.parse_known_args()
    for name in ("configs", "json", "corpus", "tree"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).resolve())
    if options.tree is not None:
        train(options)
        return 0
    trees = {which: path for which in ("base", "patched") if (path := getattr(options, which)) is not None}
    reports: dict[str, list[dict[str, Any]]] = {which: [] for which in trees}
    with tempfile.TemporaryDirectory() as folder:
        options.corpus = options.corpus or Path(folder, "corpus")
        for number in range(options.rounds):
            for which, tree in trees.items():
                reports[which].append(run_tree(options, tree, Path(folder, f"{which}{number}.json")))
                options.json.write_text(json.dumps(reports, indent=1) + "\n")
    for which, of_tree in reports.items():
        print_report(which, of_tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
