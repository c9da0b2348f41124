"""Where the code under test comes from.

The readback module is a file of its own in the patch series. With the trees at hand it is the patched tree's;
without them (the recipe's repository out of reach) it is taken out of the patch files, and the tests of the step
loop, which need the rest of the recipe, are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from landing import HeldCopy, hold_copies

PATCHES = Path(__file__).resolve().parents[2] / "patches" / "physicsnemo"
SERIES = ("unified-aero-readback", "readback-errors")
MODULE = "examples/cfd/external_aerodynamics/unified_external_aero_recipe/src/readback.py"


@pytest.fixture(scope="session")
def readback(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module ``readback`` as the series leave it."""
    tree = os.environ.get("NOSYNC_PATCHED_PATH")
    file = Path(tree, "readback.py") if tree else module_in_patches(tmp_path_factory.mktemp("series"))
    spec = importlib.util.spec_from_file_location("readback_under_test", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # typing.NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def module_in_patches(folder: Path) -> Path:
    """Apply the part of the series that concerns the module, and nothing else, in an empty folder."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    for patch in (patch for name in SERIES for patch in patches_of(PATCHES / name)):
        subprocess.run(["git", "apply", f"--include={MODULE}", str(patch)], cwd=folder, env=environment, check=True)
    return folder / MODULE


def patches_of(series: Path) -> list[Path]:
    """The series' patches for the base under test, or for its newest."""
    bases = [path for path in sorted(series.iterdir()) if path.is_dir()]
    chosen = series / os.environ.get("NOSYNC_BASE_ID", "")
    return sorted((chosen if chosen in bases else bases[-1]).glob("*.patch"))


@pytest.fixture
def held(readback: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[HeldCopy]:
    """Every copy of the test's readbacks, held back; one per started step."""
    return hold_copies(monkeypatch, readback.StepReadback)


@pytest.fixture
def seed() -> int:
    """A new seed for every run, shown when the test fails. NOSYNC_SEED fixes it."""
    number = int(os.environ.get("NOSYNC_SEED") or random.SystemRandom().randrange(2**32))
    print(f"NOSYNC_SEED={number}")
    torch.manual_seed(number)
    return number


@pytest.fixture
def generator(seed: int) -> torch.Generator:
    """Random numbers from the seed."""
    return torch.Generator("cpu").manual_seed(seed)
