"""What the readback is worth on one GPU: host waits and wall time per step, base and patched, in one process.

    python recipe_ab.py --base TREE/src --patched TREE/src --out results.json

Both loops run the same compiled model, the same optimizer and the same data loader, one after the other (base,
patched, base, patched), each from the same weights and optimizer state. The data is synthetic, written to disk in
the layout of DrivAerML volume, and read by the recipe's own datapipe (reader, transforms, prefetch).

1. Time: the wall time per step from step 10 to the end of the epoch, with every step's logged losses and metrics
   compared bitwise over all four runs.
2. Waits: a few steps of each loop with sync-debug on "warn" and every event, stream and device wait counted by
   torch's own trace, per step; and the patched loop once more with sync-debug on "error".

``--data memory`` runs on collated batches in host memory instead of the datapipe: for a first look on a machine with
no GPU, where the transforms need warp's compiler for the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FIRST_CHECKED, CHECKED_STEPS = 2, 6


# ---- the recipe ----------------------------------------


def load_loop(name: str, source: Path) -> ModuleType:
    """A tree's ``train`` module under a name of its own; the recipe's other modules are the same in both trees."""
    spec = importlib.util.spec_from_file_location(f"train_{name}", source / "train.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def compose(source: Path, model: str, arguments: argparse.Namespace) -> Any:
    """``conf/train.yaml`` with the model's and the dataset's volume configuration."""
    from hydra import compose, initialize_config_dir

    overrides = [
        f"model={model}_volume", "dataset=drivaer_ml_volume", "run_id=ab", "train_split=null", "val_split=null",
        f"sampling_resolution={arguments.points}", f"precision={arguments.precision}",
        f"compile={str(arguments.compile).lower()}", f"dataloader.pin_memory={str(gpu()).lower()}", *arguments.override,
    ]  # fmt: skip
    with initialize_config_dir(config_dir=str(source.parent / "conf"), version_base=None):
        return compose(config_name="train", overrides=overrides)


def write_samples(folder: Path, n_samples: int, n_points: int, n_faces: int) -> None:
    """Synthetic DrivAerML volume samples: a point cloud with velocity, pressure and viscosity, and a closed box."""
    import torch
    from physicsnemo.mesh import DomainMesh, Mesh

    generator = torch.Generator().manual_seed(0)
    box = _box(n_faces)
    for i in range(n_samples):
        run = folder / f"run_{i:03d}"
        run.mkdir(parents=True)
        points = torch.rand(n_points, 3, generator=generator) * torch.tensor([8.0, 4.0, 3.0])
        points -= torch.tensor([4.0, 2.0, 0.0])
        interior = Mesh(points=points, point_data={
            "UMeanTrim": torch.randn(n_points, 3, generator=generator) * 10 + torch.tensor([30.0, 0.0, 0.0]),
            "pMeanTrim": torch.randn(n_points, generator=generator) * 100,
            "nutMeanTrim": torch.rand(n_points, generator=generator) * 1e-3,
        })  # fmt: skip
        constants = {
            "U_inf": torch.tensor([38.889, 0.0, 0.0]), "p_inf": torch.tensor(0.0), "rho_inf": torch.tensor(1.0),
            "nu_inf": torch.tensor(1.5e-5), "T_inf": torch.tensor(288.15), "L_ref": torch.tensor(5.0),
            "TimeValue": torch.tensor(0.0),
        }  # fmt: skip
        DomainMesh(interior=interior, boundaries={}, global_data=constants).save(run / f"domain_{i:03d}.pdmsh")
        box.save(run / f"drivaer_{i:03d}_single_solid.stl.pmsh")


def _box(n_faces: int) -> Any:
    """A closed ellipsoid of about ``n_faces`` triangles."""
    import torch
    from physicsnemo.mesh import Mesh

    rows = max(4, int((n_faces / 4) ** 0.5))
    columns = 2 * rows
    polar = torch.linspace(0, torch.pi, rows + 1)[1:-1]
    around = torch.arange(columns) * (2 * torch.pi / columns)
    ring = torch.stack([
        polar.cos()[:, None].expand(-1, columns),
        polar.sin()[:, None] * around.cos(),
        polar.sin()[:, None] * around.sin(),
    ], -1).reshape(-1, 3)  # fmt: skip
    points = torch.cat([ring, torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])]) * torch.tensor([2.2, 0.9, 0.7])
    top, bottom = len(ring), len(ring) + 1
    cells = []
    for column in range(columns):
        after = (column + 1) % columns
        cells.append((top, column, after))
        last = (rows - 2) * columns
        cells.append((bottom, last + after, last + column))
        for row in range(rows - 2):
            a, b = row * columns + column, row * columns + after
            cells += [(a, a + columns, b), (b, a + columns, b + columns)]
    return Mesh(points=points + torch.tensor([0.0, 0.0, 1.0]), cells=torch.tensor(cells))


class Bench:
    """One model, its optimizer and its loader, and the two loops that run on them."""

    def __init__(self, loops: dict[str, ModuleType], source: Path, model: str, arguments: argparse.Namespace) -> None:
        import datasets
        import hydra
        import torch
        import utils
        from loss import LossCalculator
        from metrics import MetricCalculator, resolve_metrics
        from physicsnemo.distributed import DistributedManager

        self.loops, self.arguments = loops, arguments
        self.cfg = compose(source, model, arguments)
        DistributedManager.initialize()
        self.ranks = DistributedManager()
        self.device = self.ranks.device
        self.targets = {"velocity": "vector", "pressure": "scalar", "nut": "scalar"}
        utils.set_seed(0)
        if arguments.data == "pipeline":
            read = datasets.load_dataset_config
            datasets.load_dataset_config = lambda path: _with_data(read(path), arguments.folder)
            try:
                self.loader, *_ = datasets.build_dataloaders(self.cfg)
            finally:
                datasets.load_dataset_config = read
            self.loader.sampler = torch.utils.data.SequentialSampler(self.loader.dataset)  # the same order in every run
        else:
            self.loader = memory_loader(self.cfg, self.targets, arguments)
        self.model = hydra.utils.instantiate(self.cfg.model, _convert_="partial").to(self.device)
        self.optimizer = utils.build_muon_optimizer(self.model, self.cfg, compile_optimizer=self.cfg.compile)
        self.scheduler = hydra.utils.instantiate(self.cfg.training.scheduler, optimizer=self.optimizer)
        self.losses = LossCalculator(self.targets, loss_type=self.cfg.training.loss_type)
        self.metrics = MetricCalculator(self.targets, metrics=resolve_metrics(self.cfg))
        self.called = torch.compile(self.model) if self.cfg.compile else self.model
        self.parameters = sum(p.numel() for p in self.model.parameters())
        start = time.monotonic()
        self.epoch("patched", 3)
        self.warm_up = time.monotonic() - start
        self.start = [leaf.detach().clone() for leaf in self._state()]

    def _state(self) -> list[Any]:
        """Every tensor that training changes, in a fixed order."""
        import torch

        parts = getattr(self.optimizer, "optimizers", [self.optimizer])
        state = [leaf for part in parts for values in part.state.values() for leaf in values.values()]
        tensors = [leaf for leaf in state if isinstance(leaf, torch.Tensor)]
        assert len(tensors) == len(state), "the optimizer keeps numbers that this cannot put back"
        return [*self.model.parameters(), *self.model.buffers(), *tensors]

    def restore(self) -> None:
        """The weights and the optimizer's state after the warm-up, in place: nothing is compiled anew."""
        import torch

        with torch.no_grad():
            for leaf, value in zip(self._state(), self.start, strict=True):
                leaf.copy_(value)

    def epoch(
        self, name: str, n_steps: int, on_step: Callable[[int, bool], None] = lambda i, begins: None
    ) -> list[dict[str, Any]]:
        """Run the loop for ``n_steps``; returns the per-step records."""
        records: list[dict[str, Any]] = []
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(0)
        self.loops[name]._run_epoch(
            Taken(self.loader, n_steps, on_step), self.called, self.losses, self.metrics,
            SimpleNamespace(info=lambda line: None), 0, self.cfg, self.ranks, mode="train",
            output_type=self.cfg.output_type, target_config=self.targets, optimizer=self.optimizer,
            scheduler=self.scheduler, log_jsonl=records.append,
        )  # fmt: skip
        return [record for record in records if record["phase"] == "train_step"]


class Taken:
    """The first ``n_steps`` batches of a loader, over and over where it has fewer.

    Calls ``on_step(i, True)`` as step ``i`` gets its batch and ``on_step(i, False)`` as the loop asks for the next.
    """

    def __init__(self, loader: Any, n_steps: int, on_step: Callable[[int, bool], None]) -> None:
        self.loader, self.n_steps, self.on_step = loader, n_steps, on_step

    def __len__(self) -> int:
        return self.n_steps

    def __iter__(self) -> Iterator[Any]:
        endless = itertools.chain.from_iterable(itertools.repeat(self.loader))
        for i, batch in enumerate(endless):
            self.on_step(i, True)
            yield batch
            self.on_step(i, False)
            if i + 1 == self.n_steps:
                return


def _with_data(cfg: Any, folder: Path) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.merge(cfg, {"train_datadir": str(folder)})


def memory_loader(cfg: Any, targets: dict[str, str], arguments: argparse.Namespace) -> list[Any]:
    """Collated batches in pinned host memory: what the loop moves to the device itself, blocking."""
    import torch
    from collate import build_collate_fn
    from omegaconf import OmegaConf
    from physicsnemo.mesh import DomainMesh, Mesh

    collate = build_collate_fn(
        input_type="tensors", forward_kwargs_spec=OmegaConf.to_container(cfg.forward_kwargs, resolve=True),
        target_config=targets,
    )  # fmt: skip
    OmegaConf.update(cfg, "out_dim", 5, force_add=True)
    n, generator, batches = arguments.points, torch.Generator().manual_seed(0), []
    for _ in range(min(arguments.samples, 8)):
        fields = {"sdf": 1, "sdf_normals": 3, "velocity": 3, "pressure": 0, "nut": 0}
        data = {name: torch.randn(*([n, k] if k else [n]), generator=generator) for name, k in fields.items()}
        interior = Mesh(points=torch.randn(n, 3, generator=generator), point_data=data)
        domain = DomainMesh(interior=interior, boundaries={}, global_data={"U_inf": torch.tensor([30.0, 0.0, 0.0])})
        batches.append(collate([(domain, {})]))
    return batches


# ---- waits ----------------------------------------


class Waits:
    """Counts sync-debug warnings and, through torch's trace, explicit event, stream and device waits: torch's own
    counters, a second opinion on what the tests count with the detector."""

    def __init__(self) -> None:
        self.counts = {"sync_debug": 0, "event": 0, "stream": 0, "device": 0}
        self.on = False

    def listen(self) -> None:
        """Turn torch's trace on, for good."""
        import torch
        from torch.cuda import _gpu_trace

        _gpu_trace.register_callback_for_event_synchronization(lambda event: self._saw("event"))
        _gpu_trace.register_callback_for_stream_synchronization(lambda stream: self._saw("stream"))
        _gpu_trace.register_callback_for_device_synchronization(lambda: self._saw("device"))
        torch._C._activate_gpu_trace()

    def _saw(self, what: str) -> None:
        self.counts[what] += self.on

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Receive sync-debug's warnings; sync-debug is off again at the end."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *rest, **more: self._warned(str(message))
            try:
                yield
            finally:
                self.on = False
                torch.cuda.set_sync_debug_mode("default")

    def _warned(self, message: str) -> None:
        if "called a synchronizing CUDA operation" in message:
            self._saw("sync_debug")


def count_waits(bench: Bench, waits: Waits, name: str, mode: str) -> dict[str, Any]:
    """Waits of each step after the first two, and, under "warn", of the datapipe between one step and the next."""
    import torch

    per_step: list[dict[str, int]] = []
    per_load: list[dict[str, int]] = []

    def at(i: int, begins: bool) -> None:
        if i >= FIRST_CHECKED and not begins:
            per_step.append(waits.counts)
        elif i > FIRST_CHECKED:
            per_load.append(waits.counts)
        waits.counts = dict.fromkeys(waits.counts, 0)
        waits.on = i >= FIRST_CHECKED and (begins or i + 1 < CHECKED_STEPS)
        torch.cuda.set_sync_debug_mode("default" if not waits.on else mode if begins else "warn")

    bench.restore()
    error = ""
    with waits.counting():
        try:
            bench.epoch(name, CHECKED_STEPS, at)
        except RuntimeError as raised:
            error = str(raised).splitlines()[0]
    return {"loop": name, "sync_debug_mode": mode, "per_step": per_step, "per_load": per_load, "error": error}


# ---- time ----------------------------------------


def timed(bench: Bench, name: str) -> dict[str, Any]:
    """Wall time per step from ``--skip`` steps on to the end of the epoch, and every step's record."""
    import torch

    n_steps, skip = bench.arguments.steps, bench.arguments.skip
    asked: list[float] = []
    bench.restore()
    if gpu():
        torch.cuda.synchronize()
    records = bench.epoch(name, n_steps, lambda i, begins: None if begins else asked.append(time.perf_counter()))
    if gpu():
        torch.cuda.synchronize()
    wall = time.perf_counter() - asked[skip - 1]
    values = [{k: v for k, v in record.items() if k not in ("mem_gb", "step_time_s", "ts")} for record in records]
    return {
        "loop": name,
        "wall_ms_per_step": 1e3 * wall / (n_steps - skip),
        "step_time_s_mean": sum(record["step_time_s"] for record in records[skip:]) / (n_steps - skip),
        "logged": [record["global_step"] for record in records] == list(range(n_steps)),
        "values": repr(values),
    }


def account(bench: Bench, waits: Waits, result: dict[str, Any]) -> bool:
    """Put the waits of both loops into the result and print them; whether the patched loop has none."""
    result["waits"] = [count_waits(bench, waits, name, "warn") for name in ("base", "patched")]
    result["waits"].append(count_waits(bench, waits, "patched", "error"))
    for row in result["waits"]:
        seen = row["error"] or f"steps {row['per_step']}, datapipe {row['per_load']}"
        print(f"  {result['model']}: {row['loop']:8} sync-debug {row['sync_debug_mode']:6} {seen}", flush=True)
    quiet = [sum(step.values()) for row in result["waits"][1:] for step in row["per_step"]]
    return not any(quiet) and not result["waits"][2]["error"]


def run(arguments: argparse.Namespace) -> int:
    """Measure every model; prints a table and writes JSON. 0 if nothing waits and all values are equal."""
    import torch

    patched = arguments.patched.resolve()
    sys.path.insert(0, str(patched))
    if importlib.util.find_spec("s3fs") is None:
        sys.modules["s3fs"] = types.ModuleType("s3fs")  # for remote files: imported, not used
    import nondim  # noqa: F401
    import physicsnemo.datapipes  # noqa: F401 - registers what the configurations name
    import sdf  # noqa: F401

    loops = {"base": load_loop("base", arguments.base.resolve()), "patched": load_loop("patched", patched)}
    if arguments.data == "pipeline" and not arguments.folder.exists():
        write_samples(arguments.folder, arguments.samples, arguments.points * 5 // 4, arguments.faces)
    waits = Waits()
    begin, results, benches, good = time.monotonic(), [], [], True
    for model in arguments.models:
        bench = Bench(loops, patched, model, arguments)
        result: dict[str, Any] = {"model": model, "parameters": bench.parameters, "warm_up_s": bench.warm_up}
        print(f"{model}: {bench.parameters:,} parameters, warm-up {bench.warm_up:.0f} s", flush=True)
        runs = result["runs"] = []
        for name in ("base", "patched") * arguments.rounds:
            if runs and time.monotonic() - begin > arguments.budget:
                print(f"  out of time after {len(runs)} runs")
                break
            runs.append(timed(bench, name))
            print(f"  {name:8} {runs[-1]['wall_ms_per_step']:9.2f} ms per step", flush=True)
        result["bitwise_equal"] = len({row["values"] for row in runs}) == 1 and all(row["logged"] for row in runs)
        print(f"  losses and metrics of {len(runs)} runs bitwise equal, all steps logged: {result['bitwise_equal']}")
        good &= result["bitwise_equal"]
        results.append(result)
        benches.append(bench)
    if gpu():
        waits.listen()  # after the timed runs of every model: torch's trace runs Python at every event, for good
        for bench, result in zip(benches, results, strict=True):
            good &= account(bench, waits, result)
    name = torch.cuda.get_device_name() if gpu() else "cpu"
    report = {"device": name, "torch": torch.__version__, "options": vars(arguments), "models": results}
    arguments.out.write_text(json.dumps(report, indent=1, default=str) + "\n")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="the base recipe's src folder")
    parser.add_argument("--patched", type=Path, required=True, help="the patched recipe's src folder")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "drivaer-synthetic"), help="where the samples go"
    )
    parser.add_argument("--models", nargs="+", default=["transolver", "geotransolver"])
    parser.add_argument("--data", choices=["pipeline", "memory"], default="pipeline")
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--skip", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="timed runs of each loop, in turns")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds after which no further timed run starts")
    parser.add_argument("--override", nargs="*", default=[], help="more of Hydra's overrides, e.g. model.n_layers=2")
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
