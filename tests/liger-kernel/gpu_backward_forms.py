"""Compare forms of the kernel that scales the FLCE gradients, on a real GPU (not a test: run by hand).

    python3 tests/liger-kernel/gpu_backward_forms.py [--json FILE] [--quick]

Needs torch and triton only. The shape is the goal's: BT=8192, H=4096, V=128256, bf16, so 2.2 GB are moved when
the gradient is not 1.0. Three things are timed for each form, at grad_output 1.0 and 0.5, interleaved:

``gpu``       GPU time of the kernels alone, many launches between two events (no host gap), ms
``step``      events around ``loss.backward()`` of an autograd function with the form as its backward, ms
``host``      host time of that call, ms

The forms: ``base`` (compare on the host, then a row per program), ``seed`` (a row per program, check on the
device), ``rows`` (rows, bounded grid), ``flat`` (flat, bounded grid, a launch for each gradient), ``one``
(flat, bounded grid, one launch for all), ``full`` (flat, a block per program).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def row_kernel(X, stride, G, n_cols, BLOCK: tl.constexpr, SKIP: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    X += pid * stride
    g = tl.load(G)
    if SKIP:  # noqa: SIM102 (a constexpr: decided when the kernel is compiled)
        if g == 1.0:
            return
    for i in range(0, n_cols, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        ptrs = X + offs.to(tl.int64)
        tl.store(ptrs, tl.load(ptrs, mask=offs < n_cols) * g, mask=offs < n_cols)


@triton.jit
def rows_kernel(X, stride, G, n_rows, n_cols, BLOCK: tl.constexpr):
    g = tl.load(G)
    if g == 1.0:
        return
    row = tl.program_id(0).to(tl.int64)
    while row < n_rows:
        base = X + row * stride
        for i in range(0, n_cols, BLOCK):
            offs = i + tl.arange(0, BLOCK)
            tl.store(base + offs, tl.load(base + offs, mask=offs < n_cols) * g, mask=offs < n_cols)
        row += tl.num_programs(0)


@triton.jit
def _scale_flat(X, n, g, BLOCK: tl.constexpr):
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    start = tl.program_id(0).to(tl.int64) * BLOCK
    while start < n:
        offs = start + tl.arange(0, BLOCK)
        tl.store(X + offs, tl.load(X + offs, mask=offs < n) * g, mask=offs < n)
        start += step


@triton.jit
def flat_kernel(X, n, G, BLOCK: tl.constexpr):
    g = tl.load(G)
    if g == 1.0:
        return
    _scale_flat(X, n, g, BLOCK)


@triton.jit
def one_kernel(A, n_a, B, n_b, C, n_c, G, HAS_B: tl.constexpr, HAS_C: tl.constexpr, BLOCK: tl.constexpr):
    g = tl.load(G)
    if g == 1.0:
        return
    _scale_flat(A, n_a, g, BLOCK)
    if HAS_B:
        _scale_flat(B, n_b, g, BLOCK)
    if HAS_C:
        _scale_flat(C, n_c, g, BLOCK)


@triton.jit
def full_kernel(X, n, G, BLOCK: tl.constexpr):
    g = tl.load(G)
    if g == 1.0:
        return
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(X + offs, tl.load(X + offs, mask=offs < n) * g, mask=offs < n)


SMS = 0
Grads = list[torch.Tensor]
Form = Callable[[torch.Tensor, Grads], None]


def form_base(go: torch.Tensor, grads: Grads) -> None:
    if not torch.equal(go, torch.tensor(1.0, device=go.device)):
        _row_launches(go, grads, skip=False)


def form_base_kernels(go: torch.Tensor, grads: Grads) -> None:
    _row_launches(go, grads, skip=False)


def form_seed(go: torch.Tensor, grads: Grads) -> None:
    _row_launches(go, grads, skip=True)


def _row_launches(go: torch.Tensor, grads: Grads, skip: bool) -> None:
    block = min(32768, triton.next_power_of_2(grads[0].shape[1]))
    for g in grads:
        n_cols = g.shape[1] if g.dim() == 2 else 1
        row_kernel[(g.shape[0],)](g, g.stride(0), go, n_cols, BLOCK=block, SKIP=skip, num_warps=32)


def form_rows(block: int, warps: int, per_sm: int) -> Form:
    def run(go: torch.Tensor, grads: Grads) -> None:
        for g in grads:
            rows, cols = (g.shape[0], g.shape[1]) if g.dim() == 2 else (1, g.shape[0])
            grid = (min(rows, SMS * per_sm),)
            rows_kernel[grid](g, cols, go, rows, cols, BLOCK=block, num_warps=warps)

    return run


def form_flat(block: int, warps: int, per_sm: int) -> Form:
    def run(go: torch.Tensor, grads: Grads) -> None:
        for g in grads:
            grid = (min(triton.cdiv(g.numel(), block), SMS * per_sm),)
            flat_kernel[grid](g, g.numel(), go, BLOCK=block, num_warps=warps)

    return run


def form_one(block: int, warps: int, per_sm: int) -> Form:
    def run(go: torch.Tensor, grads: Grads) -> None:
        a, b, c = [*grads, None, None][:3]
        largest = max(g.numel() for g in grads)
        grid = (min(triton.cdiv(largest, block), SMS * per_sm),)
        n_b, n_c = b.numel() if b is not None else 0, c.numel() if c is not None else 0
        one_kernel[grid](
            a,
            a.numel(),
            b,
            n_b,
            c,
            n_c,
            go,
            HAS_B=b is not None,
            HAS_C=c is not None,
            BLOCK=block,
            num_warps=warps,
        )

    return run


def form_full(block: int, warps: int, per_sm: int) -> Form:
    def run(go: torch.Tensor, grads: Grads) -> None:
        for g in grads:
            full_kernel[(triton.cdiv(g.numel(), block),)](g, g.numel(), go, BLOCK=block, num_warps=warps)

    return run


class Scaled(torch.autograd.Function):
    """The tail of FLCE: gradients are at hand, backward scales them in place."""

    @staticmethod
    def forward(ctx, x, w, b, grads, form):
        ctx.save_for_backward(*[g.detach() for g in grads])
        ctx.form = form
        return torch.zeros((), device=x.device)

    @staticmethod
    def backward(ctx, go):
        grads = list(ctx.saved_tensors)
        ctx.form(go, grads)
        return (*grads, *[None] * (3 - len(grads)), None, None)


def gpu_ms(form: Form, go: list[torch.Tensor], grads: Grads, n: int) -> float:
    """Mean GPU time of one pass, ms; the values alternate so that they neither vanish nor overflow."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(4_000_000)
    start.record()
    for i in range(n):
        form(go[i % 2], grads)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / n


def step_ms(form: Form, factor: float, params: Grads, grads: Grads) -> tuple[float, float]:
    """Event time and host time of one ``loss.backward()``, ms."""
    for p in params:
        p.grad = None
    loss = Scaled.apply(*params, *[None] * (3 - len(params)), grads, form)
    out = loss if factor == 1.0 else loss * factor
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    t0 = time.perf_counter()
    out.backward()
    host = (time.perf_counter() - t0) * 1e3
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end), host


def check(name: str, form: Form, device: torch.device) -> None:
    """Bitwise the base's values on odd sizes, for gradients of 1.0, 0.37 and NaN."""
    for rows, cols, vocab in ((7, 129, 65), (33, 4096, 1000)):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for factor in (1.0, 0.37, float("nan")):
                seed = [torch.randn(s, device=device).to(dtype) for s in ((rows, cols), (vocab, cols), (vocab,))]
                want, got = [s.clone() for s in seed], [s.clone() for s in seed]
                go = torch.full((), factor, device=device)
                form_base(go, want)
                form(go, got)
                same = all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(want, got, strict=True))
                assert same, f"{name}: differs from the base at {rows}x{cols}x{vocab} {dtype} {factor}"


def candidates(quick: bool) -> dict[str, Form]:
    out: dict[str, Form] = {}
    rows = [(4096, w, p) for w in (8, 16) for p in (2, 4)]
    for b, w, p in rows:
        out[f"rows  block {b:5} warps {w:2} per_sm {p}"] = form_rows(b, w, p)
    shapes = [
        (2048, 4),
        (2048, 8),
        (4096, 4),
        (4096, 8),
        (4096, 16),
        (8192, 4),
        (8192, 8),
        (8192, 16),
        (16384, 8),
    ]
    shapes += [(16384, 16), (32768, 32)]
    if quick:
        shapes = [(4096, 8), (8192, 8)]
    for b, w in shapes:
        for p in (1, 2, 4, 8, 16):
            if p * w > 64:
                continue
            out[f"flat  block {b:5} warps {w:2} per_sm {p}"] = form_flat(b, w, p)
            out[f"one   block {b:5} warps {w:2} per_sm {p}"] = form_one(b, w, p)
        out[f"full  block {b:5} warps {w:2}"] = form_full(b, w, 0)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    global SMS
    SMS = torch.cuda.get_device_properties(device).multi_processor_count
    bt, h, v = 8192, 4096, 128256
    grads = [torch.randn(s, device=device, dtype=torch.bfloat16) for s in ((bt, h), (v, h), (v,))]
    params = [torch.empty_like(g).requires_grad_() for g in grads]
    moved = 2 * sum(g.numel() * g.element_size() for g in grads)
    one = [torch.ones((), device=device)] * 2
    half = [torch.full((), f, device=device) for f in (0.5, 2.0)]

    forms: dict[str, Form] = {"base (kernels only)": form_base_kernels, "base": form_base, "seed": form_seed}
    forms |= candidates(args.quick)
    print(f"{torch.cuda.get_device_name()} torch {torch.__version__} triton {triton.__version__} SMs {SMS}")

    dst = torch.empty_like(grads[1])
    dst.copy_(grads[1])
    torch.cuda.synchronize()
    copy = [gpu_ms(lambda go, gr: dst.copy_(gr[1]), half, grads, 6) for _ in range(5)]
    rate = 2 * grads[1].numel() * 2 / statistics.median(copy) / 1e9
    print(f"copy {rate:.2f} TB/s; floor at 0.5: {moved / rate / 1e9:.3f} ms")

    samples: dict[str, dict[str, list[float]]] = {n: {"gpu_half": [], "gpu_one": []} for n in forms}
    for rounds in range(6):
        for name, form in forms.items():
            half_ms, one_ms = gpu_ms(form, half, grads, 4), gpu_ms(form, one, grads, 20)
            if rounds:
                samples[name]["gpu_half"].append(half_ms)
                samples[name]["gpu_one"].append(one_ms)
    medians = {n: {k: statistics.median(x) for k, x in s.items()} for n, s in samples.items()}
    best = sorted((n for n in forms if not n.startswith("base")), key=lambda n: medians[n]["gpu_half"])
    finalists = ["base", "seed"]
    for kind in ("rows", "flat", "one", "full"):
        finalists += [n for n in best if n.startswith(kind)][:2]

    for name in finalists:
        check(name, forms[name], device)
        samples[name] |= {"step_half": [], "step_one": [], "host_half": [], "host_one": []}
    for rounds in range(25):
        for name in finalists:
            for label, factor in (("half", 0.5 if rounds % 2 else 2.0), ("one", 1.0)):
                step, host = step_ms(forms[name], factor, params, grads)
                if rounds > 4:
                    samples[name][f"step_{label}"].append(step)
                    samples[name][f"host_{label}"].append(host)
    medians = {n: {k: statistics.median(x) for k, x in s.items()} for n, s in samples.items()}

    print(f"\n{'form':44}{'gpu 0.5':>9}{'gpu 1.0':>9}   (ms, kernels back to back; base 1.0 includes its syncs)")
    for name in ["base (kernels only)", "base", "seed", *best[:70]]:
        print(f"{name:44}{medians[name]['gpu_half']:9.4f}{medians[name]['gpu_one']:9.4f}")
    print(f"\n{'finalist':44}{'step 0.5':>10}{'ratio':>7}{'step 1.0':>10}{'ratio':>7}{'host 0.5':>10}{'host 1.0':>10}")
    base = medians["base"]
    for name in finalists:
        m = medians[name]
        r_half, r_one = m["step_half"] / base["step_half"], m["step_one"] / base["step_one"]
        print(
            f"{name:44}{m['step_half']:10.4f}{r_half:7.3f}{m['step_one']:10.4f}{r_one:7.3f}"
            f"{m['host_half']:10.4f}{m['host_one']:10.4f}"
        )
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"medians": medians, "samples": samples, "copy_TBps": rate, "moved_bytes": moved}, f, indent=1)


if __name__ == "__main__":
    main()
