"""The negative control: on the base tree, every test that proves a removed wait must fail.

``NOSYNC_TREE`` names the tree under test. On ``base`` only the tests marked ``fails_on_base`` or ``base_only``
run; the first kind is expected to fail there, strictly: a pass is an error, and so is a failure for any other
reason than a seen host sync or a broken assertion.
"""

from __future__ import annotations

import os

import pytest

UNDER_TEST = os.environ.get("NOSYNC_TREE", "patched")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fails_on_base: proves what a patch changes; must fail on the base tree")
    config.addinivalue_line("markers", "base_only: states a fact of the base tree; runs there alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep, drop = [], []
    for item in items:
        (keep if _belongs(item) else drop).append(item)
        if UNDER_TEST == "base" and item.get_closest_marker("fails_on_base"):
            item.add_marker(_expected_failure())
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = keep


def _belongs(item: pytest.Item) -> bool:
    if UNDER_TEST == "base":
        return any(item.get_closest_marker(name) for name in ("fails_on_base", "base_only"))
    return item.get_closest_marker("base_only") is None


def _expected_failure() -> pytest.MarkDecorator:
    from nosync.hostsync import HostSyncError

    return pytest.mark.xfail(strict=True, raises=(HostSyncError, AssertionError), reason="the base tree waits here")
