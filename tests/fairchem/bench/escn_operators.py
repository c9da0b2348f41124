"""ATen operators of eSCN's layers: forward, a gradient as for forces, and the gradients of its square."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from uma import operators_of
from whole_step import Tree
from whole_step_counts import told_tree

from nosync.measure import writing

CHANNELS, COEFFICIENTS = 8, 9
UMA = "fairchem.core.models.uma"


def layers(tree: Tree) -> dict[str, tuple[Callable[..., Any], list[torch.Tensor]]]:
    """Each layer of lmax 2 with random inputs for it, on the CPU."""
    with tree.copy.active():
        module = {
            name: importlib.import_module(f"{UMA}.{path}")
            for name, path in {
                "so3_linear": "nn.so3_layers",
                "norm": "nn.layer_norm",
                "so2": "nn.so2_layers",
                "gate": "nn.activation",
                "wigner": "common.quaternion.wigner_d_hybrid",
                "kernels": "common.quaternion.wigner_d_custom_kernels",
                "so3": "common.so3",
            }.items()
        }
    mapping = module["so3"].CoefficientMapping(2, 2)
    kernels = module["kernels"].CustomKernelModule()
    x = torch.randn(20, COEFFICIENTS, CHANNELS)

    def wigner(edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module["wigner"].axis_angle_wigner_hybrid(edges, 2, custom_kernels=kernels)

    return {
        "so3_linear": (module["so3_linear"].SO3_Linear(CHANNELS, CHANNELS, 2), [x]),
        "norm": (module["norm"].get_normalization_layer("rms_norm_sh", 2, CHANNELS), [x]),
        "so2": (module["so2"].SO2_Convolution(CHANNELS, CHANNELS, 2, 2, mapping), [x]),
        "gate": (module["gate"].GateActivation(2, 2, CHANNELS, m_prime=True), [torch.randn(20, 2 * CHANNELS), x]),
        "wigner": (wigner, [torch.randn(20, 3)]),
    }


def trained_on_forces(layer: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """What a training step runs of a layer."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = layer(*(x * 1 for x in leaves))
    energy = sum(x.pow(2).sum() for x in (out if isinstance(out, tuple) else (out,)))
    forces = torch.autograd.grad(energy, leaves, create_graph=True)
    sum(x.pow(2).sum() for x in forces).backward()


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        for name, (layer, inputs) in layers(told_tree(lines, options.tree)).items():
            trained_on_forces(layer, inputs)
            lines.count(f"escn.{name}", operators_of(lambda: trained_on_forces(layer, inputs)))  # noqa: B023
    return 0


if __name__ == "__main__":
    sys.exit(main())
