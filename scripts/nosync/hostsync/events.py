"""What the detector reports: one `Event` per place where the host would wait, and the error that forbids it."""

from __future__ import annotations

import dataclasses
import linecache
import os
from typing import Any, Literal

Kind = Literal["read", "shape", "h2d", "d2h", "check", "explicit", "library", "race", "not-covered"]

KINDS: dict[str, str] = {
    "read": "the host reads a value from the device",
    "shape": "the size of the result depends on device values",
    "h2d": "a blocking copy from host to device",
    "d2h": "a blocking copy from device to host",
    "check": "the operator checks its result on the host",
    "explicit": "the code asks to wait for a stream, an event or the device",
    "library": "a library below torch waits; torch's own sync-debug mode does not see it",
    "race": "a host buffer is read before the asynchronous copy into it is known to be complete",
    "not-covered": "the detector cannot see into this region",
}


@dataclasses.dataclass(frozen=True)
class Event:
    """One operator, at one place, that makes the host wait.

    Attributes:
        operator: The operator as torch spells it (``aten::nonzero``) or the call (``torch.cuda.synchronize``).
        kind: One of `KINDS`.
        count: How many waits this one call costs on a CUDA device.
        file, line, function: The innermost frame that belongs neither to torch nor to the detector.
        phase: ``"forward"``, or ``"backward"`` when the autograd engine ran the operator.
        node: The autograd node (``"IndexBackward0"``) in backward, else empty.
        why: Why the operator waits, one phrase.
        instead: The usual form that does not wait; may be empty.
        allowed: The reason given to `allow_host_syncs`, or None. Allowed events do not count.
        soft: True for what may block in the driver but is not a wait by itself (a pageable copy declared
            non-blocking), and for notes. Soft events do not count.
    """

    operator: str
    kind: Kind
    count: int
    file: str
    line: int
    function: str
    phase: Literal["forward", "backward"] = "forward"
    node: str = ""
    why: str = ""
    instead: str = ""
    allowed: str | None = None
    soft: bool = False

    @property
    def counted(self) -> bool:
        """Whether the event counts against a bound."""
        return not self.soft and self.allowed is None

    @property
    def place(self) -> str:
        """``loss.py:129 in forward``."""
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"

    @property
    def source(self) -> str:
        """The source line of the call site, stripped; empty where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.place}: {self.operator} [{self.kind} x{self.count}]{self._suffix()}"

    def _suffix(self) -> str:
        node = f" in backward <{self.node}>" if self.phase == "backward" else ""
        return node + (" (soft)" if self.soft else "") + (f" (allowed: {self.allowed})" if self.allowed else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    def explain(self) -> str:
        """Several lines: where, what, why, and what to write instead."""
        waits = "1 wait" if self.count == 1 else f"{self.count} waits"
        lines = [f"{self.file}:{self.line} in {self.function}"]
        if self.source:
            lines.append(f"    {self.source}")
        lines.append(f"  operator:  {self.operator}, {waits}{self._suffix()}")
        lines.append(f"  why:       {self.why or KINDS[self.kind]} [{self.kind}]")
        if self.instead:
            lines.append(f"  sync-free: {self.instead}")
        return "\n".join(lines)


class HostSyncError(BaseException):
    """The code under test would wait for the device.

    Not an `Exception`: ``except RuntimeError`` or ``except Exception`` in the code under test must not hide it.

    Attributes:
        events: What was seen.
    """

    def __init__(self, events: list[Event], note: str = "") -> None:
        self.events = list(events)
        head = "the host waits for the device" + (f" ({note})" if note else "")
        super().__init__(head + "\n" + "\n".join(event.explain() for event in self.events))
