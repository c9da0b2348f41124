"""The idioms: short pieces of code, each with a recorded number of host syncs on a real GPU.

An idiom takes `Inputs` and returns what to run. What it does before returning (building modules, optimizers) is not
recorded; what the returned function does is. To add one: write it here, then record its count on a GPU with
``record_truth.py``, which writes the data file.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Inputs:
    """Small tensors on the device, made without a copy from the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.x = torch.randn(6, 3, device=device)
        self.v = torch.randn(6, device=device)
        self.s = torch.randn((), device=device)
        self.i = torch.arange(6, device=device) % 3
        self.n = torch.ones(4, dtype=torch.long, device=device) + 1
        self.m = self.v > 0
        self.M = torch.eye(3, device=device).expand(5, 3, 3) * 2.0
        self.j = torch.zeros((), dtype=torch.long, device=device)
        self.xf = torch.full((6,), 0.5, device=device)


Run = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Idiom:
    """One piece of code.

    Attributes:
        name: Names it in the data file and in the docs; never changed.
        make: Prepares, and returns what to run.
        only: The backend it can run on, if not both, and why (``"cuda: …"``).
        differs: Why the virtual backend gives another number than the GPU, if it does.
    """

    name: str
    make: Callable[[Inputs], Run]
    only: str = ""
    differs: str = ""


IDIOMS: list[Idiom] = []


def idiom(name: str, **kwargs: str) -> Callable[[Callable[[Inputs], Run]], Callable[[Inputs], Run]]:
    """Add a function that prepares and returns what to run."""

    def add(make: Callable[[Inputs], Run]) -> Callable[[Inputs], Run]:
        IDIOMS.append(Idiom(name, make, **kwargs))
        return make

    return add


def case(name: str, run: Callable[[Inputs], Any], **kwargs: str) -> None:
    """Add an idiom that needs no preparation."""
    idiom(name, **kwargs)(lambda i: lambda: run(i))


def statement(name: str, **kwargs: str) -> Callable[[Callable[[Inputs], Any]], None]:
    """`case` as a decorator."""
    return lambda run: case(name, run, **kwargs)


# ------------------------------------------------------------------ reads
case("x.item()", lambda i: i.s.item())
case("float(t) / int(t)", lambda i: float(i.s))
case("if t: (bool)", lambda i: bool((i.v > 0).any()))
case("assert torch.all(mask)", lambda i: bool(torch.all(i.v > -99)))
case("t.tolist()", lambda i: i.v.tolist())
case("t.cpu()", lambda i: i.x.cpu())
case("t.to('cpu')", lambda i: i.x.to("cpu"))
case("cpu_buf.copy_(t)", lambda i: torch.empty(6, 3).copy_(i.x))
case("t.numpy(force=True)", lambda i: i.v.numpy(force=True))
case("np.asarray(t.cpu())", lambda i: np.asarray(i.v.cpu()))
case("math.sqrt(t)", lambda i: math.sqrt(i.s.abs()))
case("max(t1, t2) of Python", lambda i: max(i.s, i.s + 1))
case("sorted([t1, t2, t3])", lambda i: sorted([i.s, i.s + 1, i.s + 2]))
case("sum([t1, t2]) of Python", lambda i: sum([i.s, i.s]))
case("a < t < b", lambda i: -99 < i.s < 99)
case("value in t", lambda i: 3 in i.i)
case("t in [t1, t2]", lambda i: i.s in [i.s + 1, i.s + 2])
case("f'{t:.3f}'", lambda i: f"{i.s:.3f}")
case("torch.round / abs(t)", lambda i: (i.s.round(), abs(i.s)))
case("for row in x", lambda i: [row.sum() for row in i.x])
case("for value in v: float(value)", lambda i: [float(value) for value in i.v])
case("len(t), t.shape, t.numel()", lambda i: (len(i.x), i.x.shape, i.x.numel()))
case("isnan(x).any() branch", lambda i: 1 if torch.isnan(i.x).any() else 0)
case("while not converged.all()", lambda i: [1 for _ in range(3) if not (i.v < 99).all()])
case("torch.tensor([t1, t2], device)", lambda i: torch.tensor([i.s, i.s], device=i.device))
case("torch.stack([t1, t2])", lambda i: torch.stack([i.s, i.s]))
case(
    "print(t)",
    lambda i: repr(i.v) + f"{i.s:.3f}",
    differs="the number of reads depends on the values: printing tests each for being an integer",
)
case("torch.equal of two sizes", lambda i: torch.equal(i.v, i.v[1:]))
case("torch.equal", lambda i: torch.equal(i.v, i.v + 1))
case("torch.allclose", lambda i: torch.allclose(i.v, i.v + 1))
case("add(alpha=tensor)", lambda i: torch.add(i.v, i.v, alpha=i.s))
case("torch.linspace(t1, t2)", lambda i: torch.linspace(i.s, i.s + 1, 4, device=i.device))

# ------------------------------------------------------------------ sizes that depend on values
case("torch.nonzero", lambda i: torch.nonzero(i.m))
case("torch.where(cond) 1-arg", lambda i: torch.where(i.m))
case("torch.argwhere", lambda i: torch.argwhere(i.m))
case("x[mask]", lambda i: i.x[i.m])
case("x[mask_a, :, ] via x[:, m3]", lambda i: i.x[:, i.x[0] > 0])
case("x[2-d mask]", lambda i: i.x[i.x > 0])
case("x[mask, long]", lambda i: i.x[i.m, torch.zeros((), dtype=torch.long, device=i.device)])
case("x[uint8 mask]", lambda i: i.x[i.m.to(torch.uint8)])
case("masked_select", lambda i: torch.masked_select(i.v, i.m))
case("torch.unique", lambda i: torch.unique(i.i))
case("unique(return_counts)", lambda i: torch.unique(i.i, return_counts=True))
case("unique(return_inverse)", lambda i: torch.unique(i.i, return_inverse=True))
case("unique(sorted=False)", lambda i: torch.unique(i.i, sorted=False))
case("unique_consecutive", lambda i: torch.unique_consecutive(i.i))
case("unique_consecutive(return_counts)", lambda i: torch.unique_consecutive(i.i, return_counts=True))
case("unique_consecutive(dim=0)", lambda i: torch.unique_consecutive(i.i.view(3, 2), dim=0))
case("unique(dim=0)", lambda i: torch.unique(i.i.view(3, 2), dim=0))
case("unique(dim=0, return_inverse)", lambda i: torch.unique(i.i.view(3, 2), dim=0, return_inverse=True))
case("bincount", lambda i: torch.bincount(i.i))
case("bincount(minlength)", lambda i: torch.bincount(i.i, minlength=8))
case("bincount(weights)", lambda i: torch.bincount(i.i, weights=i.v))
case("histc (min==max)", lambda i: torch.histc(i.v, 4))
case("histc(min,max)", lambda i: torch.histc(i.v, 4, -1.0, 1.0))
case("repeat_interleave(x, n)", lambda i: torch.repeat_interleave(torch.arange(4, device=i.device), i.n))
case(
    "repeat_interleave(output_size)",
    lambda i: torch.repeat_interleave(torch.arange(4, device=i.device), i.n, output_size=8),
)
case("repeat_interleave(x, 2)", lambda i: torch.repeat_interleave(i.v, 2))
case("repeat_interleave(dim, output_size)", lambda i: i.x[:4].repeat_interleave(i.n, dim=0, output_size=8))
case(
    "repeat_interleave(host list)",
    lambda i: i.x[:2].repeat_interleave(torch.tensor([1, 2]).to(i.device), dim=0),
)
case("F.one_hot no num_classes", lambda i: F.one_hot(i.i))
case("F.one_hot(num_classes=)", lambda i: F.one_hot(i.i, 3))
case("torch.combinations", lambda i: torch.combinations(i.v, 2))
case("torch.isin", lambda i: torch.isin(i.i, i.i[:2]))
case("nonzero_static", lambda i: torch.nonzero_static(i.m, size=6))
case("tensor_split(device sections)", lambda i: torch.tensor_split(i.v, i.n[:1].cpu()))
case("split(list)", lambda i: torch.split(i.v, [2, 4]))
case("split(t.tolist())", lambda i: torch.split(i.x, (i.n[:3]).tolist()))

# ------------------------------------------------------------------ bounds from device scalars
case("torch.zeros(t) size from tensor", lambda i: torch.zeros(i.j + 2, device=i.device))
case("x.view(int(t), -1)", lambda i: i.x.view(int(i.j) + 6, -1))
case("x[t] 0-dim int tensor index", lambda i: i.x[i.j])
case("x[:t] slice bound", lambda i: i.x[: i.j + 1])
case("x[a:b] both device scalars", lambda i: i.x[i.j : i.j + 2])
case("range(t)", lambda i: list(range(i.j)))
case("range(a, b) both device scalars", lambda i: list(range(i.j, i.j + 2)))
case("torch.arange(t)", lambda i: torch.arange(i.j + 3, device=i.device))
case("x.narrow(0, t, 1)", lambda i: i.x.narrow(0, i.j, 1))
case("x.narrow(0, 0, int(t))", lambda i: i.x.narrow(0, 0, int(i.j) + 1))
case(
    "loop of slices x[c[k]:c[k+1]]",
    lambda i: [i.x[a:b] for a, b in zip(i.n.cumsum(0)[:2], i.n.cumsum(0)[1:3], strict=True)],
)
case("index_select(0, t)", lambda i: i.x.index_select(0, i.j))

# ------------------------------------------------------------------ host values onto the device
case("torch.full((n,), t.item())", lambda i: torch.full((3,), i.s.item(), device=i.device))
case("torch.tensor(list, device)", lambda i: torch.tensor([1.0, 2.0], device=i.device))
case("torch.tensor(0.1, device)", lambda i: torch.tensor(0.1, device=i.device))
case("torch.as_tensor(0.1, device)", lambda i: torch.as_tensor(0.1, device=i.device))
case("torch.full(python scalar)", lambda i: torch.full((3,), 0.1, device=i.device))
case("torch.full((), 0.1, device)", lambda i: torch.full((), 0.1, device=i.device))
case("torch.scalar_tensor(0.1, device)", lambda i: torch.scalar_tensor(0.1, device=i.device))
case("x.new_tensor(0.1)", lambda i: i.x.new_tensor(0.1))
case("x.new_full / new_zeros", lambda i: (i.x.new_full((2,), 0.1), i.x.new_zeros(2)))
case("torch.as_tensor(numpy, device)", lambda i: torch.as_tensor(np.ones(3), device=i.device))
case("from_numpy().to(device)", lambda i: torch.from_numpy(np.ones(3)).to(i.device))
case("cpu.to(device) pageable", lambda i: torch.ones(3).to(i.device))
case("v[0] = 1.0 (same 0-dim)", lambda i: i.v.__setitem__(0, 1.0))
case("x[0] = 1.0 (row; fill_)", lambda i: i.x.__setitem__(0, 1.0))
case("x[1:3] = 0", lambda i: i.x.__setitem__(slice(1, 3), 0))
case("x[0] = device row", lambda i: i.x.__setitem__(0, i.x[1]))
case("x[0] = host row", lambda i: i.x.__setitem__(0, torch.ones(3)))
case("x[[0,2]] python list", lambda i: i.x[[0, 2]])
case("x[cpu_index_tensor]", lambda i: i.x[torch.tensor([0, 2])])
case("x[cpu mask]", lambda i: i.x[torch.tensor([True, False, True, False, True, False])])
case("x[2-d cpu mask]", lambda i: i.x[torch.ones(6, 3, dtype=torch.bool)])
case("x[cpu_index] = y", lambda i: i.x.__setitem__(torch.tensor([0, 2]), i.x[:2] * 2))
case("x[long] = host scalar", lambda i: i.v.__setitem__(i.i, 1.0))
case("x[cpu mask] = 0", lambda i: i.x.__setitem__(torch.tensor([True, False] * 3), 0))
case("x[long] = 0-dim host tensor", lambda i: i.v.__setitem__(i.i, torch.tensor(2.0)))
case("torch.normal(0, std tensor)", lambda i: torch.normal(0.0, i.xf))
case("unique(dim=0, return_counts)", lambda i: torch.unique(i.i.view(3, 2), dim=0, return_counts=True))
case("fill_(dev 0-dim)", lambda i: i.v.fill_(i.s))
case("fill_(host 0-dim)", lambda i: i.v.fill_(torch.tensor(2.0)))
case("pinned.to(non_blocking)", lambda i: torch.ones(3).pin_memory().to(i.device, non_blocking=True))
case("pinned.to (blocking)", lambda i: torch.ones(3).pin_memory().to(i.device))
case("pinned view.to(non_blocking)", lambda i: torch.ones(3, 3).pin_memory()[1].to(i.device, non_blocking=True))
case(
    "pinned strided.to(non_blocking)",
    lambda i: torch.ones(3, 3).pin_memory()[:, 1].to(i.device, non_blocking=True),
)
case("pageable.to(non_blocking)", lambda i: torch.ones(3).to(i.device, non_blocking=True))
case("t.to('cpu', non_blocking)", lambda i: i.x.to("cpu", non_blocking=True))
case(
    "pinned_buf.copy_(t, non_blocking)",
    lambda i: torch.empty(6, 3, pin_memory=True).copy_(i.x, non_blocking=True),
)
case("cpu_buf.copy_(t, non_blocking)", lambda i: torch.empty(6, 3).copy_(i.x, non_blocking=True))
case("dev.copy_(cpu)", lambda i: i.x.copy_(torch.ones(6, 3)))
case("dev.copy_(cpu 0-dim)", lambda i: i.v.copy_(torch.tensor(2.0)))
case("x.to(other dtype)", lambda i: i.x.to(torch.float64))
case("x.to(device) already there", lambda i: i.x.to(i.device))
case("x.double().cpu()", lambda i: i.x.double().cpu())
case("x.to('cpu', float64)", lambda i: i.x.to("cpu", torch.float64))
case("x.t().cpu()", lambda i: i.x.t().cpu())
case(
    "torch._foreach_copy_ from host",
    lambda i: torch._foreach_copy_([i.v, i.x], [torch.ones(6), torch.ones(6, 3)]),
)
case("torch._foreach_mul_(list, device 0-dim)", lambda i: torch._foreach_mul_([i.v, i.x], i.s))
case("torch._foreach_div_(list, host 0-dim)", lambda i: torch._foreach_div_([i.v, i.x], torch.tensor(2.0)))
case("t * python scalar", lambda i: i.v * 2.5 + 1)
case("t * cpu 0-dim tensor", lambda i: i.v * torch.tensor(2.5))
case("t * numpy scalar", lambda i: i.v * np.float32(2.5))
case("torch.where(m, x, cpu 0-dim)", lambda i: torch.where(i.m, i.v, torch.tensor(0.0)))
case("arange(n)/eye/zeros(device)", lambda i: (torch.arange(5, device=i.device), torch.eye(3, device=i.device)))
case("tril_indices(device)", lambda i: torch.tril_indices(3, 3, device=i.device))
case("torch.randperm(n, device)", lambda i: torch.randperm(10, device=i.device))
case(
    "rand/randint/normal(device)",
    lambda i: (torch.rand(3, device=i.device), torch.randint(0, 5, (3,), device=i.device), i.v.normal_()),
)
case("torch.normal(mean, std tensors)", lambda i: torch.normal(i.v, i.xf))
case(
    "torch.Generator(device)",
    lambda i: torch.randn(3, generator=torch.Generator(i.device).manual_seed(0), device=i.device),
)
case("torch.manual_seed", lambda i: torch.manual_seed(0))

# ------------------------------------------------------------------ masked writes
case("x[mask] = x[mask]*2", lambda i: i.x.__setitem__(i.m, i.x[i.m] * 2))
case("x[mask] = 0-dim DEVICE tensor", lambda i: i.v.__setitem__(i.m, i.s))


@statement("x[mask] += 1")
def _(i: Inputs) -> None:
    i.x[i.m] += 1


case("x[mask] = 0", lambda i: i.x.__setitem__(i.m, 0))
case("x[mask, 0] = 0", lambda i: i.x.__setitem__((i.m, 0), 0))
case("index_put_((mask,), cpu scalar)", lambda i: i.x.index_put_((i.m,), torch.tensor(0.0)))
case("index_put_(accumulate=True)", lambda i: i.x.index_put_((i.i,), i.x * 2, accumulate=True))
case("x[long_idx] = y", lambda i: i.x.__setitem__(i.i, i.x * 2))
case("x[long_idx]", lambda i: i.x[i.i])
case("x[..., None, long]", lambda i: i.x[..., None, i.i[:2]])
case("torch.where 3-arg", lambda i: torch.where(i.m, i.v, 0.0))
case("masked_fill_", lambda i: i.v.masked_fill_(i.m, 0.0))
case("masked_fill(0-dim dev tensor)", lambda i: i.v.masked_fill(i.m, i.s))
case("masked_fill(cpu 0-dim tensor)", lambda i: i.v.masked_fill(i.m, torch.tensor(1.0)))
case("masked_scatter_", lambda i: i.v.masked_scatter_(i.m, i.v))
case("index_fill_(dev value)", lambda i: i.v.index_fill_(0, i.i[:2], i.s))
case("index_fill_(python value)", lambda i: i.v.index_fill_(0, i.i[:2], 1.0))
case(
    "index_copy_ / index_reduce_",
    lambda i: (i.x.index_copy_(0, i.i[:3], i.x[:3] * 2), i.x.index_reduce_(0, i.i, i.x.clone(), "amax")),
)
case("torch.put_ / take", lambda i: (i.v.put_(i.i, i.v.clone()), i.v.take(i.i)))
case("nan_to_num_", lambda i: i.x.nan_to_num_(0.0))
case("masked mean", lambda i: (i.v * i.m).sum() / i.m.sum().clamp(min=1))
case("clamp(min=1)", lambda i: i.v.clamp(min=1))
case("clamp(min=device tensor)", lambda i: i.v.clamp(min=i.s))
case("scatter_add_", lambda i: torch.zeros(3, device=i.device).scatter_add_(0, i.i, i.v))
case("scatter_reduce", lambda i: torch.zeros(3, device=i.device).scatter_reduce(0, i.i, i.v, "sum"))
case("scatter_(value=python)", lambda i: torch.zeros(6, device=i.device).scatter_(0, i.i, 1.0))
case(
    "index_add_ / index_select",
    lambda i: torch.zeros(3, 3, device=i.device).index_add_(0, i.i, i.x).index_select(0, i.i),
)
case("segment_reduce", lambda i: torch.segment_reduce(i.v, "sum", lengths=torch.full((3,), 2, device=i.device)))
case(
    "segment_reduce(unsafe)",
    lambda i: torch.segment_reduce(i.v, "sum", lengths=torch.full((3,), 2, device=i.device), unsafe=True),
)

# ------------------------------------------------------------------ linear algebra
case("linalg.solve", lambda i: torch.linalg.solve(i.M, i.M))
case("linalg.inv", lambda i: torch.linalg.inv(i.M))
case("linalg.cholesky", lambda i: torch.linalg.cholesky(i.M))
case("linalg.eigh", lambda i: torch.linalg.eigh(i.M))
case("linalg.eigvalsh", lambda i: torch.linalg.eigvalsh(i.M))
_MAGMA = "MAGMA waits dozens of times for each matrix; the virtual backend counts torch's own waits"
case("linalg.eigvals", lambda i: torch.linalg.eigvals(i.M), differs=_MAGMA)
case("linalg.eig", lambda i: torch.linalg.eig(i.M), differs=_MAGMA)
case("linalg.eigh of one matrix", lambda i: torch.linalg.eigh(i.M[0]))
case(
    "linalg.eigh of 40x40 matrices",
    lambda i: torch.linalg.eigh(torch.eye(40, device=i.device).expand(3, 40, 40)),
)
case("linalg.svd of 40x40 matrices", lambda i: torch.linalg.svd(torch.eye(40, device=i.device).expand(3, 40, 40)))
case("linalg.svd", lambda i: torch.linalg.svd(i.M))
case("linalg.svd of one matrix", lambda i: torch.linalg.svd(i.M[0]))
case(
    "linalg.svd(driver='gesvd')",
    lambda i: torch.linalg.svd(i.M, driver="gesvd"),
    only="cuda: the CPU implementation takes no driver",
)
case("linalg.svdvals", lambda i: torch.linalg.svdvals(i.M))
case("linalg.pinv", lambda i: torch.linalg.pinv(i.M))
case("linalg.matrix_rank", lambda i: torch.linalg.matrix_rank(i.M))
case("linalg.cond", lambda i: torch.linalg.cond(i.M))
case("linalg.qr", lambda i: torch.linalg.qr(i.M))
case("linalg.lstsq", lambda i: torch.linalg.lstsq(i.M, i.M))
case("linalg.lu_factor", lambda i: torch.linalg.lu_factor(i.M))
case("linalg.lu_factor_ex", lambda i: torch.linalg.lu_factor_ex(i.M))
case("linalg.ldl_factor", lambda i: torch.linalg.ldl_factor(i.M))
case("linalg.cholesky_ex", lambda i: torch.linalg.cholesky_ex(i.M))
case("torch.cholesky_inverse", lambda i: torch.cholesky_inverse(i.M))
case("torch.cholesky_solve", lambda i: torch.cholesky_solve(i.M, i.M))
case("linalg.solve_triangular", lambda i: torch.linalg.solve_triangular(i.M, i.M, upper=True))
case("linalg.slogdet", lambda i: torch.linalg.slogdet(i.M))
case("linalg.det", lambda i: torch.linalg.det(i.M))
case("linalg.solve_ex/inv_ex", lambda i: (torch.linalg.solve_ex(i.M, i.M), torch.linalg.inv_ex(i.M)))
case("inv_ex(check_errors=True)", lambda i: torch.linalg.inv_ex(i.M, check_errors=True))
case("linalg.norm/cross", lambda i: (torch.linalg.vector_norm(i.x, dim=-1), torch.linalg.cross(i.x, i.x)))
case("linalg.matrix_norm", lambda i: torch.linalg.matrix_norm(i.M))
case("linalg.matrix_norm(2)", lambda i: torch.linalg.matrix_norm(i.M, 2))
case("linalg.matrix_power", lambda i: torch.linalg.matrix_power(i.M, 3))
case("matrix_exp", lambda i: torch.matrix_exp(i.M))
case("matrix_exp of one matrix", lambda i: torch.matrix_exp(i.M[0]))
case("matrix_exp of one matrix, norm 1e-9", lambda i: torch.matrix_exp(i.M[0] * 5e-10))
case("matrix_exp of one matrix, norm 1e-4", lambda i: torch.matrix_exp(i.M[0] * 5e-5))
case("matrix_exp of one matrix, norm 0.01", lambda i: torch.matrix_exp(i.M[0] * 5e-3))
case("matrix_exp of one matrix, norm 0.5", lambda i: torch.matrix_exp(i.M[0] * 0.25))
case("matrix_exp of one matrix, norm 1", lambda i: torch.matrix_exp(i.M[0] * 0.5))
case("matrix_exp of one matrix, float64 norm 0.1", lambda i: torch.matrix_exp(i.M[0].double() * 0.05))
case("matrix_exp, tiny norm", lambda i: torch.matrix_exp(i.M * 1e-9))
case("matrix_exp, small norm", lambda i: torch.matrix_exp(i.M * 1e-4))
case("matrix_exp, norm 0.1", lambda i: torch.matrix_exp(i.M * 0.05))
case("matrix_exp, norm 1", lambda i: torch.matrix_exp(i.M * 0.5))
case("matrix_exp, norm 10", lambda i: torch.matrix_exp(i.M * 5))
case(
    "matrix_exp, norms 1e-9 to 20",
    lambda i: torch.matrix_exp(i.M * torch.logspace(-9, 1, 5, device=i.device)[:, None, None]),
)
case("matrix_exp, float64 norm 2", lambda i: torch.matrix_exp(i.M.double()))
case("torch.trapezoid / diff", lambda i: (torch.trapezoid(i.v), torch.diff(i.v)))
case("torch.cov / corrcoef", lambda i: (torch.cov(i.x), torch.corrcoef(i.x)))
case("torch.cdist", lambda i: torch.cdist(i.x, i.x))
case("bmm/einsum", lambda i: torch.einsum("bij,bjk->bik", i.M, torch.bmm(i.M, i.M)))
case(
    "torch.lobpcg",
    lambda i: torch.lobpcg(torch.eye(9, device=i.device) * 2, k=1, niter=2),
    differs="the number of iterations depends on the values",
)

# ------------------------------------------------------------------ reductions, sorting, sampling
case("isfinite().all() no branch", lambda i: torch.isfinite(i.v).all())
case("cumsum/sort/topk/argsort", lambda i: (i.v.cumsum(0), i.v.sort(), i.v.topk(2), i.v.argsort()))
case("sort(stable, descending) of a matrix", lambda i: i.x.sort(dim=0, stable=True, descending=True))
case("std/var/mean/amax", lambda i: (i.v.std(), i.x.var(0), i.x.amax(0)))
case("median / quantile", lambda i: torch.median(i.v))
case("quantile / nanquantile", lambda i: (i.v.quantile(0.5), i.v.nanquantile(0.5)))
case("kthvalue / nanmedian", lambda i: (i.v.kthvalue(2), i.v.nanmedian()))
case("torch.mode", lambda i: torch.mode(i.v))
case("cummax / logcumsumexp / cumprod", lambda i: (i.v.cummax(0), i.v.logcumsumexp(0), i.v.cumprod(0)))
case("multinomial", lambda i: torch.multinomial(i.xf, 2))
case("multinomial(replacement)", lambda i: torch.multinomial(i.xf, 2, replacement=True))
case("torch.bernoulli / poisson", lambda i: (torch.bernoulli(i.xf), torch.poisson(i.xf)))
case("bucketize/searchsorted", lambda i: torch.searchsorted(i.v.sort()[0], i.v))
case("searchsorted(sorter)", lambda i: torch.searchsorted(i.v, i.v, sorter=i.v.argsort()))
case("torch._assert_async", lambda i: torch._assert_async(i.v.isfinite().all()))
case(
    "fft / stft",
    lambda i: (
        torch.fft.rfft(i.v),
        torch.stft(torch.ones(64, device=i.device), 16, window=torch.ones(16, device=i.device), return_complex=True),
    ),
)
case("torch.roll / flip / rot90", lambda i: (i.x.roll(1, 0), i.x.flip(0), i.x.rot90()))
case(
    "torch.tensordot / kron / outer",
    lambda i: (torch.tensordot(i.x, i.x, dims=2), torch.kron(i.x, i.x), torch.outer(i.v, i.v)),
)
case(
    "Normal(validate_args).log_prob",
    lambda i: torch.distributions.Normal(i.v, i.xf, validate_args=True).log_prob(i.v),
)
case(
    "Normal(validate_args=False)",
    lambda i: torch.distributions.Normal(i.v, i.xf, validate_args=False).log_prob(i.v),
)
case(
    "Categorical(logits).sample()",
    lambda i: torch.distributions.Categorical(logits=i.v, validate_args=False).sample(),
)

# ------------------------------------------------------------------ streams and events


@statement("event.synchronize()")
def _(i: Inputs) -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


@statement("event.query()")
def _(i: Inputs) -> None:
    event = torch.cuda.Event()
    event.record()
    event.query()


case("stream.synchronize()", lambda i: torch.cuda.current_stream().synchronize())
case("torch.cuda.synchronize()", lambda i: torch.cuda.synchronize())


@statement("stream.wait_stream()")
def _(i: Inputs) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        i.x.mul_(2)
    torch.cuda.current_stream().wait_stream(side)


@statement("copy to pinned, event.synchronize(), read")
def _(i: Inputs) -> float:
    host = torch.empty(6, pin_memory=True)
    host.copy_(i.v, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return float(host.sum())


@statement("to('cpu', non_blocking), stream.synchronize()")
def _(i: Inputs) -> float:
    host = i.v.to("cpu", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return float(host.sum())


# ------------------------------------------------------------------ modules


@idiom("Linear/LayerNorm/GELU forward+backward")
def _(i: Inputs) -> Run:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1)).to(i.device)
    return lambda: model(i.x).sum().backward()


@idiom("conv/batchnorm/maxpool forward+backward")
def _(i: Inputs) -> Run:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).to(i.device)
    image = torch.randn(2, 3, 8, 8, device=i.device)
    return lambda: model(image).sum().backward()


def _rnn(kind: Callable[..., nn.Module], **kwargs: Any) -> Callable[[Inputs], Run]:
    def make(i: Inputs) -> Run:
        model = kind(3, 4, **kwargs).to(i.device)
        sequence = torch.randn(5, 2, 3, device=i.device)
        return lambda: model(sequence)[0].sum().backward()

    return make


idiom("LSTM forward+backward")(_rnn(nn.LSTM))
idiom("GRU forward+backward")(_rnn(nn.GRU))
idiom("RNN forward+backward")(_rnn(nn.RNN))
idiom("LSTM bidirectional, 2 layers, dropout")(_rnn(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.1))


@idiom("LSTM on a packed sequence")
def _(i: Inputs) -> Run:
    model = nn.LSTM(3, 4).to(i.device)
    sequence = torch.randn(5, 2, 3, device=i.device)

    def run() -> None:
        packed = nn.utils.rnn.pack_padded_sequence(sequence, torch.tensor([5, 3]))
        nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].sum().backward()

    return run


@idiom("LSTMCell")
def _(i: Inputs) -> Run:
    cell = nn.LSTMCell(3, 4).to(i.device)
    return lambda: cell(i.x)


@idiom("MultiheadAttention forward+backward")
def _(i: Inputs) -> Run:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).to(i.device)
    q = torch.randn(2, 4, 8, device=i.device)
    return lambda: attention(q, q, q)[0].sum().backward()


@idiom("MultiheadAttention(key_padding_mask)")
def _(i: Inputs) -> Run:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).to(i.device)
    q = torch.randn(2, 4, 8, device=i.device)
    padding = torch.zeros(2, 4, dtype=torch.bool, device=i.device)
    return lambda: attention(q, q, q, key_padding_mask=padding)[0].sum().backward()


@idiom("TransformerEncoderLayer, eval")
def _(i: Inputs) -> Run:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(i.device).eval()
    q = torch.randn(2, 4, 8, device=i.device)

    def run() -> None:
        with torch.no_grad():
            layer(q)

    return run


def _attention(**kwargs: Any) -> Callable[[Inputs], Run]:
    def make(i: Inputs) -> Run:
        q, k, v = (torch.randn(1, 2, 8, 8, device=i.device, requires_grad=True) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, **kwargs).sum().backward()

    return make


idiom("scaled_dot_product_attention")(_attention())
idiom("scaled_dot_product_attention(is_causal)")(_attention(is_causal=True))


@idiom("scaled_dot_product_attention(attn_mask)")
def _(i: Inputs) -> Run:
    q = torch.randn(1, 2, 8, 8, device=i.device)
    mask = torch.ones(8, 8, dtype=torch.bool, device=i.device).tril()
    return lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@idiom("Embedding + cross_entropy forward+backward")
def _(i: Inputs) -> Run:
    model = nn.Embedding(10, 4).to(i.device)
    target = torch.randint(0, 4, (6,), device=i.device)
    return lambda: F.cross_entropy(model(i.i), target).backward()


@idiom("Embedding(padding_idx) backward")
def _(i: Inputs) -> Run:
    model = nn.Embedding(10, 4, padding_idx=0).to(i.device)
    return lambda: model(i.i).sum().backward()


@idiom("Embedding(max_norm)")
def _(i: Inputs) -> Run:
    model = nn.Embedding(10, 4, max_norm=1.0).to(i.device)
    return lambda: model(i.i)


@idiom("Embedding(sparse=True) backward")
def _(i: Inputs) -> Run:
    model = nn.Embedding(10, 4, sparse=True).to(i.device)
    return lambda: model(i.i).sum().backward()


@idiom("EmbeddingBag")
def _(i: Inputs) -> Run:
    model = nn.EmbeddingBag(10, 4).to(i.device)
    offsets = torch.arange(2, device=i.device) * 3
    return lambda: model(i.i, offsets).sum().backward()


case("cross_entropy(ignore_index, weight)", lambda i: F.cross_entropy(i.x, i.i, weight=i.xf[:3], ignore_index=1))
case(
    "losses: mse, l1, huber, bce, kl",
    lambda i: (
        F.mse_loss(i.v, i.v),
        F.l1_loss(i.v, i.v),
        F.huber_loss(i.v, i.v),
        F.binary_cross_entropy_with_logits(i.v, i.xf),
        F.kl_div(i.v, i.xf),
    ),
)


@idiom("ctc_loss(device lengths)")
def _(i: Inputs) -> Run:
    log_probs = torch.randn(8, 2, 5, device=i.device).log_softmax(-1)
    targets = torch.ones(2, 3, dtype=torch.long, device=i.device)
    lengths = torch.full((2,), 8, device=i.device), torch.full((2,), 3, device=i.device)
    return lambda: F.ctc_loss(log_probs, targets, *lengths)


case(
    "interpolate / pad / grid_sample",
    lambda i: (
        F.interpolate(i.x[None, None], scale_factor=2),
        F.pad(i.x, (1, 1)),
        F.grid_sample(i.x[None, None], torch.zeros(1, 2, 2, 2, device=i.device), align_corners=False),
    ),
)
case("layer_norm / dropout / softmax", lambda i: F.dropout(F.layer_norm(i.x, (3,)).softmax(-1), 0.5))
case("gumbel_softmax / normalize", lambda i: (F.gumbel_softmax(i.x), F.normalize(i.x)))


@idiom("module.to(device)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2)
    return lambda: model.to(i.device)


@idiom("load_state_dict from host")
def _(i: Inputs) -> Run:
    model, state = nn.Linear(3, 2).to(i.device), nn.Linear(3, 2).state_dict()
    return lambda: model.load_state_dict(state)


@idiom("state_dict to host")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    return lambda: {name: tensor.cpu() for name, tensor in model.state_dict().items()}


@idiom("torch.save(state_dict)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    return lambda: torch.save(model.state_dict(), io.BytesIO())


@idiom("deepcopy(module)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    return lambda: copy.deepcopy(model)


# ------------------------------------------------------------------ training
def _clip(i: Inputs, error_if_nonfinite: bool) -> None:
    parameter = nn.Parameter(i.v.detach().clone())
    parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=error_if_nonfinite)


case("clip_grad_norm_(error_if_nonfinite)", lambda i: _clip(i, True))
case("clip_grad_norm_", lambda i: _clip(i, False))


def _training(optimizer: Callable[..., torch.optim.Optimizer], steps: int = 2, **kwargs: Any) -> Any:
    def make(i: Inputs) -> Run:
        model = nn.Linear(3, 2).to(i.device)
        opt = optimizer(model.parameters(), lr=0.1, **kwargs)

        def run() -> None:
            for _ in range(steps):
                opt.zero_grad()
                model(i.x).sum().backward()
                opt.step()

        return run

    return make


idiom("AdamW step x2")(_training(torch.optim.AdamW))
idiom("AdamW(fused)")(_training(torch.optim.AdamW, fused=True))
idiom("AdamW(foreach)")(_training(torch.optim.AdamW, foreach=True))
idiom("AdamW(foreach=False)")(_training(torch.optim.AdamW, foreach=False))
idiom("AdamW(capturable)")(_training(torch.optim.AdamW, capturable=True))
idiom("Adam(amsgrad, maximize)")(_training(torch.optim.Adam, amsgrad=True, maximize=True))
idiom("SGD(momentum, nesterov)")(_training(torch.optim.SGD, momentum=0.9, nesterov=True))
idiom("SGD(fused)")(_training(torch.optim.SGD, fused=True))
idiom("RMSprop")(_training(torch.optim.RMSprop))
idiom("Adagrad")(_training(torch.optim.Adagrad))
idiom("NAdam")(_training(torch.optim.NAdam))
idiom("RAdam")(_training(torch.optim.RAdam))
idiom("Adafactor")(_training(torch.optim.Adafactor))


@idiom("AdamW(lr=device tensor)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    opt = torch.optim.AdamW(model.parameters(), lr=torch.full((), 0.1, device=i.device), capturable=True)

    def run() -> None:
        model(i.x).sum().backward()
        opt.step()

    return run


@idiom("clip_grad_norm_ of a model, step, zero_grad")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        model(i.x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

    return run


@idiom("lr_scheduler step")
def _(i: Inputs) -> Run:
    opt = torch.optim.SGD(nn.Linear(3, 2).to(i.device).parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    opt.step()
    return scheduler.step


@idiom("GradScaler scale/step/update")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    def run() -> None:
        scaler.scale(model(i.x).sum()).backward()
        scaler.step(opt)
        scaler.update()

    run()  # the first call moves the scale to the device
    return run


@idiom("GradScaler first call")
def _(i: Inputs) -> Run:
    scaler = torch.amp.GradScaler("cuda")
    return lambda: scaler.scale(i.s)


@idiom("GradScaler unscale_ + clip + step")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(i.s)

    def run() -> None:
        scaler.scale(model(i.x).sum()).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    return run


@idiom("GradScaler with AdamW(fused)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(i.s)

    def run() -> None:
        scaler.scale(model(i.x).sum()).backward()
        scaler.step(opt)
        scaler.update()

    return run


@idiom("autocast(bfloat16) forward+backward")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 2).to(i.device)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(i.x)
        out.float().sum().backward()

    return run


@idiom("DataLoader(pin_memory) + non_blocking")
def _(i: Inputs) -> Run:
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True)
    return lambda: [batch.to(i.device, non_blocking=True) for (batch,) in loader]


@idiom("DataLoader + blocking copies")
def _(i: Inputs) -> Run:
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2)
    return lambda: [batch.to(i.device) for (batch,) in loader]


@idiom("DataLoader with workers, pinned")
def _(i: Inputs) -> Run:
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True, num_workers=1)
    return lambda: [batch.to(i.device, non_blocking=True) for (batch,) in loader]


# ------------------------------------------------------------------ autograd
@statement("backward of masked_scatter")
def _(i: Inputs) -> None:
    w = i.v.clone().requires_grad_()
    i.v.clone().masked_scatter(i.m, w).sum().backward()


@statement("backward of x[mask]")
def _(i: Inputs) -> None:
    w = i.x.clone().requires_grad_()
    (w[i.m] * 2).sum().backward()


@statement("backward matmul")
def _(i: Inputs) -> None:
    w = i.x.clone().requires_grad_()
    (w @ w.T).relu().sum().backward()


case("backward linalg.inv", lambda i: torch.linalg.inv(i.M.clone().requires_grad_()).sum().backward())
case("backward linalg.solve", lambda i: torch.linalg.solve(i.M.clone().requires_grad_(), i.M).sum().backward())
case("backward linalg.cholesky", lambda i: torch.linalg.cholesky(i.M.clone().requires_grad_()).sum().backward())
case("backward linalg.det", lambda i: torch.linalg.det(i.M.clone().requires_grad_()).sum().backward())
case("backward linalg.slogdet", lambda i: torch.linalg.slogdet(i.M.clone().requires_grad_())[1].sum().backward())
case("backward linalg.eigh", lambda i: torch.linalg.eigh(torch.diag(i.v).requires_grad_())[0].sum().backward())
case("backward matrix_exp", lambda i: torch.matrix_exp(i.M.clone().requires_grad_()).sum().backward())
case("backward prod", lambda i: i.v.clone().requires_grad_().prod().backward())
case("backward prod(dim)", lambda i: i.x.clone().requires_grad_().prod(0).sum().backward())
case("backward cumprod", lambda i: i.v.clone().requires_grad_().cumprod(0).sum().backward())
case(
    "backward max/median/sort",
    lambda i: [f(i.v.clone().requires_grad_()).backward() for f in (torch.max, torch.median, lambda t: t.sort()[0][0])],
)
case(
    "backward norm/std",
    lambda i: [f(i.v.clone().requires_grad_()).backward() for f in (torch.linalg.vector_norm, torch.std)],
)
case("backward masked_select", lambda i: torch.masked_select(i.v.clone().requires_grad_(), i.m).sum().backward())
case("backward x[long]", lambda i: i.x.clone().requires_grad_()[i.i].sum().backward())
case("backward index_select", lambda i: i.x.clone().requires_grad_().index_select(0, i.i).sum().backward())
case(
    "backward gather/scatter_add",
    lambda i: torch.zeros(3, device=i.device).scatter_add(0, i.i, i.v.clone().requires_grad_()).sum().backward(),
)
case(
    "backward scatter_reduce(amax)",
    lambda i: (
        torch.zeros(3, device=i.device).scatter_reduce(0, i.i, i.v.clone().requires_grad_(), "amax").sum().backward()
    ),
)
case(
    "backward repeat_interleave(output_size)",
    lambda i: torch.repeat_interleave(i.x[:4].clone().requires_grad_(), i.n, dim=0, output_size=8).sum().backward(),
)
case(
    "backward where/clamp",
    lambda i: torch.where(i.m, i.v.clone().requires_grad_().clamp(min=0), 0.0).sum().backward(),
)
case("backward cdist", lambda i: torch.cdist(i.x.clone().requires_grad_(), i.x).sum().backward())
case(
    "backward interpolate(bilinear)",
    lambda i: F.interpolate(i.x[None, None].clone().requires_grad_(), scale_factor=2, mode="bilinear").sum().backward(),
)


@idiom("autograd.Function .item in backward")
def _(i: Inputs) -> Run:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (a,) = ctx.saved_tensors
            return grad * 2 if float(grad.sum()) != 0 else a

    return lambda: Reads.apply(i.x.clone().requires_grad_()).sum().backward()


@idiom("autograd.Function without reads")
def _(i: Inputs) -> Run:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    return lambda: Doubles.apply(i.x.clone().requires_grad_()).sum().backward()


@statement("double backward")
def _(i: Inputs) -> None:
    w = i.v.clone().requires_grad_()
    (grad,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
    grad.sum().backward()


@statement("checkpoint(use_reentrant=False)")
def _(i: Inputs) -> None:
    checkpoint(lambda a: (a @ a.T).relu(), i.x.clone().requires_grad_(), use_reentrant=False).sum().backward()


@statement("checkpoint(use_reentrant=True)")
def _(i: Inputs) -> None:
    checkpoint(lambda a: (a @ a.T).relu(), i.x.clone().requires_grad_(), use_reentrant=True).sum().backward()


@statement("checkpoint of x[mask]")
def _(i: Inputs) -> None:
    checkpoint(lambda a: a[i.m] * 2, i.x.clone().requires_grad_(), use_reentrant=False).sum().backward()


@statement("detect_anomaly")
def _(i: Inputs) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        (i.v.clone().requires_grad_() * 2).sum().backward()


@statement("tensor and module hooks")
def _(i: Inputs) -> None:
    w = i.v.clone().requires_grad_()
    w.register_hook(lambda grad: grad * 2)
    (w * 3).sum().backward()


case("vmap", lambda i: torch.vmap(lambda row: (row * 2).sum())(i.x))
case(
    "func.grad / jacrev",
    lambda i: (torch.func.grad(lambda a: (a * a).sum())(i.v), torch.func.jacrev(lambda a: a * a)(i.v)),
)
case("func.jvp", lambda i: torch.func.jvp(torch.sin, (i.v,), (i.v,)))
case("func.hessian", lambda i: torch.func.hessian(lambda a: (a**3).sum())(i.v))


@idiom("func.functional_call + vmap(grad)")
def _(i: Inputs) -> Run:
    model = nn.Linear(3, 1).to(i.device)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def loss(p: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, p, (row[None],)).sum()

    return lambda: torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, i.x)


# ------------------------------------------------------------------ views, out=, layouts
@statement("in-place on views")
def _(i: Inputs) -> None:
    row = i.x[1]
    row.zero_()
    i.x.t().mul_(2)
    i.x.unsqueeze_(0).squeeze_(0)
    i.x.t_().t_()


@statement("view + in-place under autograd")
def _(i: Inputs) -> None:
    w = i.x.clone().requires_grad_()
    y = w * 1
    y[1].mul_(2)
    y[:, 0] = 0
    y.sum().backward()


@statement("out=")
def _(i: Inputs) -> None:
    out = torch.empty(6, 6, device=i.device)
    torch.mm(i.x, i.x.T, out=out)
    torch.add(out, 1, out=out)


case(
    "torch.nonzero(out=)",
    lambda i: torch.nonzero(i.m, out=torch.empty(0, 1, dtype=torch.long, device=i.device)),
)
case(
    "resize_ / set_ / .data =",
    lambda i: (torch.empty(3, device=i.device).resize_(9), setattr(nn.Parameter(i.v), "data", i.v * 2)),
)
case("torch.cat/stack/unbind/chunk", lambda i: torch.stack(list(torch.cat([i.x, i.x]).unbind(0))).chunk(3))
case(
    "as_strided / unfold / expand",
    lambda i: (i.v.as_strided((2, 2), (1, 1)), i.v.unfold(0, 2, 1), i.s.expand(3)),
)
case("complex / view_as_real", lambda i: torch.view_as_real(torch.complex(i.v, i.v) * 2))
case(
    "quantize_per_tensor(python scale)",
    lambda i: torch.quantize_per_tensor(i.v, 0.1, 0, torch.qint8),
    differs="quantized tensors are not covered",
)

# ------------------------------------------------------------------ sparse and nested


def _coo(i: Inputs, **kwargs: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.stack([i.i, i.i]), i.v, (3, 3), **kwargs)


case("sparse_coo_tensor(size)", lambda i: _coo(i))
case("sparse_coo_tensor(no size)", lambda i: torch.sparse_coo_tensor(torch.stack([i.i, i.i]), i.v))
case(
    "sparse_coo_tensor(is_coalesced)",
    lambda i: torch.sparse_coo_tensor(torch.stack([i.i[:3], i.i[:3]]), i.v[:3], (3, 3), is_coalesced=True),
)
case("sparse coalesce", lambda i: _coo(i).coalesce())
case("sparse @ dense", lambda i: torch.sparse.mm(_coo(i), i.x[:3]))
case("sparse to_dense", lambda i: _coo(i).to_dense())
case("dense to_sparse", lambda i: i.x.to_sparse())
case("dense to_sparse_csr", lambda i: i.x.to_sparse_csr())
case("sparse sum", lambda i: torch.sparse.sum(_coo(i)))
case(
    "sparse_csr_tensor @ dense",
    lambda i: torch.sparse_csr_tensor(torch.arange(4, device=i.device), i.i[:3], i.v[:3], (3, 3)) @ i.x[:3],
)
case(
    "nested_tensor(jagged) from parts",
    lambda i: torch.nested.nested_tensor([i.x[:2], i.x[2:]], layout=torch.jagged),
)
case(
    "nested_tensor_from_jagged",
    lambda i: torch.nested.nested_tensor_from_jagged(i.x, torch.arange(3, device=i.device) * 3) * 2,
)
case(
    "nested jagged to_padded",
    lambda i: torch.nested.nested_tensor_from_jagged(
        i.x, torch.arange(3, device=i.device) * 3, max_seqlen=3
    ).to_padded_tensor(0.0),
)


@idiom("torch.compile(backend='eager')")
def _(i: Inputs) -> Run:
    compiled = torch.compile(lambda a: (a * 2).sum(), backend="eager")
    compiled(i.x)
    return lambda: compiled(i.x)


@idiom("torch.compile'd x[mask]")
def _(i: Inputs) -> Run:
    compiled = torch.compile(lambda a, m: a[m] * 2, backend="eager")
    compiled(i.x, i.m)
    return lambda: compiled(i.x, i.m)
