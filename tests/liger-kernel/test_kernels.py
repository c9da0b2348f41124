"""The kernels: what scales the gradients, and that nobody else's kernel changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from interpreted import INTERPRETED
from two_trees import tree_path

from nosync.hostsync import forbid_host_syncs, value


def gradients(device: torch.device, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Every layout: long and contiguous, transposed, a vector, rows apart."""
    gen = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=gen).to(dtype) for shape in ((33, 700), (35, 7), (129,), (7, 300))]
    long, tall, vector, wide = (t.to(device) for t in made)
    return [long, tall.t(), vector, wide[:, :200]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.37, 0.0, -2.0, float("inf"), float("nan")])
def test_gradients_are_scaled_once(
    liger: ModuleType, device: torch.device, dtype: torch.dtype, factor: float, seed: int, monkeypatch: Any
) -> None:
    """Bitwise the product in float32, rounded once; few programs walk over all blocks; and no wait."""
    utils = liger.ops.utils
    monkeypatch.setattr(utils, "get_core_count", lambda device: 1)
    monkeypatch.setattr(utils, "_SCALE_BLOCK_SIZE", 1024)
    grads = gradients(device, dtype, seed)
    wanted = [(value(g).float() * torch.tensor(factor)).to(dtype) for g in grads]
    scalar = torch.full((), factor, device=device)
    with forbid_host_syncs():
        utils.scale_grads_(scalar, grads[0], None, grads[2])
        utils.scale_grads_(scalar, grads[1])
        utils.scale_grads_(scalar, grads[3])
        utils.scale_grads_(scalar, torch.empty(0, 4, device=device), None)
    # The interpreter rounds to bfloat16 by cutting bits off.
    bound = 2.0**-7 if INTERPRETED and dtype == torch.bfloat16 else 0.0
    for got, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(value(got), want, rtol=bound, atol=0, equal_nan=True, msg=f"seed {seed}")


def test_a_gradient_of_one_touches_nothing(liger: ModuleType, device: torch.device) -> None:
    """Not even a NaN's payload changes."""
    bits = torch.full((9, 50), 0x7FC0_1234, dtype=torch.int32)
    grads = [bits.view(torch.float32).clone().to(device), bits.view(torch.float32).clone().to(device)[:, :30]]
    liger.ops.utils.scale_grads_(torch.ones((), device=device), *grads)
    for grad in grads:
        assert (value(grad).view(torch.int32) == 0x7FC0_1234).all()


def test_what_lies_between_the_rows_is_left_alone(liger: ModuleType, device: torch.device) -> None:
    """A tensor that is not dense: only its own elements are scaled."""
    whole = torch.ones(7, 300, device=device)
    liger.ops.utils.scale_grads_(torch.full((), 3.0, device=device), whole[:, :200])
    assert (value(whole)[:, :200] == 3.0).all()
    assert (value(whole)[:, 200:] == 1.0).all()


def test_the_grid_is_bounded(liger: ModuleType, kernels_run: torch.device) -> None:
    """The device's multiprocessors, not the size of the gradients, bound the launch."""
    utils, grids = liger.ops.utils, []

    class Launches:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **kwargs: None

    kernel, utils._scale_grads_kernel = utils._scale_grads_kernel, Launches()
    try:
        scalar = torch.ones((), device=kernels_run)
        utils.scale_grads_(scalar, torch.empty(4096, 4096, device=kernels_run))
        utils.scale_grads_(scalar, torch.empty(10, 10, device=kernels_run), torch.empty(10, device=kernels_run))
    finally:
        utils._scale_grads_kernel = kernel
    cores = utils.get_core_count(kernels_run)
    assert cores > 1
    assert grids == [(cores * utils._SCALE_PROGRAMS_PER_CORE,), (1,)]


@pytest.fixture(scope="module")
def machine_code() -> list[dict[str, str]]:
    """PTX of the kernels, of the base and of the patched tree."""
    script = Path(__file__).with_name("compiled_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    roots = [str(tree_path(which)) for which in ("base", "patched")]
    done = subprocess.run([sys.executable, str(script), *roots], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kernel", ["element_mul_kernel", "liger_cross_entropy_kernel"])
def test_other_callers_compile_the_same_kernel(machine_code: list[dict[str, str]], kernel: str) -> None:
    """Called as on the base, the patched kernel is the base's, instruction for instruction."""
    base, patched = (tree[kernel] for tree in machine_code)
    assert "st.global" in base
    assert base == patched
