"""A whole UMA training step: no wait of the host outside of the graph builder, and the values of the base.

The graph builder (``core/graph``) is another series' subject: its waits are allowed here. What makes the graph may
bring along how many edges each system has, on the host; `counted_graph` does, as a builder can that reads one size.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from uma import DATASETS, sites
from whole_step import GRAPH, Tree, collate, device_type, load_step, make_unit, pinned, samples, step_tasks
from whole_step import train_step as run_step

from nosync.hostsync import allow_host_syncs, forbid_host_syncs, host_syncs, value

pytestmark = [
    pytest.mark.needs_series("batch-to-device"),
    pytest.mark.needs_series("moe-routing"),
    pytest.mark.needs_series("step-rest"),
]
WRAPPERS = ("DatasetSpecificSingleHeadWrapper", "DatasetSpecificMoEWrapper")


@pytest.fixture(scope="module")
def tree() -> Tree:
    """The tree under test."""
    return load_step(os.environ.get("NOSYNC_TREE", "patched"))


@contextmanager
def counted_graph(tree: Tree) -> Iterator[None]:
    """Graphs that bring along the number of edges of each system on the host; building them may wait."""
    with tree.copy.active():
        backbone = importlib.import_module("fairchem.core.models.uma.escn_md")
    build = backbone.generate_graph

    def build_and_count(data: Any, *args: Any, **kwargs: Any) -> Any:
        with allow_host_syncs("the graph builder, which is another series"):
            graph = build(data, *args, **kwargs)
            of_edge = value(data["batch"])[value(graph["edge_index"])[1]]
            systems = len(data["natoms"])
        return graph | {"edges_per_system": of_edge.bincount(minlength=systems).tolist()}

    with mock.patch.object(backbone, "generate_graph", build_and_count):
        yield


def warm_unit(tree: Tree, tasks: list[Any], **options: Any) -> Any:
    """A unit after its first step, which makes the optimizer's state and starts the moving average."""
    unit = make_unit(tree, tasks, **options)
    run_step(tree, unit, collate(tree, tasks, samples(tree, 0, DATASETS[:1])))
    return unit


@pytest.mark.fails_on_base
@pytest.mark.parametrize("pin", [True, False], ids=["pinned", "pageable"])
def test_step_does_not_wait_outside_of_the_graph(tree: Tree, device: torch.device, pin: bool) -> None:
    tasks = step_tasks(tree)
    with device_type(device), counted_graph(tree):
        unit = warm_unit(tree, tasks)
        batch = collate(tree, tasks, samples(tree, 1, DATASETS))
        if pin:
            batch = pinned(batch)
        with forbid_host_syncs():
            run_step(tree, unit, batch)
    assert torch.isfinite(value(unit.last_loss)) and value(unit.last_grad_norm) > 0


@pytest.mark.fails_on_base
def test_reporting_reads_once(tree: Tree, device: torch.device) -> None:
    tasks = step_tasks(tree)
    with device_type(device), counted_graph(tree):
        unit = warm_unit(tree, tasks, print_every=1)
        batch = collate(tree, tasks, samples(tree, 1, DATASETS))
        with host_syncs() as syncs:
            run_step(tree, unit, batch)
    assert syncs.count == 1, syncs.table()
    assert isinstance(unit.last_loss, float) and isinstance(unit.last_grad_norm, float)


@pytest.mark.fails_on_base
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_prediction_reads_edge_counts_at_most(tree: Tree, device: torch.device, wrapper: str) -> None:
    """As MLIPPredictUnit runs the model: no training, frozen weights, and a graph of whatever builder there is."""
    tasks = step_tasks(tree)
    with device_type(device):
        model = make_unit(tree, tasks, head=wrapper, dataset_mapping={name: name for name in DATASETS}).model
        model.eval().requires_grad_(False)
        batch = collate(tree, tasks, samples(tree, 2, DATASETS)).to(device)
        with tree.copy.active(), host_syncs() as syncs:
            model(batch)
    outside = sites(syncs, without=GRAPH)
    assert sum(outside.values()) <= 1, outside


# ---------------------------------------------------------------------------------------------------------- values
BATCHES = {
    "ten systems": DATASETS * 2,
    "datasets absent": ("omol", "omat", "omol"),
    "one system": ("oc20",),
    "one dataset": ("odac",) * 3,
}


def run(which: str, names: tuple[str, ...], dtype: torch.dtype, **options: Any) -> dict[str, torch.Tensor]:
    """Two steps on the CPU; losses, predictions, gradients of the last, weights and averages after it."""
    tree = load_step(which)
    tasks = step_tasks(tree)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device_type("cpu"):
            unit = make_unit(tree, tasks, **options)
            found = {}
            grads: dict[str, torch.Tensor] = {}
            clip = torch.nn.utils.clip_grad_norm_

            def keep(parameters: Any, **kwargs: Any) -> torch.Tensor:
                norm = clip(parameters, **kwargs)
                named = unit.model.named_parameters()
                grads.update({f"grad of {name}": p.grad.clone() for name, p in named if p.grad is not None})
                return norm

            with mock.patch.object(torch.nn.utils, "clip_grad_norm_", keep):
                for number in range(2):
                    torch.manual_seed(number)
                    batch = collate(tree, tasks, [_cast(s, dtype) for s in samples(tree, number, names)])
                    run_step(tree, unit, batch)
                    found[f"loss {number}"] = torch.as_tensor(unit.last_loss)
                    found[f"norm {number}"] = torch.as_tensor(unit.last_grad_norm)
            found |= grads | {f"average of {name}": p for name, p in unit.ema_model.state_dict().items()}
            unit.model.eval()
            with tree.copy.active():
                predictions = unit.model(batch)
            found |= {f"predicted {name}": x[name.split("_")[1]] for name, x in predictions.items()}
    finally:
        torch.set_default_dtype(before)
    return {name: x.detach().clone() for name, x in found.items()}


def _cast(sample: Any, dtype: torch.dtype) -> Any:
    for key, tensor in sample:
        if torch.is_tensor(tensor) and tensor.is_floating_point():
            sample[key] = tensor.to(dtype)
    return sample


def assert_close_to_base(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> None:
    """In float64, where rounding is far below what a wrong row, mask or count would change."""
    for name, x in old.items():
        torch.testing.assert_close(new[name], x, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("wrapper", "names"),
    [(WRAPPERS[0], names) for names in BATCHES.values()] + [(WRAPPERS[1], BATCHES["ten systems"])],
    ids=[*BATCHES, "the other wrapper"],
)
def test_steps_have_the_values_of_the_base(wrapper: str, names: tuple[str, ...]) -> None:
    old, new = (run(which, names, torch.float64, head=wrapper) for which in ("base", "patched"))
    assert old.keys() == new.keys()
    assert_close_to_base(old, new)


def test_first_loss_is_that_of_the_base_in_float32() -> None:
    """Up to rounding: the norms add their squares in another order."""
    old, new = (run(which, DATASETS * 2, torch.float32) for which in ("base", "patched"))
    torch.testing.assert_close(new["loss 0"], old["loss 0"], rtol=2e-6, atol=0)


@pytest.mark.parametrize("options", [{"activation_checkpointing": True}, {"act_type": "s2"}], ids=str)
def test_other_models_have_the_values_of_the_base(options: dict[str, Any]) -> None:
    """Activation checkpointing in chunks that cut through systems, and the other activation."""
    with small_chunks():
        old, new = (run(which, DATASETS, torch.float64, **options) for which in ("base", "patched"))
    assert_close_to_base(old, new)


@contextmanager
def small_chunks() -> Iterator[None]:
    """Checkpoint 50 edges at a time in both trees."""
    with ExitStack() as stack:
        for which in ("base", "patched"):
            with load_step(which).copy.active():
                backbone = importlib.import_module("fairchem.core.models.uma.escn_md")
            name = "ESCNMD_DEFAULT_EDGE_ACTIVATION_CHECKPOINT_CHUNK_SIZE"
            stack.enter_context(mock.patch.object(backbone, name, 50))
        yield
