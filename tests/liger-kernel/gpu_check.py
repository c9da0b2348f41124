"""The final check of Liger's series on a real GPU (not a test: run by hand).

    python3 tests/liger-kernel/gpu_check.py --base <source root> --patched <source root> [--json FILE] [--only PART]

Parts: ``goals`` (the three goals of flce, patched against base, interleaved), ``syncs`` (waits of forward and
backward for every reduction and option, both trees), ``values`` (patched against base, bitwise where it is), ``graph``
(forward and backward captured in a CUDA graph and replayed on new inputs, compared with eager), ``compile``
(torch.compile against eager). Exit 1 if the patched tree waits, cannot be captured, or differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import flce_cases as fc  # noqa: E402
from two_trees import PackageCopy, base_and_patched  # noqa: E402

DEVICE = torch.device("cuda", 0)
BT, H, V = 8192, 4096, 128256


@contextmanager
def counted_syncs() -> Iterator[list[str]]:
    """Where sync-debug sees a wait, file:line of the caller's frame that warns: a second opinion on the detector."""
    seen: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        caught.clear()
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode("default")
            seen += [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]


class Timed:
    """One tree's FLCE at the goal's size."""

    def __init__(self, name: str, copy: PackageCopy) -> None:
        self.name, self.copy = name, copy
        with copy.active() as liger:
            _imported(liger)
            self.function = liger.ops.LigerFusedLinearCrossEntropyFunction

    def loss(self, x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, reduction: str) -> torch.Tensor:
        x.grad = w.grad = None
        options = (None, None, -100, 0.0, 0.0, reduction)
        return self.function.apply(x, w, t, *options)[0]


def _imported(liger: Any) -> None:
    import importlib

    importlib.import_module("liger_kernel.ops")


def kernel_ms(run: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """Device time of the kernels and copies that ``run`` starts, ms: the sum, and by name."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    by_name: dict[str, float] = {}
    for event in on_device:
        by_name[event.name[:60]] = by_name.get(event.name[:60], 0.0) + event.time_range.elapsed_us() / 1e3
    return sum(by_name.values()), by_name


def check_goals(trees: list[Timed], rounds: int) -> dict[str, Any]:
    """GPU time of the backward at 1.0 and 0.5, and host time with a queued copy; medians and ratios to the base."""
    gen = torch.Generator(device=DEVICE).manual_seed(0)
    x = torch.randn(BT, H, device=DEVICE, dtype=torch.bfloat16, generator=gen).requires_grad_()
    w = (torch.randn(V, H, device=DEVICE, dtype=torch.bfloat16, generator=gen) * 0.02).requires_grad_()
    t = torch.randint(0, V, (BT,), device=DEVICE, generator=gen)
    t[::7] = -100
    factors = {"1.0": torch.ones((), device=DEVICE), "0.5": torch.full((), 0.5, device=DEVICE)}
    on_device = torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE)
    pinned = torch.empty(2 << 30, dtype=torch.uint8, pin_memory=True)
    side = torch.cuda.Stream()
    samples: dict[str, dict[str, list[float]]] = {tree.name: {} for tree in trees}
    profiles: dict[str, Any] = {}

    def note(tree: Timed, key: str, ms: float, keep: bool) -> None:
        if keep:
            samples[tree.name].setdefault(key, []).append(ms)

    for index in range(rounds + 3):
        for tree in trees if index % 2 else trees[::-1]:
            keep = index >= 3
            for label, factor in factors.items():
                loss = tree.loss(x, w, t, "mean")
                torch.cuda.synchronize()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                before = time.perf_counter()
                loss.backward() if label == "1.0" else loss.backward(factor)
                host = (time.perf_counter() - before) * 1e3
                end.record()
                torch.cuda.synchronize()
                note(tree, f"event ms at {label}", start.elapsed_time(end), keep)
                note(tree, f"host ms at {label}", host, keep)
                if index >= rounds:
                    profiled = tree.loss(x, w, t, "mean")
                    torch.cuda.synchronize()
                    total, names = kernel_ms(partial(profiled.backward, factor))
                    note(tree, f"kernel ms at {label}", total, True)
                    profiles[f"{tree.name} {label}"] = names
            loss = tree.loss(x, w, t, "mean")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                pinned.copy_(on_device, non_blocking=True)
            before = time.perf_counter()
            loss.backward()
            note(tree, "host ms, copy queued", (time.perf_counter() - before) * 1e3, keep)
            torch.cuda.synchronize()
            for reduction in ("mean", "sum"):
                with torch.cuda.stream(side):
                    pinned.copy_(on_device, non_blocking=True)
                before = time.perf_counter()
                loss = tree.loss(x, w, t, reduction)
                note(
                    tree,
                    f"forward host ms, copy queued, {reduction}",
                    (time.perf_counter() - before) * 1e3,
                    keep,
                )
                torch.cuda.synchronize()
    medians = {n: {k: statistics.median(v) for k, v in s.items()} for n, s in samples.items()}
    print(f"\n{'BT=8192 H=4096 V=128256 bf16, mean':44}{'base':>10}{'patched':>10}{'ratio':>8}  goal")
    goals = {"event ms at 1.0": 1.0, "event ms at 0.5": 0.76, "host ms, copy queued": 0.01}
    for key, base in medians["base"].items():
        ours = medians["patched"][key]
        goal = f"<= {goals[key]:.2f}" if key in goals else ""
        print(f"{key:44}{base:10.4f}{ours:10.4f}{ours / base:8.3f}  {goal}")
    for name, kernels in profiles.items():
        print(f"  kernels, {name}: " + "; ".join(f"{k} {v * 1e3:.1f} us" for k, v in sorted(kernels.items())))
    return {"medians": medians, "samples": samples, "profiles": profiles}


def check_syncs(trees: list[Timed]) -> dict[str, Any]:
    """Waits in forward and backward by case."""
    rows: dict[str, dict[str, list[int]]] = {}
    for case in fc.ALL:
        inputs = fc.make_inputs(case, 1).to(DEVICE)
        for tree in trees:
            with tree.copy.active() as liger:
                fc.run(liger, case, inputs)
                call = fc.Call(liger, case, inputs)
                with counted_syncs() as forward:
                    call.forward()
                with counted_syncs() as backward:
                    call.backward()
            rows.setdefault(str(case), {})[tree.name] = [len(forward), len(backward)]
            if tree.name == "patched" and forward + backward:
                print(f"  WAITS: {case} at {forward + backward}")
    base, ours = ([r[n] for r in rows.values()] for n in ("base", "patched"))
    print(f"\nsyncs over {len(rows)} cases (forward, backward): base {_span(base)}, patched {_span(ours)}")
    bad = [name for name, r in rows.items() if any(r["patched"])]
    quiet = [name for name, r in rows.items() if not any(r["base"])]
    print(f"  patched waits in {len(bad)} cases; the base does not wait in {len(quiet)}: {bad + quiet}")
    return {"rows": rows, "failed": len(bad) + len(quiet)}


def _span(pairs: list[list[int]]) -> str:
    columns = [sorted(column) for column in zip(*pairs, strict=True)]
    return ", ".join(f"{c[0]}..{c[-1]}" for c in columns)


def check_values(trees: list[Timed]) -> dict[str, Any]:
    """Patched against base, case by case: bitwise, or the largest difference over the largest element."""
    differing: dict[str, Any] = {}
    for case in fc.ALL:
        for rows, hidden, vocab in ((fc.ROWS, fc.HIDDEN, None), (512, 256, 2048)):
            inputs = fc.make_inputs(case, 7, rows, hidden, vocab, scale=0.3).to(DEVICE)
            results = []
            for tree in trees:
                with tree.copy.active() as liger:
                    results.append(fc.run(liger, case, inputs))
            for name, base in results[0].items().items():
                ours = results[1].items()[name]
                if base is None or torch.equal(base.nan_to_num(9.0), ours.nan_to_num(9.0)):
                    continue
                off = (base.double() - ours.double()).abs().max() / base.double().abs().max()
                differing[f"{case} [{rows}x{hidden}x{vocab}] {name}"] = float(off)
    print(f"\nvalues: {len(fc.ALL)} cases in 2 sizes; not bitwise the base's:")
    for name, off in differing.items():
        print(f"  {name}: {off:.2e} relative")
    failed = [n for n, off in differing.items() if not off < 1e-6 and "class_weights" not in n and "accuracy" not in n]
    return {"differing": differing, "failed": len(failed)}


def check_graph(trees: list[Timed]) -> dict[str, Any]:
    """Capture forward and backward, replay on new inputs and a new gradient, compare with eager."""
    outcome: dict[str, dict[str, str]] = {tree.name: {} for tree in trees}
    both = fc.Case("mean", 0.37, dtype=torch.bfloat16, smoothing=True, class_weights=True)
    cases = {"patched": [*fc.ALL, both], "base": [fc.MEAN_MATRIX[0], fc.SEED_MATRIX[0], fc.SEED_MATRIX[12]]}
    for tree in trees[::-1]:  # the base last: a failed capture may leave traces
        with tree.copy.active() as liger:
            outcome[tree.name] = {str(case): _captured(liger, case) for case in cases[tree.name]}
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


def check_compile(trees: list[Timed]) -> dict[str, Any]:
    """torch.compile of a function around FLCE against eager, on each tree."""
    cases = [fc.Case(r, 0.37, bias=True) for r in ("mean", "sum", "none")]
    cases += [
        fc.Case("mean", class_weights=True, smoothing=True),
        fc.Case("mean", softcap=True, dtype=torch.bfloat16),
    ]
    outcome: dict[str, dict[str, str]] = {tree.name: {} for tree in trees}
    for tree in trees:
        with tree.copy.active() as liger:
            for case in cases:
                outcome[tree.name][str(case)] = _compiled(liger, case)
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
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="goals,syncs,values,graph,compile")
    args = parser.parse_args()
    os.environ["NOSYNC_BASE_PATH"], os.environ["NOSYNC_PATCHED_PATH"] = args.base, args.patched
    base, patched = base_and_patched("liger_kernel")
    torch.cuda.init()
    trees = [Timed("base", base), Timed("patched", patched)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    parts = {
        "goals": lambda: check_goals(trees, args.rounds),
        "syncs": lambda: check_syncs(trees),
        "values": lambda: check_values(trees),
        "graph": lambda: check_graph(trees),
        "compile": lambda: check_compile(trees),
    }
    results = {name: parts[name]() for name in args.only.split(",")}
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1, default=str) + "\n")
    failed = {name: r["failed"] for name, r in results.items() if r.get("failed")}
    print(f"\nfailed: {failed or 'nothing'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
