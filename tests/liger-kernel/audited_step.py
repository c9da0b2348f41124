"""For ``make audit-liger-kernel``: FLCE forward and backward for each reduction (launches counted, without values)."""

import importlib

import torch
from flce_cases import Call, Case, make_inputs

liger = importlib.import_module("liger_kernel")
importlib.import_module("liger_kernel.ops")
for reduction in ("mean", "sum", "none"):
    case = Case(reduction, 0.37)
    call = Call(liger, case, make_inputs(case, 0).to("cuda"))
    with torch.profiler.record_function("step"):
        call.forward()
        call.backward()
