"""Scratch folders under ``build/scratch``, made under the lock and swept of what killed runs left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nosync.layout import Layout


def fresh(layout: Layout, name: str) -> Path:
    """A path for ``name`` that does not exist yet; its parent does.

    The process id is part of it: a git that outlived its killed parent may still write to the former one.
    """
    layout.scratch.mkdir(parents=True, exist_ok=True)
    for left in layout.scratch.glob(f"{name}.[0-9]*"):
        shutil.rmtree(left, ignore_errors=True)
    path = layout.scratch / f"{name}.{os.getpid()}"
    if path.exists():
        shutil.rmtree(path)
    return path


def fresh_folder(layout: Layout, name: str) -> Path:
    """As ``fresh``, but the folder is there, and empty."""
    path = fresh(layout, name)
    path.mkdir()
    return path
