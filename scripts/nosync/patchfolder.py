"""Writing a folder of patch files so that a kill leaves each file, and a new folder, whole or not there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nosync import wholefile

EMPTY = ".gitkeep"  # git keeps no empty folder, and a series with no patches on a base differs from one without a say


def bring(folder: Path, files: dict[str, bytes]) -> None:
    """Make the folder hold these patches; a folder that is new comes into being whole."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if not folder.is_dir():
        if not files:
            return
        partial.mkdir()
        for name, data in files.items():
            (partial / name).write_bytes(data)
        os.rename(partial, folder)
        return
    for left in folder.glob("*.partial"):
        left.unlink()
    wanted = files or {EMPTY: b""}
    for name, data in wanted.items():
        if not _holds(folder / name, data):
            wholefile.write(folder / name, data)
    for name in {file.name for file in (*folder.glob("*.patch"), *folder.glob(EMPTY))} - wanted.keys():
        (folder / name).unlink()


def _holds(file: Path, data: bytes) -> bool:
    return file.exists() and file.read_bytes() == data
