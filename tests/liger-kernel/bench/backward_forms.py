"""Forms of the kernel that scales FLCE's gradients in place, and their device time.

``base`` (a row per program, nothing checked: what the base launches once its host has compared), ``seed`` (a row per
program, check on the device), ``rows`` (rows, bounded grid), ``flat`` (flat, bounded grid, a launch for each gradient),
``one`` (flat, bounded grid, one launch for all), ``full`` (flat, a block per program).
"""

from __future__ import annotations

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
