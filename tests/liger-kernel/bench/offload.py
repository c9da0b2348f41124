"""A training step whose activations are offloaded to the host on a side stream, with FLCE as the loss; one tree.

The scenario of the pull request: copies to the host are still queued when the loss begins, and a wait in FLCE's
forward lasts until they are done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from bench_common import gpu, tell_memory, tell_setting, wait

from nosync.measure import writing

STEPS = 14


@dataclass
class Offload:
    """Packs large saved tensors into page-locked buffers on a side stream, and brings them back on another one.

    Args:
        kept: Storage addresses that stay on the device: the parameters.
        least: Elements from which on a tensor is offloaded.
    """

    kept: set[int]
    least: int
    out: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)
    back: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)
    free: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Queue the copy to the host."""
        if tensor.numel() < self.least or tensor.untyped_storage().data_ptr() in self.kept:
            return tensor
        pool = self.free.setdefault(tensor.numel(), [])
        buffer = pool.pop() if pool else torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        self.out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.out):
            buffer.copy_(tensor.reshape(-1), non_blocking=True)
        tensor.record_stream(self.out)
        return buffer, self.out.record_event(), tensor.shape

    def unpack(self, packed: Any) -> torch.Tensor:
        """Queue the copy back; the current stream waits for it, the host does not."""
        if isinstance(packed, torch.Tensor):
            return packed
        buffer, landed, shape = packed
        self.back.wait_event(landed)
        with torch.cuda.stream(self.back):
            tensor = buffer.to("cuda", non_blocking=True).view(shape)
        torch.cuda.current_stream().wait_stream(self.back)
        tensor.record_stream(torch.cuda.current_stream())
        self.free[buffer.numel()].append(buffer)  # the next step's copy into it is queued behind this one's end
        return tensor


class Step:
    """Forward and backward of the stack and its loss."""

    def __init__(self, smoke: bool) -> None:
        rows, hidden, vocab, layers = (128, 64, 512, 2) if smoke else (8192, 4096, 128256, 8)
        torch.manual_seed(0)
        options = {"device": "cuda", "dtype": torch.bfloat16}
        with torch.device("cuda"):  # a billion parameters: drawn on the device
            self.layers = torch.nn.ModuleList(_block(hidden) for _ in range(layers)).to(torch.bfloat16)
        self.x = torch.randn(rows, hidden, **options)
        self.weight = (torch.randn(vocab, hidden, **options) * 0.02).requires_grad_()
        self.target = torch.randint(0, vocab, (rows,), device="cuda")
        kept = {p.untyped_storage().data_ptr() for p in self.layers.parameters()}
        self.offload = Offload(kept, rows * hidden)

    def run(self, loss: Callable[..., Any], reduction: str) -> tuple[float, float]:
        """One step; milliseconds of the whole, and of the host in FLCE's forward."""
        for parameter in (*self.layers.parameters(), self.weight):
            parameter.grad = None
        wait()
        start = time.perf_counter()
        x = self.x
        with torch.autograd.graph.saved_tensors_hooks(self.offload.pack, self.offload.unpack):
            for layer in self.layers:
                x = x + layer(x)
        before = time.perf_counter()
        value = loss(x, self.weight, self.target, None, None, -100, 0.0, 0.0, reduction)[0]
        blocked = time.perf_counter() - before
        value.backward()
        torch.cuda.current_stream().wait_stream(self.offload.back)
        self.offload.out.wait_stream(self.offload.back)
        wait()
        return 1e3 * (time.perf_counter() - start), 1e3 * blocked


def _block(hidden: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(hidden, 4 * hidden, bias=False),
        torch.nn.GELU(),
        torch.nn.Linear(4 * hidden, hidden, bias=False),
    )


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "liger_kernel", "triton")
        if not gpu():
            lines.write(unavailable="no GPU: Triton kernels, streams and page-locked memory")
            return 0
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Function

        step = Step(options.smoke)
        for _ in range(STEPS):
            for reduction in ("sum", "mean"):
                whole, blocked = step.run(Function.apply, reduction)
                lines.time(f"offload.{reduction}_step", whole)
                lines.time(f"offload.{reduction}_blocked", blocked)
        tell_memory(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
