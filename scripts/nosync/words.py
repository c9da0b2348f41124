"""The apply vocabulary: what became of a patch, and of a series."""

from __future__ import annotations

from nosync.trees import PatchState

SOUND = ("unmodified", "applied", "empty")


def summary(states: list[PatchState], expected: int) -> tuple[str, str]:
    """A series' state word and what is worth saying about it."""
    for state in states:
        if state.word not in SOUND:
            return state.word, f"{state.file}: {state.detail}"
    if len(states) < expected:
        return "not applied", "a patch below does not fit"
    left_out = sorted({path for state in states for path in state.left_out})
    return "applied", f"not in the source: {', '.join(left_out)}" if left_out else ""
