"""``torch.autocast("cuda")`` on the virtual device.

torch has no casting rules for a Python backend, so the usual ones are registered for it: matrix products in the lower
precision, sums and losses in float32. They are dormant unless autocast is on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# fmt: off
LOWER = [
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "einsum",
    "scaled_dot_product_attention",
]
FULL = [
    "exp", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "reciprocal", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "group_norm", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "nll_loss", "kl_div", "cosine_similarity", "binary_cross_entropy_with_logits",
    "softmax.int", "log_softmax.int", "cumsum", "cumprod", "prod", "sum", "sum.dim_IntList", "logsumexp", "cdist",
    "linalg_vector_norm", "norm.Scalar",
]
# fmt: on

_KEY = torch._C.DispatchKey.AutocastPrivateUse1
_lower_dtype = torch.get_autocast_dtype


@functools.cache
def register(backend: str) -> tuple[torch.library.Library, ...]:
    """Register the rules for the backend, once per process; operators without a rule pass through."""
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY.name)
    library = torch.library.Library("aten", "IMPL")
    for name in LOWER:
        library.impl(name, _casting(name, lambda: _lower_dtype(backend)), _KEY.name)
    for name in FULL:
        library.impl(name, _casting(name, lambda: torch.float32), _KEY.name)
    return library, others


def _casting(name: str, target: Callable[[], torch.dtype]) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        wanted = target()
        fits = tensor.is_floating_point() and tensor.dtype not in (wanted, torch.float64)
        return tensor.to(wanted) if fits else tensor

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def stand_ins(backend: str) -> dict[str, Callable[..., Any]]:
    """Replacements for torch's autocast state, by name: ``cuda`` means the backend."""

    def mapped(name: str) -> Callable[..., Any]:
        original = getattr(torch, name)

        def call(*args: Any) -> Any:
            if not args:
                return original(backend)
            return original(backend if args[0] == "cuda" else args[0], *args[1:])

        return call

    names = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
    return {name: mapped(name) for name in names}
