"""FLCE captured in a CUDA graph and under torch.compile, on a GPU (not a test: run by hand).

    python3 tests/liger-kernel/gpu_graphs.py --base <source root> --patched <source root> [--json FILE]

``graph``: forward and backward captured and replayed on new inputs, compared with eager; ``compile``: torch.compile
against eager. Exit 1 if the patched tree cannot be captured, or differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import flce_cases as fc  # noqa: E402
from two_trees import PackageCopy, base_and_patched  # noqa: E402

DEVICE = torch.device("cuda", 0)
Trees = dict[str, PackageCopy]


def check_graph(trees: Trees) -> dict[str, Any]:
    """Capture forward and backward, replay on new inputs and a new gradient, compare with eager."""
    outcome: dict[str, dict[str, str]] = {}
    both = fc.Case("mean", 0.37, dtype=torch.bfloat16, smoothing=True, class_weights=True)
    cases = {"patched": [*fc.ALL, both], "base": [fc.MEAN_MATRIX[0], fc.SEED_MATRIX[0], fc.SEED_MATRIX[12]]}
    for name in ("patched", "base"):  # the base last: a failed capture may leave traces
        with trees[name].active() as liger:
            outcome[name] = {str(case): _captured(liger, case) for case in cases[name]}
    for name, results in outcome.items():
        good = sum(r == "bitwise" for r in results.values())
        print(f"\nCUDA graph, {name}: {good} of {len(results)} cases captured and replayed with the eager values")
        for case_name, r in results.items():
            if r != "bitwise":
                print(f"  {case_name}: {r}")
    bad = sum(r != "bitwise" for r in outcome["patched"].values())
    return {"outcome": outcome, "failed": bad + sum(r == "bitwise" for r in outcome["base"].values())}


def _captured(liger: Any, case: fc.Case) -> str:
    first, second = (fc.make_inputs(case, seed).to(DEVICE) for seed in (1, 2))
    second.grad.fill_(0.37 if case.factor == 1.0 else 1.0)  # the graph must take either way on the device
    call = fc.Call(liger, case, first)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            _clear(call)
            call.forward()
            call.backward()
    torch.cuda.current_stream().wait_stream(side)
    _clear(call)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call.forward()
            call.backward()
    except Exception as error:
        return f"not captured: {type(error).__name__}: {str(error).splitlines()[0][:90]}"
    with torch.no_grad():
        call.x.copy_(second.x)
        call.weight.copy_(second.weight)
        if call.bias is not None:
            call.bias.copy_(second.bias)
        first.target.copy_(second.target)
        first.grad.copy_(second.grad)
        if first.class_weights is not None:
            first.class_weights.copy_(second.class_weights)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    eager = fc.run(liger, case, second)
    off = 0.0
    for name, want in eager.items().items():
        got = call.outputs().items()[name]
        if want is not None and not torch.equal(got.nan_to_num(9.0), want.nan_to_num(9.0)):
            off = max(off, float((got.double() - want.double()).abs().max() / want.double().abs().max()))
    return "bitwise" if off == 0.0 else f"off by {off:.1e}"


def _clear(call: fc.Call) -> None:
    for leaf in (call.x, call.weight, call.bias):
        if leaf is not None:
            leaf.grad = None


def check_compile(trees: Trees) -> dict[str, Any]:
    """torch.compile of a function around FLCE against eager, on each tree."""
    cases = [fc.Case(r, 0.37, bias=True) for r in ("mean", "sum", "none")]
    cases += [
        fc.Case("mean", class_weights=True, smoothing=True),
        fc.Case("mean", softcap=True, dtype=torch.bfloat16),
    ]
    outcome: dict[str, dict[str, str]] = {}
    for name, copy in trees.items():
        with copy.active() as liger:
            outcome[name] = {str(case): _compiled(liger, case) for case in cases}
    for name, results in outcome.items():
        print(f"\ntorch.compile, {name}:")
        for case_name, r in results.items():
            print(f"  {case_name}: {r}")
    base, ours = outcome["base"], outcome["patched"]
    return {
        "outcome": outcome,
        "failed": sum(not r.startswith("ok") and base[c].startswith("ok") for c, r in ours.items()),
    }


def _compiled(liger: Any, case: fc.Case) -> str:
    torch._dynamo.reset()
    inputs = fc.make_inputs(case, 3).to(DEVICE)
    eager, call = fc.run(liger, case, inputs), fc.Call(liger, case, inputs)
    apply = call.function.apply
    call.function = type("Compiled", (), {"apply": staticmethod(torch.compile(lambda *a: apply(*a)))})
    try:
        call.forward()
        call.backward()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    off = 0.0
    for name, want in eager.items().items():
        got = call.outputs().items()[name]
        if want is not None:
            off = max(
                off,
                float((got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-9)),
            )
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    torch._dynamo.utils.counters.clear()
    return f"{'ok' if off < 2e-2 else 'DIFFERS'}: off by {off:.1e}, {breaks} graph breaks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--patched", required=True)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    os.environ["NOSYNC_BASE_PATH"], os.environ["NOSYNC_PATCHED_PATH"] = args.base, args.patched
    trees = dict(zip(("base", "patched"), base_and_patched("liger_kernel"), strict=True))
    for copy in trees.values():
        with copy.active():
            importlib.import_module("liger_kernel.ops")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    results = {"graph": check_graph(trees), "compile": check_compile(trees)}
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1, default=str) + "\n")
    failed = {name: r["failed"] for name, r in results.items() if r.get("failed")}
    print(f"\nfailed: {failed or 'nothing'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
