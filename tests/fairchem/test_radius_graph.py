"""The on-the-fly neighbour graph: waits of the host, and the bits of the base in the base's order."""

from __future__ import annotations

import os
import random

import graphs
import pytest
import torch
from graphs import KINDS, MOLECULE, PERIODIC, Graph, GraphCode, Options, System
from two_trees import tree_path
from uma import places

from nosync.hostsync import host_syncs, value

needs_series = pytest.mark.needs_series("radius-graph")

# What may wait: the sizes of the periodic images, of the candidate pairs and of the edges (version 2). A strict cut
# adds the largest number of neighbours and the size of what it keeps. Version 1: pbc, mixed pbc, pairs, edges, the
# largest number of neighbours, the kept edges, the edges that have a length.
WAITS = {
    "cut": (Options(max_neighbors=30), 3),
    "not cut": (Options(max_neighbors=300), 3),
    "no maximum": (Options(max_neighbors=0), 3),
    "strict": (Options(max_neighbors=30, strictly=True), 5),
    "version 1": (Options(version=1, max_neighbors=10, cutoff=4.0), 7),
    "version 1, strict": (Options(version=1, max_neighbors=10, strictly=True, cutoff=4.0), 7),
}


@pytest.fixture(scope="session")
def code() -> GraphCode:
    return graphs.load(os.environ.get("NOSYNC_TREE", "patched"))


def systems_for(options: Options) -> list[System]:
    five = graphs.five_datasets(0.3)
    return [five[0], five[2], five[4]] if options.version == 1 else five


@pytest.mark.base_only
@pytest.mark.parametrize(("options", "bound"), WAITS.values(), ids=WAITS)
def test_base_waits(code: GraphCode, device: torch.device, options: Options, bound: int) -> None:
    batch = graphs.make_batch(code, systems_for(options), device=device)
    with host_syncs() as syncs:
        graphs.build(code, batch, options)
    least = {1: 32, 2: 90}[options.version]
    assert least <= syncs.count, syncs.table()


@pytest.mark.fails_on_base
@needs_series
@pytest.mark.parametrize(("options", "bound"), WAITS.values(), ids=WAITS)
def test_waits(code: GraphCode, device: torch.device, options: Options, bound: int) -> None:
    systems = systems_for(options)
    batch = graphs.make_batch(code, systems, device=device)
    batch.pos.requires_grad_()
    with host_syncs() as syncs:
        graph = graphs.build(code, batch, options)
        (graph["edge_distance"].sum() + graph["edge_distance_vec"].sum()).backward()
    assert syncs.count == bound, syncs.table()
    base, place = graphs.load("base"), "cuda" if device.type == "cuda" else "cpu"  # the order is the place's
    expected = graphs.build(base, graphs.make_batch(base, systems, device=place), options)
    assert value(graph["edge_index"]).tolist() == expected["edge_index"].tolist()
    torch.testing.assert_close(value(graph["edge_distance"]), value(expected["edge_distance"]))


@pytest.mark.fails_on_base
@needs_series
@pytest.mark.parametrize(("version", "bound"), [(1, 8), (2, 3)])
def test_waits_with_a_node_partition(code: GraphCode, device: torch.device, version: int, bound: int) -> None:
    options = Options(version=version, max_neighbors=10, cutoff=4.0)
    batch = graphs.make_batch(code, systems_for(options), device=device)
    partition = torch.arange(0, len(batch.pos), 2).to(device)
    with host_syncs() as syncs:
        graphs.build(code, batch, options, partition)
    assert syncs.count == bound, syncs.table()


@pytest.mark.fails_on_base
@needs_series
def test_one_wait_more_where_atoms_are_in_the_same_place(code: GraphCode, device: torch.device) -> None:
    batch = graphs.make_batch(code, [IN_THE_SAME_PLACE], device=device)
    with host_syncs() as syncs:
        graphs.build(code, batch, Options())
    assert syncs.count == 4, syncs.table()


# ---------------------------------------------------------------------------------------------------------- values
def both(
    systems: list[System], options: Options, dtype: torch.dtype, place: str = "cpu", every: int | None = None
) -> tuple[Graph, Graph]:
    """The graphs of base and patched tree, on the CPU with the gradients of pos and cell."""
    found = []
    for which in ("base", "patched"):
        code = graphs.load(which)
        batch = graphs.make_batch(code, systems, dtype, place)
        batch.pos.requires_grad_()
        batch.cell.requires_grad_()
        partition = None if every is None else torch.arange(0, len(batch.pos), every, device=place)
        graph = dict(graphs.build(code, batch, options, partition))
        if place == "cpu" and len(graph["edge_distance"]):
            (graph["edge_distance"].sum() + (graph["edge_distance_vec"] ** 3).sum()).backward()
            graph |= {"grad of pos": batch.pos.grad, "grad of cell": batch.cell.grad}
        found.append(graph)
    return found[0], found[1]


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("version", [1, 2])
def test_random_batches_have_the_edges_of_the_base_in_its_order(
    version: int, dtype: torch.dtype, place: str, seed: int
) -> None:
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    families = [list(KINDS)] if version == 2 else [[k for k in KINDS if KINDS[k] == p] for p in set(KINDS.values())]
    cut = 0
    for _ in range(60):
        kinds = choose.choices(choose.choice(families), k=choose.choice((1, 2, 4, 6)))
        sizes = [choose.choice((1, 2) if kind == "tiny" else (1, 3, 8, 20)) for kind in kinds]
        systems = [graphs.random_system(generator, n, kind) for n, kind in zip(sizes, kinds, strict=True)]
        options = Options(
            version,
            max_neighbors=choose.choice((0, -1, 1, 3, 10, 30, 300)),
            strictly=choose.random() < 0.5,
            cutoff=choose.choice((2.0, 4.0, 6.0) if version == 2 else (2.0, 4.0)),
        )
        every = choose.choice((None, None, 1, 2))
        old, new = both(systems, options, dtype, place, every)
        wrong = graphs.differing(old, new)
        assert not wrong, f"{wrong} of {kinds}, {sizes}, {options}, partition {every}, NOSYNC_SEED={seed}"
        cut += options.max_neighbors > 0 and bool((old["edge_index"][1].bincount() >= options.max_neighbors).any())
    assert cut > 0


FAR = System(torch.tensor([[0.0, 0, 0], [1, 0, 0], [2500, 0, 0], [2500, 1.5, 0]]), torch.eye(3) * 3000, MOLECULE)
IN_THE_SAME_PLACE = System(
    torch.tensor([[0.3, 0.2, 0.1], [0.3, 0.2, 7.8], [3.0, 3.0, 3.0]]), torch.eye(3) * 7.7, PERIODIC
)
ALMOST = System(torch.tensor([[1.0, 1, 1], [1 + 1e-6, 1, 1], [4, 4, 4]]), torch.eye(3) * 9, PERIODIC)
ONE = System(torch.zeros(1, 3), torch.eye(3) * 20, PERIODIC)
CUBIC = System(torch.zeros(1, 3), torch.eye(3) * 2, PERIODIC)
ODD = {
    "one atom, no edges": [ONE],
    "no edges": [ONE, ONE],
    "one system without edges": [ONE, CUBIC, ONE],
    "cubic": [CUBIC, CUBIC],
    "a box too large for the grid": [FAR, CUBIC, FAR],
    "atoms in the same place": [IN_THE_SAME_PLACE, CUBIC],
    "atoms almost in the same place": [ALMOST, CUBIC],
    "many": [CUBIC, ONE] * 12,
}


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("systems", ODD.values(), ids=ODD)
def test_odd_batches_have_the_edges_of_the_base(systems: list[System], dtype: torch.dtype, place: str) -> None:
    if systems[0] is ALMOST and dtype == torch.float64:
        systems = [System(ALMOST.pos.double(), ALMOST.cell, PERIODIC), CUBIC]
    for max_neighbors in (0, 1, 5, 6, 7, 18, 30):
        for strictly in (False, True):
            options = Options(max_neighbors=max_neighbors, strictly=strictly, cutoff=4.5)
            assert not graphs.differing(*both(systems, options, dtype, place)), options


@pytest.mark.parametrize("every", [None, 2])
def test_nvidia_version_has_the_edges_of_the_base(every: int | None) -> None:
    pytest.importorskip("nvalchemiops", reason="the graph kernels of version 3 are not installed")
    systems = graphs.five_datasets(0.2)
    for options in (Options(3, 5), Options(3, 30, strictly=True), Options(3, 300)):
        found = []
        for which in ("base", "patched"):
            code = graphs.load_from(tree_path(which), nvidia=True)
            batch = graphs.make_batch(code, systems)
            partition = None if every is None else torch.arange(0, len(batch.pos), every)
            found.append(graphs.build(code, batch, options, partition))
        assert not graphs.differing(*found), options
        assert found[0]["edge_index"].shape[1] > 0


# ----------------------------------------------------------------------------------------------------- other users
def test_other_arguments_give_the_graph_of_the_base() -> None:
    """pbc absent, of all systems, of the batch; no batch index; one pbc for one system."""
    one = graphs.five_datasets(0.2)[:1]
    for pbc in (None, torch.tensor([True, True, True]), torch.tensor([[True, False, True]])):
        found = []
        for which in ("base", "patched"):
            code = graphs.load(which)
            batch = graphs.make_batch(code, one)
            batch.batch = None
            batch.pbc = batch.pbc[0]
            function = code.radius_graph_pbc.radius_graph_pbc_v2
            found.append(dict(enumerate(function(batch, 6.0, 10, pbc=pbc))))
        assert not graphs.differing(*found)


def test_mask_of_the_maximum_has_the_bits_of_the_base(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for maximum in (-1, 0, 1, 4, 7, 100):
        for strictly in (False, True):
            natoms = torch.tensor([3, 1, 6])
            index = torch.randint(0, 10, (60,), generator=generator).sort().values
            distance = torch.randint(1, 20, (60,), generator=generator) / 10  # ties
            masks = [
                graphs.load(which).radius_graph_pbc.get_max_neighbors_mask(
                    natoms, index, distance, maximum, enforce_max_strictly=strictly
                )
                for which in ("base", "patched")
            ]
            for old, new in zip(*masks, strict=True):
                assert old.dtype == new.dtype and torch.equal(old, new), (maximum, strictly, seed)


@pytest.mark.parametrize("how", ["inference mode", "compiled", "checkpoint"])
def test_graph_within(how: str) -> None:
    patched = graphs.load("patched")
    systems, options = graphs.five_datasets(0.1), Options()

    def lengths(pos: torch.Tensor) -> torch.Tensor:
        batch = graphs.make_batch(patched, systems)
        batch.pos = pos
        return graphs.build(patched, batch, options)["edge_distance"] * 2

    pos = graphs.make_batch(patched, systems).pos.requires_grad_()
    expected = lengths(pos)
    (grad,) = torch.autograd.grad(expected.sum(), pos)
    if how == "inference mode":
        with torch.inference_mode():
            assert torch.equal(lengths(pos.detach()), expected)
        return
    if how == "compiled":
        with patched.package.active():
            found = torch.compile(lengths, backend="eager")(pos)
    else:
        found = torch.utils.checkpoint.checkpoint(lengths, pos, use_reentrant=False)
    assert torch.equal(found, expected)
    assert torch.equal(torch.autograd.grad(found.sum(), pos)[0], grad)
