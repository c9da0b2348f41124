"""FLCE at the size of a large language model's head: the device's and the host's time, one tree."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import torch
from bench_common import event_ms, gpu, host_ms, kernel_ms, tell_memory, tell_setting, wait

from nosync.measure import writing

STEPS, PROFILED = 13, 5
COPY_BYTES = 2 << 30


@dataclass(frozen=True)
class Head:
    """``x`` [BT, H], ``weight`` [V, H], ``target`` [BT], and what keeps the copy engine busy."""

    x: torch.Tensor
    weight: torch.Tensor
    target: torch.Tensor
    on_device: torch.Tensor
    on_host: torch.Tensor

    def loss(self, reduction: str) -> torch.Tensor:
        """The forward; the gradients of an earlier backward are dropped."""
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Function

        self.x.grad = self.weight.grad = None
        return Function.apply(self.x, self.weight, self.target, None, None, -100, 0.0, 0.0, reduction)[0]

    def queue_copy(self, stream: torch.cuda.Stream) -> None:
        """A copy to page-locked host memory on the side stream."""
        with torch.cuda.stream(stream):
            self.on_host.copy_(self.on_device, non_blocking=True)


def make_head(smoke: bool) -> Head:
    """bf16 inputs; every seventh target is ignored."""
    rows, hidden, vocab, copied = (64, 64, 512, 1 << 20) if smoke else (8192, 4096, 128256, COPY_BYTES)
    device = torch.device("cuda", 0)
    generator = torch.Generator(device=device).manual_seed(0)
    options = {"device": device, "dtype": torch.bfloat16, "generator": generator}
    x = torch.randn(rows, hidden, **options).requires_grad_()
    weight = (torch.randn(vocab, hidden, **options) * 0.02).requires_grad_()
    target = torch.randint(0, vocab, (rows,), device=device, generator=generator)
    target[::7] = -100
    on_device = torch.empty(copied, dtype=torch.uint8, device=device)
    return Head(x, weight, target, on_device, torch.empty(copied, dtype=torch.uint8, pin_memory=True))


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        tell_setting(lines, "liger_kernel", "triton")
        if not gpu():
            lines.write(unavailable="no GPU: Triton kernels at this size")
            return 0
        head, side = make_head(options.smoke), torch.cuda.Stream()
        for _ in range(STEPS):
            one_step(lines, head, side)
        for _ in range(PROFILED):  # last: what the profiler leaves behind slows launches down
            profiled_step(lines, head)
        tell_memory(lines)
    return 0


def one_step(lines: writing.Lines, head: Head, side: torch.cuda.Stream) -> None:
    """Every quantity once, but for those of the profiler."""
    for reduction, tail in (("mean", ""), ("sum", "_sum")):
        for factor, word in ((1.0, "1"), (0.5, "05")):
            gradient = torch.full((), factor, device=head.x.device)
            lines.time(f"flce.backward_{word}{tail}", event_ms(partial(head.loss(reduction).backward, gradient)))
        loss = head.loss(reduction)
        wait()
        head.queue_copy(side)
        lines.time(f"flce.host{tail}", host_ms(loss.backward))
        wait()
        head.queue_copy(side)
        lines.time(f"flce-mean.forward_host{tail}", host_ms(partial(head.loss, reduction)))
        wait()


def profiled_step(lines: writing.Lines, head: Head) -> None:
    """The device time of the backward's kernels alone."""
    for reduction, tail in (("mean", ""), ("sum", "_sum")):
        for factor, word in ((1.0, "1"), (0.5, "05")):
            gradient = torch.full((), factor, device=head.x.device)
            lines.time(f"flce.kernels_{word}{tail}", kernel_ms(partial(head.loss(reduction).backward, gradient)))


if __name__ == "__main__":
    sys.exit(main())
