"""The tree under test, and the base beside it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from uma import Uma, load


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_series(name): holds on a patched tree that has the series")


def pytest_runtest_setup(item: pytest.Item) -> None:
    applied = os.environ.get("NOSYNC_SERIES")
    if applied is None or os.environ.get("NOSYNC_TREE") == "base":
        return
    for needed in item.iter_markers("needs_series"):
        if needed.args[0] not in applied.split(","):
            pytest.skip(f"the tree is without the series {needed.args[0]}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Values on a GPU first: a process that has used the virtual device cannot use it any more."""
    items.sort(key=lambda item: getattr(item, "callspec", None) is None or item.callspec.params.get("place") != "cuda")


@pytest.fixture(scope="session")
def uma() -> Uma:
    """The UMA loss of the tree under test."""
    return load(os.environ.get("NOSYNC_TREE", "patched"))


@pytest.fixture(scope="session")
def base() -> Uma:
    """The UMA loss of the base tree."""
    return load("base")


@pytest.fixture(scope="session")
def patched() -> Uma:
    """The UMA loss of the patched tree."""
    return load("patched")


@pytest.fixture
def seed(record_property: Callable[[str, object], None]) -> int:
    """A fresh seed for each test; set NOSYNC_SEED to repeat one. Assertions show it."""
    chosen = int(os.environ.get("NOSYNC_SEED", random.SystemRandom().randrange(2**31)))
    record_property("seed", chosen)
    return chosen
