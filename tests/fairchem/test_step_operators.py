"""The operators of a training step, which is bound by the host: their number, peak memory, and the layers' values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from whole_step import Tree, load_step

sys.path.append(str(Path(__file__).parent / "bench"))
from escn_operators import layers
from whole_step_counts import operators, peak_memory

pytestmark = pytest.mark.needs_series("escn-operators")
# Four layers, ten systems, on the CPU: 59,400 on the base, 41,000 with the other series alone.
OPERATORS_OF_A_STEP = 34_000
LAYERS = ("so3_linear", "norm", "so2", "gate", "wigner")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.fails_on_base
def test_operators_of_a_step() -> None:
    assert operators(load_step(os.environ.get("NOSYNC_TREE", "patched"))) <= OPERATORS_OF_A_STEP


@pytest.mark.fails_on_base
def test_peak_memory_of_a_step() -> None:
    """Less than the base: what sums the edges' rows up keeps none of them. It is some 3 % here."""
    tree = load_step(os.environ.get("NOSYNC_TREE", "patched"))
    assert peak_memory(tree) < 0.985 * peak_memory(load_step("base"))


def trained(tree: Tree, name: str) -> dict[str, torch.Tensor]:
    """Outputs of a layer, their gradients, and the gradients of these with respect to inputs and parameters."""
    torch.manual_seed(0)
    layer, inputs = layers(tree)[name]
    parameters = dict(layer.named_parameters()) if isinstance(layer, torch.nn.Module) else {}
    for parameter in parameters.values():
        torch.nn.init.normal_(parameter)
    torch.manual_seed(1)  # the rolls of the edges
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = layer(*(x * 1 for x in leaves))
    outputs = out if isinstance(out, tuple) else (out,)
    forces = torch.autograd.grad(sum(x.pow(3).sum() for x in outputs), leaves, create_graph=True)
    sum(x.pow(3).sum() for x in forces).backward()
    found = {f"output {i}": x for i, x in enumerate(outputs)} | {f"force {i}": x for i, x in enumerate(forces)}
    found |= {f"gradient {i}": x.grad for i, x in enumerate(leaves)}
    return found | {name: p.grad for name, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_layers_have_the_values_of_the_base(name: str, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    old, new = (trained(load_step(which), name) for which in ("base", "patched"))
    assert old.keys() == new.keys()
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    for key, x in old.items():
        assert torch.isfinite(x).all() and x.abs().max() > 0, key
        torch.testing.assert_close(new[key], x, rtol=0, atol=tolerance * x.abs().max().item())


@pytest.mark.parametrize("name", ["so2", "gate", "wigner"])
def test_outputs_have_the_bits_of_the_base(name: str) -> None:
    """Only the order in which gradients are added differs."""
    old, new = (trained(load_step(which), name) for which in ("base", "patched"))
    outputs = [key for key in old if key.startswith("output")]
    assert outputs and all(torch.equal(old[key], new[key]) for key in outputs)
