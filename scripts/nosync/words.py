"""The apply vocabulary: what became of a patch, and of a series."""

from __future__ import annotations

from nosync.trees import PatchState

SOUND = ("unmodified", "applied", "empty")
_WORST_FIRST = ("conflict", "target-gone", "already-upstream", "drifted")


def summary(states: list[PatchState], expected: int) -> tuple[str, str]:
    """A series' state word and what is worth saying about it."""
    for word in _WORST_FIRST:
        for state in states:
            if state.word == word:
                return word, f"{state.file}: {state.detail}"
    if len(states) < expected:
        return "not applied", "a patch below does not fit"
    left_out = sorted({path for state in states for path in state.left_out})
    said = [f"not in the source: {', '.join(left_out)}"] if left_out else []
    other_form = sorted({path for state in states for path in state.other_form})
    said += [f"the release has another form of {', '.join(other_form)}"] if other_form else []
    return "applied", "; ".join(said)


def acceptable(word: str, inherited: bool) -> bool:
    """Is this state of a series no fault? Patches of another base may drift, or be there already."""
    return word in ("applied", "no patches") or (inherited and word in ("drifted", "already-upstream"))
