"""The on-the-fly neighbour graph of a tree, and batches of atoms for it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from two_trees import PackageCopy, tree_path
from uma import LightCopy, same_bits

NVIDIA = "fairchem.core.graph.radius_graph_pbc_nvidia"
Graph = dict[str, torch.Tensor]


@dataclass(frozen=True)
class GraphCode:
    """One tree's modules: `radius_graph_pbc`, `compute` and `data` (atomic_data), and the package they are of."""

    package: PackageCopy
    radius_graph_pbc: ModuleType
    compute: ModuleType
    data: ModuleType


@functools.cache
def load(which: str) -> GraphCode:
    """The ``base`` or the ``patched`` tree's graph code."""
    return load_from(tree_path(which))


@functools.cache
def load_from(source_root: Path, *, nvidia: bool = False) -> GraphCode:
    """The graph code of the tree with this source root; its NVIDIA version, slow to import, only if asked for."""
    package = LightCopy(source_root)
    if nvidia:
        package.forget(NVIDIA)
    with package.active():
        code = GraphCode(
            package=package,
            radius_graph_pbc=importlib.import_module("fairchem.core.graph.radius_graph_pbc"),
            compute=importlib.import_module("fairchem.core.graph.compute"),
            data=importlib.import_module("fairchem.core.datasets.atomic_data"),
        )
    code.radius_graph_pbc.box_size_warning.already_printed = True
    return code


# --------------------------------------------------------------------------------------------------------- systems
@dataclass(frozen=True)
class System:
    """One system: float64 positions [atoms, 3] and cell [3, 3], periodic directions."""

    pos: torch.Tensor
    cell: torch.Tensor
    pbc: tuple[bool, bool, bool]


PERIODIC, SLAB, WIRE, MOLECULE = (True,) * 3, (True, True, False), (False, True, False), (False,) * 3
KINDS = {
    "crystal": PERIODIC,
    "skewed": PERIODIC,
    "tiny": PERIODIC,
    "lattice": PERIODIC,
    "outside the cell": PERIODIC,
    "slab": SLAB,
    "wire": WIRE,
    "molecule": MOLECULE,
    "no cell": MOLECULE,
}


def random_system(generator: torch.Generator, atoms: int, kind: str, volume: float = 10.0) -> System:
    """A system of a kind in `KINDS` with about this volume in Å³ for each atom."""

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    length = (atoms * volume) ** (1 / 3)
    cell = torch.diag(length * (0.6 + 0.8 * uniform(3)))
    fractions = uniform(atoms, 3)
    if kind == "molecule":
        cell = torch.eye(3, dtype=torch.float64) * (length + 20)
        fractions = fractions * length / (length + 20)
    elif kind == "no cell":
        return System(fractions * length, torch.zeros(3, 3, dtype=torch.float64), MOLECULE)
    elif kind == "lattice":  # every distance occurs many times
        side = max(1, round(atoms ** (1 / 3)))
        axis = torch.arange(side, dtype=torch.float64)
        constant = 2 + uniform(1)
        return System(torch.cartesian_prod(axis, axis, axis) * constant, torch.eye(3) * constant * side, PERIODIC)
    elif kind == "skewed":
        cell = cell + torch.tril(3 * length * (uniform(3, 3) - 0.5), diagonal=-1)
    elif kind == "tiny":
        cell = torch.diag(1.2 + uniform(3)) + 0.2 * uniform(3, 3)
    elif kind == "outside the cell":
        fractions = 3 * fractions - 1
    elif kind == "slab":
        cell[2, 2] *= 3
        fractions[:, 2] /= 3
    return System(fractions @ cell, cell, KINDS[kind])


def five_datasets(scale: float = 1.0) -> list[System]:
    """Five systems with sizes and periodicity as in upstream's perf_check corpus (scaled): 345 atoms."""
    generator = torch.Generator().manual_seed(7)
    sizes = ((70, "crystal"), (55, "molecule"), (20, "crystal"), (150, "crystal"), (50, "crystal"))
    return [random_system(generator, max(1, round(scale * atoms)), kind) for atoms, kind in sizes]


def make_batch(
    code: GraphCode, systems: Sequence[System], dtype: torch.dtype = torch.float32, device: Any = "cpu"
) -> Any:
    """A tree's AtomicData of the systems, on the device; pos and cell in ``dtype``."""
    natoms = torch.tensor([len(system.pos) for system in systems])
    atoms, count = int(natoms.sum()), len(systems)
    zeros = torch.zeros(count, dtype=torch.long)
    batch = code.data.AtomicData(
        pos=torch.cat([system.pos for system in systems]).to(dtype),
        atomic_numbers=torch.ones(atoms, dtype=torch.long),
        cell=torch.stack([system.cell.double() for system in systems]).to(dtype),
        pbc=torch.tensor([system.pbc for system in systems]),
        natoms=natoms,
        edge_index=torch.empty(2, 0, dtype=torch.long),
        cell_offsets=torch.empty(0, 3, dtype=dtype),
        nedges=zeros,
        charge=zeros.clone(),
        spin=zeros.clone(),
        fixed=torch.zeros(atoms, dtype=torch.long),
        tags=torch.zeros(atoms, dtype=torch.long),
        batch=torch.repeat_interleave(torch.arange(count), natoms),
        sid=[""] * count,
    )
    return batch.to(device)


@dataclass(frozen=True)
class Options:
    """What `build` is asked for; see upstream's generate_graph."""

    version: int = 2
    max_neighbors: int = 30
    strictly: bool = False
    cutoff: float = 6.0


def build(code: GraphCode, batch: Any, options: Options, partition: torch.Tensor | None = None) -> Graph:
    """The graph of a batch, as the UMA model asks for it: version 2 with a host tensor of ones for pbc."""
    pbc = torch.ones(len(batch.natoms), 3, dtype=torch.bool) if options.version == 2 else batch.pbc
    return code.compute.generate_graph(
        batch, options.cutoff, options.max_neighbors, options.strictly, options.version, pbc, partition
    )


HOST_COUNTS = "edges_per_system"


def differing(old: Graph, new: Graph) -> list[str]:
    """The parts of two graphs whose bits differ; and the counts on the host, which the base lacks, if they are not
    those on the device."""
    assert old.keys() <= new.keys()
    names = [name for name in old if name != HOST_COUNTS and not same_bits(old[name].detach(), new[name].detach())]
    counts = new.get(HOST_COUNTS)
    return names + [HOST_COUNTS] * (counts is not None and counts != new["neighbors"].tolist())
