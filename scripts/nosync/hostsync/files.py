"""``torch.save`` and ``torch.load`` of what is on the virtual device, in torch's own format."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from .hints import sync_free_form
from .recorder import record

_BEFORE_CUDA = 19
"""The place in torch's list of what restores a storage; CUDA's is 20."""


class _DeviceStorage(torch.UntypedStorage):
    """A CPU storage that says it is on the device, so that the tensors made of it are there."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def _restore(storage: Any, location: str) -> Any:
    """What ``map_location="cuda"`` makes of a storage read from a file."""
    if not location.startswith("cuda"):
        return None
    if storage.nbytes() > 0:
        why = "a storage is copied to the device"
        record("UntypedStorage.cuda", "h2d", why=why, instead=sync_free_form("UntypedStorage.cuda", "h2d"))
    storage.__class__ = _DeviceStorage
    return storage


def _tag(storage: Any) -> None:
    """No storage is written as one on the device: the tensors are, see `reduced`."""


def reduced(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """How a tensor on the device is pickled: copied to the host, and named in torch's words, so that
    ``weights_only`` and a process without the virtual device can load it."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch._utils._rebuild_parameter, (tensor.data, tensor.requires_grad, OrderedDict())
    host = tensor.detach().cpu()
    return torch._utils._rebuild_device_tensor_from_cpu_tensor, (host, host.dtype, "cuda:0", tensor.requires_grad)


def install() -> Callable[[], None]:
    """Let files be loaded onto the device; returns what undoes it."""
    torch.serialization.register_package(_BEFORE_CUDA, _tag, _restore)

    def restore() -> None:
        torch.serialization._package_registry.remove((_BEFORE_CUDA, _tag, _restore))

    return restore
