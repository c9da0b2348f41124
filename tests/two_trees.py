"""Both trees of a project in one process.

A test compares the patched code with the base by entering one copy of the package after the other. The
copies never mix: while one is entered, ``sys.modules`` holds its modules only, so an import inside a function
finds the same copy as the function itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class PackageCopy:
    """One tree's copy of a Python package, imported when it is first entered.

    Args:
        path: The folder to put first on ``sys.path`` (the tree's source root).
        package: Dotted name of the package, e.g. ``"torch_sim"`` or ``"fairchem.core"``.
    """

    def __init__(self, path: Path, package: str) -> None:
        self.path = Path(path)
        self.package = package
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def active(self) -> Iterator[ModuleType]:
        """Make this copy the one that imports find; yields the package."""
        others = self._take()
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.path))
        importlib.invalidate_caches()
        try:
            yield importlib.import_module(self.package)
        finally:
            sys.path.remove(str(self.path))
            self._modules = self._take()
            sys.modules.update(others)

    def _take(self) -> dict[str, ModuleType]:
        """Remove and return every loaded module of the package (its namespace parents too)."""
        root = self.package.partition(".")[0]
        names = [name for name in sys.modules if name == root or name.startswith(root + ".")]
        return {name: sys.modules.pop(name) for name in names}


def tree_path(which: str) -> Path:
    """The source root of the ``base`` or ``patched`` tree that the test run names.

    Raises:
        KeyError: outside ``make test-<project>``, which sets NOSYNC_BASE_PATH and NOSYNC_PATCHED_PATH.
    """
    return Path(os.environ[f"NOSYNC_{which.upper()}_PATH"])


def base_and_patched(package: str) -> tuple[PackageCopy, PackageCopy]:
    """The two copies of a package: base first, then patched."""
    return PackageCopy(tree_path("base"), package), PackageCopy(tree_path("patched"), package)
