"""Compile Liger's kernels for an H200, without one, as callers outside the patches call them.

    python compiled_kernels.py <source root>...

Prints, as JSON, each tree's PTX of each kernel. A process of its own, because a process whose kernels are interpreted
cannot compile any.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CROSS_ENTROPY_TYPES = {
    "X_ptr": "*bf16",
    "X_stride": "i32",
    "Y_ptr": "*i64",
    "weight_ptr": "*fp32",
    "loss_ptr": "*fp32",
    "n_cols": "i32",
    "ignore_index": "i32",
    "n_non_ignore": "i32",
    "sum_non_ignore_weight": "fp32",
    "weight_sum": "fp32",
}
CROSS_ENTROPY_VALUES = {
    "Y_stride": 1,
    "z_loss_ptr": None,
    "loss_stride": 1,
    "token_accuracy_ptr": None,
    "token_accuracy_stride": 0,
    "predicted_tokens_ptr": None,
    "predicted_tokens_stride": 0,
    "lse_square_scale": 0.0,
    "label_smoothing": 0.1,
    "reduction": "mean",
    "softcap": None,
    "RETURN_Z_LOSS": False,
    "RETURN_TOKEN_ACCURACY": False,
    "RETURN_PREDICTED_TOKENS": False,
    "BLOCK_SIZE": 1024,
    "HAS_WEIGHT": True,
    "HAS_SOFTCAPPING": False,
    "HAS_GRADIENTS": True,
}
ELEMENT_MUL_TYPES = {"X_ptr": "*bf16", "X_stride": "i32", "grad_output_ptr": "*fp32", "n_cols": "i32"}
KERNELS: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("utils", "element_mul_kernel", ELEMENT_MUL_TYPES, {"BLOCK_SIZE": 1024}),
    ("cross_entropy", "liger_cross_entropy_kernel", CROSS_ENTROPY_TYPES, CROSS_ENTROPY_VALUES),
]


def ptx(kernel: Any, argument_types: dict[str, str], values: dict[str, Any]) -> str:
    """The kernel's instructions; ``argument_types`` of the run-time arguments, ``values`` of the constants."""
    names = kernel.arg_names
    defaults = {param.name: param.default for param in kernel.params if param.has_default}
    constants = {name: value for name, value in {**defaults, **values}.items() if name in names}
    source = ASTSource(
        fn=kernel,
        signature={name: argument_types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={},
    )
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
    return re.split(r"\.section|\.file", re.sub(r"(?m)^\s*\.loc.*$|//.*$", "", text))[0]


def of_tree(root: Path) -> dict[str, str]:
    """Every kernel's PTX. Only the modules that hold the kernels are imported, not the packages around them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]
    for package in ("liger_kernel", "liger_kernel.ops"):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(root.joinpath(*package.split(".")))]
    result = {}
    for module, name, argument_types, values in KERNELS:
        kernel = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
        result[name] = ptx(kernel, argument_types, values)
    return result


if __name__ == "__main__":
    print(json.dumps([of_tree(Path(root)) for root in sys.argv[1:]]))
