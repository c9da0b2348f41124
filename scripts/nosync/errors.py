"""The one exception class of the tool, caught in ``cli.main`` alone."""

from __future__ import annotations


class NosyncError(Exception):
    """A request that could not be carried out (exit 2).

    Args:
        seen: What was observed, in one sentence.
        cause: The likely cause; empty when ``seen`` says it all.
        way_out: Commands or steps that get out of it, one a line.
        details: Lines of evidence (git's own words, file names), shown indented.
    """

    def __init__(self, seen: str, cause: str = "", way_out: str = "", details: str = "") -> None:
        super().__init__(seen)
        self.seen, self.cause, self.way_out, self.details = seen, cause, way_out, details

    def __str__(self) -> str:
        parts = [self.seen]
        if self.details:
            parts += ["  | " + line for line in self.details.rstrip().splitlines()]
        if self.cause:
            parts.append(f"likely cause: {self.cause}")
        if self.way_out:
            parts += ["way out:"] + ["  " + line for line in self.way_out.splitlines()]
        return "\n".join(parts)

    def as_dict(self) -> dict[str, str]:
        """The same four texts, for ``--json``."""
        return {"seen": self.seen, "cause": self.cause, "way_out": self.way_out, "details": self.details}


class Unreachable(NosyncError):
    """A base that no source could give now; a run over all projects shows it as a row instead of stopping."""
