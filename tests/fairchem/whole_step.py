"""A whole UMA training step on a small model: the batch's copy, forward, loss, backward, clipping, optimizer, EMA.

The model, the heads and the tasks have the form of upstream's perf_check training, with fewer channels, layers and
experts. The step is upstream's own ``MLIPTrainEvalUnit.train_step``, without DDP (one process).

    python whole_step.py <source root of a tree>      prints the waits of a step and of predictions by call site
"""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from two_trees import tree_path
from uma import DATASETS, PROPERTIES, LightCopy, sites

from nosync.hostsync import host_syncs, use_backend

CHANNELS, EXPERTS = 8, 4
BACKBONE = {
    "model": "fairchem.core.models.uma.escn_moe.eSCNMDMoeBackbone",
    "moe_dropout": 0.0,
    "num_experts": EXPERTS,
    "use_composition_embedding": True,
    "sphere_channels": CHANNELS,
    "lmax": 2,
    "mmax": 2,
    "otf_graph": True,
    "max_neighbors": 30,
    "cutoff": 6.0,
    "edge_channels": CHANNELS,
    "num_distance_basis": 8,
    "regress_forces": True,
    "regress_stress": True,
    "direct_forces": False,
    "num_layers": 2,
    "hidden_channels": CHANNELS,
    "norm_type": "rms_norm_sh",
    "act_type": "gate",
    "ff_type": "spectral",
    "chg_spin_emb_type": "rand_emb",
    "cs_emb_grad": True,
    "dataset_emb_grad": True,
    "dataset_mapping": {name: name for name in DATASETS},
}
GRAPH = ("/core/graph/",)


@dataclass
class Tree:
    """One tree's modules that a step needs, imported in its own `LightCopy`."""

    copy: LightCopy
    data: types.ModuleType
    unit: types.ModuleType
    base: types.ModuleType
    loss: types.ModuleType
    normalizer: types.ModuleType


@functools.cache
def load_step(which: str | Path) -> Tree:
    """The modules of the ``base`` or ``patched`` tree, or of the tree with this source root."""
    copy = LightCopy(which if isinstance(which, Path) else tree_path(which))
    with copy.active():
        module = importlib.import_module
        return Tree(
            copy=copy,
            data=module("fairchem.core.datasets.atomic_data"),
            unit=module("fairchem.core.units.mlip_unit.mlip_unit"),
            base=module("fairchem.core.models.base"),
            loss=module("fairchem.core.modules.loss"),
            normalizer=module("fairchem.core.modules.normalization.normalizer"),
        )


# ---------------------------------------------------------------------------------------------------------- inputs
def step_tasks(tree: Tree) -> list[Any]:
    """The 15 tasks of perf_check: energy, forces and stress of five datasets."""
    tasks = []
    for name, (level, loss_class, reduction, coefficient, shape) in PROPERTIES.items():
        dim = {"energy": [1], "forces": [3], "stress": [1, *shape]}[name]
        for dataset in DATASETS:
            loss = getattr(tree.loss, loss_class)()
            tasks.append(
                tree.unit.Task(
                    name=f"{dataset}_{name}",
                    level=level,
                    property=name,
                    out_spec=tree.unit.OutputSpec(dim=dim, dtype="float32"),
                    normalizer=tree.normalizer.Normalizer(mean=0.0, rmsd=2.783857161157615),
                    datasets=[dataset],
                    loss_fn=tree.loss.DDPMTLoss(loss, reduction=reduction, coefficient=coefficient),
                )
            )
    return tasks


def samples(tree: Tree, seed: int, names: tuple[str, ...] = DATASETS * 2, edges: bool = False) -> list[Any]:
    """Random periodic systems of 1 to 6 atoms, one of each named dataset, with targets, as a dataset gives them.

    Args:
        tree: Whose AtomicData.
        seed: Of positions, elements and targets.
        names: Dataset of each system.
        edges: Give each system a graph: every ordered pair of atoms, and each atom with its own image.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i, name in enumerate(names):
        atoms = 1 + i % 6
        edge_index, offsets = _all_pairs(atoms) if edges else _no_pairs()
        sample = atomic_data(
            tree, name,
            pos=4 * torch.rand(atoms, 3, generator=generator),
            atomic_numbers=torch.randint(1, 19, (atoms,), generator=generator),
            cell=5 * torch.eye(3)[None] + 0.3 * torch.rand(1, 3, 3, generator=generator),
            edge_index=edge_index,
            cell_offsets=offsets,
            charge=torch.tensor([i % 2]),
            spin=torch.tensor([i % 3]),
            fixed=(torch.rand(atoms, generator=generator) < 0.2).long(),
            sid=str(i),
        )  # fmt: skip
        for target in ("energy", "forces", "stress"):
            shape = sample[f"{name}_{target}"].shape
            sample[f"{name}_{target}"] = torch.randn(shape, generator=generator)
        made.append(sample)
    return made


def atomic_data(tree: Tree, name: str, **fields: Any) -> Any:
    """A dataset's AtomicData of one system, with the targets that the collater asks for, all 0.

    Args:
        tree: Whose AtomicData.
        name: The dataset.
        fields: Positions, elements and cell at least; the system is periodic, without edges, charge, spin and fixed
            atoms where they do not say otherwise.
    """
    atoms = len(fields["pos"])
    edge_index, offsets = _no_pairs()
    others = {
        "pbc": torch.ones(1, 3, dtype=torch.bool),
        "natoms": torch.tensor([atoms]),
        "edge_index": edge_index,
        "cell_offsets": offsets,
        "charge": torch.tensor([0]),
        "spin": torch.tensor([0]),
        "fixed": torch.zeros(atoms, dtype=torch.long),
        "tags": torch.zeros(atoms, dtype=torch.long),
        "sid": name,
    }
    given = others | fields
    made = tree.data.AtomicData(nedges=torch.tensor([given["edge_index"].shape[1]]), **given)
    made.dataset = made.dataset_name = name
    for target, shape in (("energy", (1,)), ("forces", (atoms, 3)), ("stress", (1, 9))):
        made[f"{name}_{target}"] = torch.zeros(shape)
    return made


def _no_pairs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(2, 0, dtype=torch.long), torch.empty(0, 3)


def _all_pairs(atoms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges [2, edges] sorted by target, and cell offsets [edges, 3]: 1 for an atom's own image, 0 for pairs."""
    target, source = torch.cartesian_prod(torch.arange(atoms), torch.arange(atoms)).unbind(1)
    return torch.stack([source, target]), (source == target).float()[:, None].expand(-1, 3).contiguous()


def collate(tree: Tree, tasks: list[Any], made: list[Any]) -> Any:
    """The batch that upstream's collater makes, on the CPU."""
    with tree.copy.active():
        return tree.unit.mt_collater_adapter(tasks, [])(made)


# ------------------------------------------------------------------------------------------------------------ step
def make_unit(tree: Tree, tasks: list[Any], seed: int = 0, **options: Any) -> Any:
    """The training unit with a small random model, on the device that `device_type` names.

    Args:
        tree: Whose code.
        tasks: From `step_tasks`.
        seed: Of the weights.
        options: Of the backbone, in place of `BACKBONE`'s; ``print_every``, ``head`` and ``dataset_names`` too.
    """
    print_every = options.pop("print_every", 10)
    wrapper = options.pop("head", "DatasetSpecificSingleHeadWrapper")
    head = {
        "module": f"fairchem.core.models.uma.escn_moe.{wrapper}",
        "head_cls": "fairchem.core.models.uma.escn_md.MLP_EFS_Head",
        "head_kwargs": {"wrap_property": False},
        "dataset_names": list(DATASETS),
    }
    with tree.copy.active(), mock.patch.object(tree.unit, "prepare_module", lambda module, **_: module):
        torch.manual_seed(seed)
        model = tree.base.HydraModel(backbone=BACKBONE | options, heads={"efs": head}, pass_through_head_outputs=True)
        unit = tree.unit.MLIPTrainEvalUnit(
            job_config=types.SimpleNamespace(debug=True, logger=None),
            model=model,
            optimizer_fn=_adamw,
            cosine_lr_scheduler_fn=None,
            tasks=tasks,
            print_every=print_every,
            clip_grad_norm=100,
        )
    unit.model.train()
    unit.scheduler = types.SimpleNamespace(step=lambda: None, get_lr=lambda: [0.0])
    unit.previous_wall_time = 0.0
    return unit


_adamw = functools.partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.0)
STATE = types.SimpleNamespace(train_state=types.SimpleNamespace(dataloader=range(10)))


@contextmanager
def device_type(device: torch.device | str) -> Iterator[None]:
    """Make upstream's ``get_device_for_local_rank()`` name this device."""
    before = os.environ.get("CURRRENT_DEVICE_TYPE")
    os.environ["CURRRENT_DEVICE_TYPE"] = torch.device(device).type
    try:
        yield
    finally:
        if before is None:
            del os.environ["CURRRENT_DEVICE_TYPE"]
        else:
            os.environ["CURRRENT_DEVICE_TYPE"] = before


def train_step(tree: Tree, unit: Any, batch: Any) -> None:
    """One ``train_step``, and the count of steps that torchtnt keeps."""
    with tree.copy.active():
        unit.train_step(STATE, batch)
    unit.train_progress.increment_step()


def pinned(batch: Any) -> Any:
    """What a DataLoader with ``pin_memory=True`` hands out."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)


def third_step(tree: Tree, device: torch.device) -> tuple[Any, Any, list[Any]]:
    """The waits of the third step, whose batch a DataLoader has pinned; the unit and its tasks."""
    with device_type(device):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks)
        for number in range(3):
            batch = pinned(collate(tree, tasks, samples(tree, number)))
            with host_syncs() as syncs:
                train_step(tree, unit, batch)
    return syncs, unit, tasks


def predict(tree: Tree, unit: Any, batch: Any, device: torch.device) -> Any:
    """What the unit's model gives for a batch on the CPU, copied to the device as upstream's predictor does."""
    as_the_predictor = {"non_blocking": True} if hasattr(batch, "pin_memory") else {}
    with tree.copy.active():
        return unit.model(batch.to(device, **as_the_predictor))


def main(root: Path) -> None:
    tree = load_step(root)
    with use_backend("virtual") as device, device_type(device):
        step, unit, tasks = third_step(tree, device)
        show("a training step, ten systems", step, root)
        unit.model.eval().requires_grad_(False)
        for names in (DATASETS * 2, DATASETS[:1]):
            batch = collate(tree, tasks, samples(tree, 1, names))
            with host_syncs() as prediction:
                predict(tree, unit, batch, device)
            show(f"a prediction of {len(names)} system(s), with the copy of the batch", prediction, root)


def show(what: str, syncs: Any, root: Path) -> None:
    """Print the waits by call site, those of the graph builder as a sum."""
    outside = sites(syncs, root, without=GRAPH)
    print(f"{what}: {syncs.count} waits, {syncs.count - sum(outside.values())} of them in the graph builder")
    for (site, operator, kind), count in outside.items():
        print(f"{count:4d}  {site}  {operator} [{kind}]")


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]).resolve())
