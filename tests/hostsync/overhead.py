"""What the virtual backend costs: CPU time of one forward and backward, against plain CPU tensors.

    PYTHONPATH=scripts:<fairchem>/src OMP_NUM_THREADS=1 python tests/hostsync/overhead.py

Runs fairchem's DDPMTLoss where it can be imported, and a small multilayer perceptron. For each, the two backends
alternate in rounds; a round is the CPU time of the process over several calls; the smallest round counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nosync.hostsync import device, host_syncs, use_backend

ROUNDS, CALLS = 15, 20
Case = tuple[str, Callable[..., torch.Tensor], list[torch.Tensor]]


def fairchem_cases() -> Iterator[Case]:
    """DDPMTLoss on energies and forces, small and large batches."""
    try:
        from fairchem.core.modules import loss
    except ImportError:
        return
    for sizes in ([3, 5, 4], [50] * 16, [200] * 64):
        natoms = torch.tensor(sizes)
        for reduction, name, shape in (
            ("mean", "per_atom_mae", (len(sizes),)),
            ("per_structure", "l2mae", (sum(sizes), 3)),
        ):
            function = loss.DDPMTLoss(loss.registry.get_loss_class(name)(), reduction=reduction)
            mask = torch.ones(shape[0], dtype=torch.bool)
            inputs = [torch.randn(shape), torch.randn(shape), mask, natoms]
            yield f"DDPMTLoss {reduction}, {sum(sizes)} atoms", function, inputs


def perceptron_case() -> Case:
    """Two layers of 64 units on a batch of 64."""
    first, second = torch.randn(64, 64), torch.randn(64, 1)
    return "perceptron", lambda x, a, b: (x @ a).relu() @ b, [torch.randn(64, 64), first, second]


def seconds(step: Callable[[], Any]) -> float:
    """CPU time of one call, from one round."""
    begin = time.process_time()
    for _ in range(CALLS):
        step()
    return (time.process_time() - begin) / CALLS


def measure(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> tuple[float, float]:
    """Smallest CPU time of a call on the CPU and on the virtual device, in seconds."""
    plain = [tensor.clone() for tensor in inputs]
    plain[0].requires_grad_()
    with use_backend("virtual"):
        virtual = [tensor.to(device()) for tensor in inputs]
        virtual[0].requires_grad_()

    def on_cpu() -> None:
        function(*plain).sum().backward()

    def on_virtual() -> None:
        with host_syncs():
            function(*virtual).sum().backward()

    rounds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        rounds[0].append(seconds(on_cpu))
        with use_backend("virtual"):
            rounds[1].append(seconds(on_virtual))
    return min(rounds[0]), min(rounds[1])


def main() -> None:
    """Print the table."""
    print(f"torch {torch.__version__}, CPU time of one forward and backward")
    for name, function, inputs in [*fairchem_cases(), perceptron_case()]:
        cpu, virtual = measure(function, inputs)
        print(f"{name:36s} {cpu * 1e6:8.0f} us  {virtual * 1e6:8.0f} us  {virtual / cpu:5.1f}x")


if __name__ == "__main__":
    main()
