"""Stand-ins for ``torch.cuda`` and its neighbours while the virtual device is active.

Code that asks ``torch.cuda.is_available()``, opens streams, reads memory statistics or seeds the device finds a GPU
with one device. The stand-ins are process-wide attributes; they are put back when the last user leaves.
"""

from __future__ import annotations

import types
import uuid
from collections.abc import Callable
from typing import Any

import torch

from . import autocast, memory, streams
from .virtual import BACKEND

REAL_CUDA = torch.cuda.is_available
"""torch's own answer, whatever is spoofed."""

_CAPABILITY = (9, 0)
_PROPERTIES = types.SimpleNamespace(
    name="virtual",
    major=_CAPABILITY[0],
    minor=_CAPABILITY[1],
    uuid=uuid.UUID(int=0),
    pci_bus_id=0,
    pci_device_id=0,
    pci_domain_id=0,
    multi_processor_count=132,
    total_memory=memory.TOTAL,
    warp_size=32,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    clock_rate=1980000,
    memory_clock_rate=2619000,
    memory_bus_width=5120,
    is_integrated=0,
    is_multi_gpu_board=0,
    gcnArchName="",
    L2_cache_size=50 << 20,
)


class Device:
    """``torch.cuda.device(0)``: there is one device, and it is the current one."""

    def __init__(self, device: Any) -> None:
        self.idx, self.prev_idx = 0, -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *exc: object) -> None:
        pass


class DeviceOf(Device):
    """``torch.cuda.device_of(t)``."""


class Generator(torch.Generator):
    """``torch.Generator("cuda")``: a host generator that feeds the virtual device."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, device="cpu" if torch.device(device).type == "cuda" else device)


_CUDA: dict[str, Any] = {
    "is_available": memory.always(True),
    "is_initialized": memory.always(True),
    "init": memory.always(None),
    "device_count": memory.always(1),
    "current_device": memory.always(0),
    "set_device": memory.always(None),
    "synchronize": streams.synchronize_device,
    "get_device_capability": memory.always(_CAPABILITY),
    "get_device_properties": memory.always(_PROPERTIES),
    "get_device_name": memory.always(_PROPERTIES.name),
    "get_arch_list": memory.always(["sm_90"]),
    "is_bf16_supported": memory.always(True),
    "can_device_access_peer": memory.always(False),
    "current_stream": streams.current,
    "default_stream": memory.always(streams.DEFAULT),
    "set_stream": streams.set_current,
    "stream": streams.on,
    "Stream": streams.Stream,
    "Event": streams.Event,
    "device": Device,
    "device_of": DeviceOf,
    "is_current_stream_capturing": memory.always(False),
    "ipc_collect": memory.always(None),
    "utilization": memory.always(0),
    "memory_usage": memory.always(0),
    "temperature": memory.always(0),
    "power_draw": memory.always(0),
    "clock_rate": memory.always(0),
    "manual_seed": memory.always(None),
    "manual_seed_all": memory.always(None),
    "seed": memory.always(None),
    "seed_all": memory.always(None),
    "initial_seed": lambda: torch.initial_seed(),
    "default_generators": (torch.default_generator,),
    "get_rng_state": lambda *args: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": lambda state, *args: torch.set_rng_state(state),
    "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    **memory.CUDA,
}

_ACCELERATOR: dict[str, Any] = {
    "is_available": memory.always(True),
    "device_count": memory.always(1),
    "current_accelerator": memory.always(torch.device("cuda")),
    "current_device_index": memory.always(0),
    "set_device_index": memory.always(None),
    "current_stream": streams.current,
    "set_stream": streams.set_current,
    "synchronize": streams.synchronize_device,
    **memory.ACCELERATOR,
}

_STAND_INS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (torch.cuda, _CUDA),
    (torch.accelerator, _ACCELERATOR),
    (torch.cuda.nvtx, {"range_push": memory.always(0), "range_pop": memory.always(0), "mark": memory.always(None)}),
    (torch.backends.cudnn, {"is_acceptable": memory.always(False)}),
    (torch, {"Generator": Generator, "Event": streams.Event, "Stream": streams.Stream}),
)


def _stand_ins() -> list[tuple[Any, dict[str, Any]]]:
    return [*_STAND_INS, (torch, autocast.stand_ins(BACKEND))]


def install() -> Callable[[], None]:
    """Put the stand-ins in place; returns what puts the originals back."""
    changes = [
        (owner, name, value) for owner, names in _stand_ins() for name, value in names.items() if hasattr(owner, name)
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)

    def restore() -> None:
        for owner, name, value in saved:
            setattr(owner, name, value)

    return restore
