"""The UMA loss of a tree, imported in seconds, and inputs for it.

``import fairchem.core`` runs package code that loads calculators, ray's serving stack and graph kernels: half a
minute that the loss does not need. `load` enters a tree's copy with empty packages in their place, so only the
modules that are asked for run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from two_trees import PackageCopy, tree_path

DATASETS = ("oc20", "omol", "omat", "odac", "omc")
# property: level, loss class, reduction, coefficient, shape of one system's or atom's target
PROPERTIES = {
    "energy": ("system", "PerAtomMAELoss", "mean", 10, ()),
    "forces": ("atom", "L2NormLoss", "per_structure", 50, (3,)),
    "stress": ("system", "MAELoss", "mean", 5, (9,)),
}
# Packages whose own code the loss does not need, and modules that are imported by name and not used.
HOLLOW = ("fairchem", "fairchem.core", "fairchem.core.units.mlip_unit")
UNUSED = ("fairchem.core.graph.radius_graph_pbc_nvidia", "fairchem.core.common.logger")


@dataclass(frozen=True)
class Uma:
    """One tree's modules: `loss`, `unit` (mlip_unit), `data` (atomic_data), `normalizer` and `distutils`."""

    loss: ModuleType
    unit: ModuleType
    data: ModuleType
    normalizer: ModuleType
    distutils: ModuleType


@functools.cache
def load(which: str) -> Uma:
    """The ``base`` or the ``patched`` tree's UMA loss."""
    return load_from(tree_path(which))


@functools.cache
def load_from(source_root: Path) -> Uma:
    """The UMA loss of the tree with this source root."""
    with LightCopy(source_root).active():
        module = importlib.import_module
        return Uma(
            loss=module("fairchem.core.modules.loss"),
            unit=module("fairchem.core.units.mlip_unit.mlip_unit"),
            data=module("fairchem.core.datasets.atomic_data"),
            normalizer=module("fairchem.core.modules.normalization.normalizer"),
            distutils=module("fairchem.core.common.distutils"),
        )


class LightCopy(PackageCopy):
    """A tree's fairchem with empty packages in place of those whose code is slow to import."""

    def __init__(self, path: Path, *more: str) -> None:
        super().__init__(path, "fairchem.core")
        self._modules = light_modules(self.path, *more)

    def forget(self, name: str) -> None:
        """Let a module be the tree's own in place of its stand-in."""
        del self._modules[name]


def light_modules(source_root: Path, *more: str) -> dict[str, ModuleType]:
    """Stand-ins for ``sys.modules``: the packages of `HOLLOW` (and ``more``) without their code, and `UNUSED`."""
    stand_in_for("ray")  # distutils imports it to shut it down
    modules: dict[str, ModuleType] = {name: ModuleType(name) for name in (*HOLLOW, *more)}
    for name, module in modules.items():
        module.__path__ = [str(source_root.joinpath(*name.split(".")))]
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    return modules | {name: _Unused(name) for name in UNUSED}


def stand_in_for(name: str, **attributes: Any) -> None:
    """Put an empty module in place of one that is imported and not used here, where it is not installed."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        module = ModuleType(name)
        module.__dict__.update(attributes)
        sys.modules[name] = module


class _Unused(ModuleType):
    """A module that lets its names be imported; none of them may be used."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


# ---------------------------------------------------------------------------------------------------------- inputs
def perf_check_tasks(uma: Uma) -> list[Any]:
    """The 15 tasks of upstream's perf_check training: energy, forces and stress of each of five datasets."""
    return [_task(uma, dataset, name) for name in PROPERTIES for dataset in DATASETS]


def _task(uma: Uma, dataset: str, name: str) -> Any:
    level, loss_class, reduction, coefficient, shape = PROPERTIES[name]
    return uma.unit.Task(
        name=f"{dataset}_{name}",
        level=level,
        property=name,
        out_spec=uma.unit.OutputSpec(dim=list(shape) or [1], dtype="float32"),
        normalizer=uma.normalizer.Normalizer(mean=0.0, rmsd=1.0 if name == "stress" else 2.783857161157615),
        datasets=[dataset],
        loss_fn=uma.loss.DDPMTLoss(getattr(uma.loss, loss_class)(), reduction=reduction, coefficient=coefficient),
    )


@dataclass(frozen=True)
class BatchSpec:
    """What a batch holds, on the CPU and of no tree; `make` gives a tree's AtomicData.

    Attributes:
        natoms: Atoms of each system.
        datasets: Dataset of each system.
        fixed: int64 [atoms], 1 where an atom does not move.
        targets: ``<dataset>_<property>`` to a tensor [systems or atoms, ...]; infinite for other datasets' systems.
        predictions: ``<dataset>_<property>`` to a tensor of the same shape.
    """

    natoms: tuple[int, ...]
    datasets: tuple[str, ...]
    fixed: torch.Tensor
    targets: Mapping[str, torch.Tensor]
    predictions: Mapping[str, torch.Tensor]

    def make(self, uma: Uma, device: torch.device | str = "cpu") -> Any:
        """The AtomicData of a tree, on the device."""
        atoms, systems, dtype = sum(self.natoms), len(self.natoms), next(iter(self.targets.values())).dtype
        batch = uma.data.AtomicData(
            pos=torch.zeros(atoms, 3, dtype=dtype),
            atomic_numbers=torch.ones(atoms, dtype=torch.long),
            cell=torch.eye(3, dtype=dtype).repeat(systems, 1, 1),
            pbc=torch.zeros(systems, 3, dtype=torch.bool),
            natoms=torch.tensor(self.natoms),
            edge_index=torch.empty(2, 0, dtype=torch.long),
            cell_offsets=torch.empty(0, 3, dtype=dtype),
            nedges=torch.zeros(systems, dtype=torch.long),
            charge=torch.zeros(systems, dtype=torch.long),
            spin=torch.zeros(systems, dtype=torch.long),
            fixed=self.fixed.clone(),
            tags=torch.zeros(atoms, dtype=torch.long),
            batch=torch.repeat_interleave(torch.arange(systems), torch.tensor(self.natoms)),
            sid=[str(i) for i in range(systems)],
        )
        batch.dataset_name = list(self.datasets)
        for name, target in self.targets.items():
            batch[name] = target.clone()
        return batch.to(device)

    def predict(self, device: torch.device | str = "cpu") -> dict[str, dict[str, torch.Tensor]]:
        """Leaf tensors that require gradients, in the nesting of a model's output."""
        return {
            name: {name.partition("_")[2]: pred.to(device).detach().clone().requires_grad_()}
            for name, pred in self.predictions.items()
        }


def batch_spec(
    generator: torch.Generator,
    natoms: tuple[int, ...],
    datasets: tuple[str, ...],
    dtype: torch.dtype = torch.float32,
    *,
    fixed: Callable[[int], bool] | None = None,
    bad: float | None = None,
) -> BatchSpec:
    """Random targets and predictions.

    Args:
        generator: Where the numbers come from.
        natoms: Atoms of each system.
        datasets: Dataset of each system.
        dtype: Of targets and predictions.
        fixed: Whether all atoms of a system (by its index) are fixed; the others' are fixed at random.
        bad: NaN or an infinity, put in some of the targets that would be valid and in one prediction.
    """

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    of_atom = torch.repeat_interleave(torch.arange(len(natoms)), torch.tensor(natoms))
    frozen = torch.rand(sum(natoms), generator=generator) < 0.3
    if fixed is not None:
        frozen |= torch.tensor([fixed(i) for i in of_atom.tolist()])
    targets, predictions = {}, {}
    for dataset in DATASETS:
        mine = torch.tensor([name == dataset for name in datasets])
        for name, (level, *_, shape) in PROPERTIES.items():
            rows = mine[of_atom] if level == "atom" else mine
            target, pred = draw(len(rows), *shape), draw(len(rows), *shape)
            if bad is not None:
                hit = torch.rand(target.shape, generator=generator) < 0.2
                target[hit] = bad
                pred.view(-1)[:1] = bad
            target[~rows] = torch.inf
            targets[f"{dataset}_{name}"], predictions[f"{dataset}_{name}"] = target, pred
    return BatchSpec(natoms, datasets, frozen.long(), targets, predictions)


def five_datasets(seed: int = 0, atoms: int = 4) -> BatchSpec:
    """A batch with two systems of every dataset; one structure has no free atoms, one has one atom."""
    generator = torch.Generator().manual_seed(seed)
    natoms = (1, *(2 + i % (atoms - 1) for i in range(2 * len(DATASETS) - 1)))
    return batch_spec(generator, natoms, DATASETS * 2, fixed=lambda i: i == 3)


def places() -> list[str]:
    """Where values are compared: the CPU, and the GPU where there is one."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits (NaN equals NaN, 0.0 differs from -0.0)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.is_floating_point():
        integer = {torch.float32: torch.int32, torch.float64: torch.int64}[a.dtype]
        a, b = a.contiguous().view(integer), b.contiguous().view(integer)
    return torch.equal(a, b)


# ----------------------------------------------------------------------------------------------------------- counts
def sites(syncs: Any, root: Path | None = None, without: tuple[str, ...] = ()) -> dict[tuple[str, str, str], int]:
    """Counted waits by (file:line, operator, kind); ``without``: parts of file names to leave out."""
    found: dict[tuple[str, str, str], int] = {}
    for event in syncs.counted:
        if any(part in event.file for part in without):
            continue
        file = event.file.removeprefix(f"{root}/") if root else event.file
        key = (f"{file}:{event.line}", event.operator + (f" <{event.node}>" if event.node else ""), str(event.kind))
        found[key] = found.get(key, 0) + event.count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def operators_of(run: Callable[[], Any]) -> int:
    """How many ATen operators a call makes, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return sum(event.count for event in profiler.key_averages() if event.key.startswith("aten::"))


def collectives_of(run: Callable[[], Any]) -> int:
    """How many collectives a call makes on this rank, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return collectives_in(profiler)


def collectives_in(profiler: Any) -> int:
    """How many collectives a finished profile saw."""
    return sum(event.name.startswith("c10d::") for event in profiler.events())


def peak_memory_of(run: Callable[[], Any]) -> int:
    """By how many bytes a call's tensors on the CPU exceed those that were there before, at most; by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))
