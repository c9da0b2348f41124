"""Where a base's files come from: ``git`` first, ``archive`` where the repository cannot be reached."""

from nosync.sources.choose import Source, obtain

__all__ = ["Source", "obtain"]
