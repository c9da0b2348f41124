"""Killing a run of the tool with SIGKILL at a chosen step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from synthetic import World

_SCRIPT = """
import os, signal, sys
from nosync import cli, git
inner, left = git._run, [int(sys.argv[1])]
def counted(*rest):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(*rest)
git._run = counted
sys.exit(cli.main(sys.argv[2:]))
"""


def killed_at(world: World, number: int, *argv: str) -> bool:
    """Run a verb in a process that is killed before its ``number``-th git command; was it?"""
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    env = dict(os.environ) | world.environment | {"NOSYNC_ROOT": str(world.root), "PYTHONPATH": str(scripts)}
    command = [sys.executable, "-c", _SCRIPT, str(number), *argv]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        assert done.returncode == 0, done.stderr + done.stdout
        return False
    return True
