"""The way into the tool: what it refuses before a verb runs, and how it ends."""

from __future__ import annotations

import shutil

from synthetic import World


def test_a_checkout_whose_path_pythonpath_cannot_hold_is_refused(world: World) -> None:
    there = world.root.with_name("a:b")
    shutil.copytree(world.root, there)
    result = world.run("status", "--json", env={"NOSYNC_ROOT": str(there)})
    assert result.code == 2 and "PYTHONPATH" in result.json["error"]["cause"]
