"""Host syncs of Liger's losses, one tree: on a GPU by torch's counters, without one by the detector."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import flce_cases
import losses_cases
import torch
from bench_common import tell_setting

from nosync.hostsync import host_syncs, use_backend
from nosync.measure import writing

SYNCS = {reduction: flce_cases.Case(reduction, 0.37) for reduction in ("mean", "sum", "none")}
FORWARDS = {
    "mean": flce_cases.Case("mean", 0.37),
    "weights": flce_cases.Case("mean", 0.37, smoothing=True, class_weights=True),
    "scaling": flce_cases.Case("mean", 0.37, token_scaling=True),
}


def counted(*calls: Callable[[], Any]) -> int:
    """Waits of the calls, which have run before (kernels are compiled)."""
    with host_syncs() as syncs:
        for call in calls:
            call()
    return syncs.count


def flce(lines: writing.Lines, liger: Any, device: torch.device) -> None:
    """Forward and backward for each reduction."""
    for reduction, case in SYNCS.items():
        inputs = flce_cases.make_inputs(case, 0).to(device)
        flce_cases.run(liger, case, inputs)
        call = flce_cases.Call(liger, case, inputs)
        lines.count(f"flce.syncs_{reduction}", counted(call.forward, call.backward))


def flce_mean(lines: writing.Lines, liger: Any, device: torch.device) -> None:
    """A forward, with the options that used to wait."""
    for word, case in FORWARDS.items():
        inputs = flce_cases.make_inputs(case, 0).to(device)
        flce_cases.run(liger, case, inputs)
        lines.count(f"flce-mean.forward_{word}", counted(flce_cases.Call(liger, case, inputs).forward))


def losses(lines: writing.Lines, liger: Any, device: torch.device) -> None:
    """Forward and backward of each loss that the base has: its first case that ignores some labels, else its first."""
    generator = torch.Generator().manual_seed(0)
    every = [*losses_cases.CROSS_ENTROPY, *losses_cases.OTHERS, *losses_cases.FUSED_KL]
    for module in dict.fromkeys(case.module for case in every):
        if importlib.util.find_spec(f"{liger.__name__}.ops.{module}") is None:
            continue
        of_module = [case for case in every if case.module == module]
        case = next((each for each in of_module if "some" in str(each)), of_module[0])
        tensors = [tensor.to(device) for tensor in case.tensors(generator)]
        call = losses_cases.LossCall(liger, case, tensors, 0.37)
        call.forward()
        call.backward()
        call = losses_cases.LossCall(liger, case, tensors, 0.37)
        lines.count(f"losses.{module}", counted(call.forward, call.backward))


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("what", choices=["flce", "flce-mean", "losses"])
    options = parser.parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "liger_kernel", "triton")
        liger = importlib.import_module("liger_kernel")
        importlib.import_module("liger_kernel.ops")
        with use_backend() as device:
            {"flce": flce, "flce-mean": flce_mean, "losses": losses}[options.what](lines, liger, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
