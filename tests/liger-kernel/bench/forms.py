"""The forms of the kernel that scales FLCE's gradients, device time; belongs to no tree."""

from __future__ import annotations

import statistics
import sys

import torch
from bench_common import gpu, tell_versions

from nosync.measure import writing

ROUNDS = 7


def main() -> int:
    options = writing.parser(__doc__.splitlines()[0]).parse_args()
    with writing.Lines(options.out) as lines:
        if not gpu():
            lines.write(unavailable="no GPU: Triton kernels")
            return 0
        tell_versions(lines)
        for name, ms in measured(options.smoke).items():
            lines.value(f"flce.forms.{name}", ms, "ms")
    return 0


def measured(smoke: bool) -> dict[str, float]:
    """Medians by ``<form>_half`` and ``<form>_one``, the forms in turns."""
    import backward_forms as forms

    device = torch.device("cuda", 0)
    forms.SMS = torch.cuda.get_device_properties(device).multi_processor_count
    shapes = ((64, 64), (512, 64), (512,)) if smoke else ((8192, 4096), (128256, 4096), (128256,))
    grads = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    one = [torch.ones((), device=device)] * 2
    half = [torch.full((), factor, device=device) for factor in (0.5, 2.0)]
    compared = {
        "base": forms.form_base,
        "seed": forms.form_seed,
        "rows": forms.form_rows(4096, 16, 4),
        "full": forms.form_full(8192, 16, 0),
        "flat": forms.form_flat(8192, 16, 2),
        "one": forms.form_one(8192, 16, 2),
    }
    samples: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for name, form in compared.items():
            found = {"half": forms.gpu_ms(form, half, grads, 4), "one": forms.gpu_ms(form, one, grads, 20)}
            for word, ms in found.items():
                if number:
                    samples.setdefault(f"{name}_{word}", []).append(ms)
    return {name: statistics.median(found) for name, found in samples.items()}


if __name__ == "__main__":
    sys.exit(main())
