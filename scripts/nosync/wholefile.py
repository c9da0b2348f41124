"""Writing a file so that a kill leaves it as it was or as it shall be."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, data: bytes) -> None:
    """Write beside it, as ``.partial``, and rename."""
    partial = file.with_suffix(".partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
