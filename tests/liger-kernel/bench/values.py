"""Recordings of FLCE's losses and gradients over some steps of fresh inputs, one tree."""

from __future__ import annotations

import importlib
import sys

import flce_cases
import numpy as np
import torch
from bench_common import gpu, tell_setting

from nosync.measure import writing

STEPS = 3


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "liger_kernel", "triton")
        if not gpu():
            lines.write(unavailable="no GPU: Triton kernels")
            return 0
        liger = importlib.import_module("liger_kernel")
        importlib.import_module("liger_kernel.ops")
        recorded: dict[str, np.ndarray] = {}
        for step in range(STEPS):
            for reduction in ("mean", "sum", "none"):
                for factor in (1.0, 0.5):
                    record(liger, recorded, step, flce_cases.Case(reduction, factor, bias=True, dtype=torch.bfloat16))
        np.savez(options.recording, **recorded)
    return 0


def record(liger: object, recorded: dict[str, np.ndarray], step: int, case: flce_cases.Case) -> None:
    """The inputs' targets (exact), the loss and the gradients of one case."""
    inputs = flce_cases.make_inputs(case, step, 512, 256, 2048, scale=0.3).to("cuda")
    outputs = flce_cases.run(liger, case, inputs)
    recorded[f"{step}/batch/{case}.target"] = inputs.target.cpu().numpy()
    for name, tensor in outputs.items().items():
        if tensor is not None:
            quantity = "gradients" if name.startswith("grad") else name
            recorded[f"{step}/{quantity}/{case}.{name}"] = tensor.detach().float().cpu().contiguous().numpy()


if __name__ == "__main__":
    sys.exit(main())
