"""The way into the tool: what it refuses before a verb runs, and how it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import World

import nosync

SCRIPTS = Path(nosync.__file__).parents[1]


def command(world: World, *argv: str, stdout: int = subprocess.PIPE, **more: str) -> subprocess.CompletedProcess[bytes]:
    """``python -m nosync`` in a process of its own."""
    env = dict(os.environ) | {"NOSYNC_ROOT": str(world.root), "PYTHONPATH": str(SCRIPTS)} | more
    argv = (sys.executable, "-m", "nosync", *argv)
    return subprocess.run(argv, env=env, stdout=stdout, stderr=subprocess.PIPE, check=False)


def test_a_checkout_whose_path_pythonpath_cannot_hold_is_refused(world: World) -> None:
    there = world.root.with_name("a:b")
    shutil.copytree(world.root, there)
    result = world.run("status", "--json", env={"NOSYNC_ROOT": str(there)})
    assert result.code == 2 and "PYTHONPATH" in result.json["error"]["cause"]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_reader_that_ends_early_is_no_error(world: World, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = command(world, "status", *words, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_stream_that_cannot_hold_a_report_gets_it_escaped(bare: World, encoding: str) -> None:
    """A letter that ASCII lacks, and a byte that is no text in any encoding."""
    folder = bare.add_series("alpha")
    folder.rename(folder.with_name("größer-" + os.fsdecode(b"\xff")))
    bare.apply()
    done = command(bare, "status", PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"\\udcff" in done.stdout


@pytest.mark.parametrize(
    ("verb", "package"),
    [(("drift", "demo"), "unearth"), (("rebase", "demo", "--to", "1.1"), "packaging"), (("apply", "demo"), "unearth")],
)
def test_an_interpreter_without_a_package_is_told_which(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...], package: str
) -> None:
    world.cut_off()
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("nosync.rebase", "nosync.targets", "nosync.plans"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    error = world.run(*verb, "--json").json["error"]
    assert f"has no package '{package}" in error["seen"] and "requirements/tool.txt" in error["way_out"]


def test_an_old_python_is_told_before_it_reads_our_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match="2"):
        exec(compile((SCRIPTS / "nosync" / "__main__.py").read_text(), "__main__.py", "exec"), {"__name__": "x"})
    assert "is too old" in capsys.readouterr().err
