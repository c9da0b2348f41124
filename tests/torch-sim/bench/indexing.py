"""A masked update of eight elements by indexing and by ``torch.where``: the pull request's own microbenchmark."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from bench_common import gpu, tell_versions, wall_ms

from nosync.measure import writing

UPDATES, ROUNDS = 1000, 7


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        device = torch.device("cuda" if gpu() else "cpu")
        tell_versions(lines)
        for name, microseconds in measured(device, 10 if options.smoke else UPDATES).items():
            lines.value(f"microbenchmark.{name}", microseconds, "µs")
    return 0


def measured(device: torch.device, updates: int) -> dict[str, float]:
    """Microseconds of an update, the two forms in turns: medians of `ROUNDS` rounds, after one of warm-up."""
    mask = torch.tensor([True, False] * 4, device=device)
    factor = torch.tensor(0.99, device=device)

    def indexing(x: torch.Tensor) -> torch.Tensor:
        x[mask] *= factor
        return x

    def where(x: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x * factor, x)

    samples: dict[str, list[float]] = {"indexing": [], "where": []}
    for number in range(ROUNDS + 1):
        for update in (indexing, where):
            ms = wall_ms(lambda update=update: _repeat(update, torch.ones(8, device=device), updates))
            if number:
                samples[update.__name__].append(1e3 * ms / updates)
    return {name: statistics.median(found) for name, found in samples.items()}


def _repeat(update: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, number: int) -> None:
    for _ in range(number):
        x = update(x)


if __name__ == "__main__":
    sys.exit(main())
