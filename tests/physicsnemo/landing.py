"""Copies that land when a test says so, and the values they carry.

A real copy to the host is in flight for microseconds. Here it is held back: its host memory holds rubbish until
the test lets it land, so a value that is read too early, or a slot that is reused too early, is a wrong value.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

RUBBISH = 77


class HeldCopy:
    """One step's copy and its event, both held back. On the CPU only: a GPU would write the memory behind its back."""

    def __init__(self, readback: Any) -> None:
        slot = readback._n_started % readback.max_in_flight
        self._rows = [(slots[slot], slots[slot].clone()) for slots in readback._slots.values()]
        for row, _ in self._rows:
            row.fill_(RUBBISH)
        self.landed = False
        self.waits = 0

    def land(self) -> None:
        """Write the values and fire the event."""
        if not self.landed:
            for row, values in self._rows:
                row.copy_(values)
        self.landed = True

    def query(self) -> bool:
        return self.landed

    def synchronize(self) -> None:
        self.waits += 1
        self.land()


def hold_copies(monkeypatch: pytest.MonkeyPatch, step_readback: type) -> list[HeldCopy]:
    """Hold every copy that ``step_readback`` starts from now on; returns them in the order of their steps.

    An error is not held back for copies that do not land, unless a test asks for it.
    """
    copies: list[HeldCopy] = []

    def hold(self: Any) -> HeldCopy:
        copies.append(HeldCopy(self))
        return copies[-1]

    monkeypatch.setattr(step_readback, "_record_event", hold)
    monkeypatch.setitem(step_readback.__init__.__kwdefaults__, "grace_s", 0.0)
    return copies


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)


def random_step(generator: torch.Generator, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> TensorDict:
    """A step's values as the recipe has them, 0-d: a loss, per-field losses and metrics, each dtype in turn."""

    def leaf(i: int) -> torch.Tensor:
        dtype = dtypes[i % len(dtypes)]
        if dtype.is_floating_point:
            return torch.randn((), generator=generator, dtype=torch.float64).to(dtype)
        return torch.randint(0, 2**62, (), generator=generator).to(dtype)

    names = ("loss/pressure", "loss/wss", "loss/total")
    metrics = ("pressure_l2", "wss_x_l2", "wss_y_l2", "wss_z_l2", "wss_l2")
    return TensorDict(
        {
            "loss": leaf(0),
            "losses": TensorDict({name: leaf(i + 1) for i, name in enumerate(names)}),
            "metrics": TensorDict({name: leaf(i + 4) for i, name in enumerate(metrics)}),
        }
    )


def blocking(values: TensorDict) -> dict[str, Any]:
    """What a readback that waits gives: nested dicts of Python numbers, in the order of the keys."""
    return {key: blocking(leaf) if isinstance(leaf, TensorDict) else leaf.item() for key, leaf in values.items()}


def same_bits(one: Any, two: Any) -> bool:
    """Equal keys in equal order, and equal numbers of equal types; NaN equals NaN and -0.0 is not 0.0."""
    return repr(one) == repr(two)
