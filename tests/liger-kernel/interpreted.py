"""Liger's kernels without a GPU: Triton's interpreter, set up before Liger is imported."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter


def _floats_as_launched() -> None:
    """Let the interpreter pass a Python float the way a compiled launch does, as a float32 scalar.

    Triton 3.7's interpreter wraps integers and tensors but leaves a float alone, so that a kernel's
    ``scalar.to(tl.float32)`` fails with "'float' object has no attribute 'to'". Liger's kernels do that with the
    softcap, the class weights' sums and the reduction's scale.
    """
    plain = interpreter._implicit_cvt

    def convert(arg: object) -> object:
        if type(arg) is not float:
            return plain(arg)
        return tl.tensor(interpreter.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = convert


def _addmm_to_float32() -> torch.library.Library:
    """``torch.addmm(out_dtype=...)`` on the CPU, which torch has for CUDA only. Lives as long as what it returns."""

    def addmm(bias, left, right, out_dtype, *, beta=1, alpha=1, out):
        return torch.addmm(bias.to(out_dtype), left.to(out_dtype), right.to(out_dtype), beta=beta, alpha=alpha, out=out)

    library = torch.library.Library("aten", "IMPL")
    library.impl("addmm.dtype_out", addmm, "CPU")
    return library


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    _floats_as_launched()
    _LIBRARY = _addmm_to_float32()


@triton.jit
def _tanh_by_sigmoid(x):
    """For softcap: CUDA's libdevice cannot be interpreted."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


def prepared(liger_kernel: ModuleType) -> ModuleType:
    """Import what the tests use of a tree; call it while the device is there (Liger asks for it at import)."""
    importlib.import_module(f"{liger_kernel.__name__}.ops.cross_entropy")
    if INTERPRETED:
        liger_kernel.ops.cross_entropy.tanh = _tanh_by_sigmoid
    return liger_kernel
