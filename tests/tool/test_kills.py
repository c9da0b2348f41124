"""Runs that end half-way: a kill at any step, two at once, a disk that refuses."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from synthetic import BASE_FILES, World, commit, export, git, patched_environment, write

from nosync import cli, lock, trees
from nosync import git as nosync_git
from nosync.errors import NosyncError
from nosync.layout import Layout

# A kill before a step that only reads is a kill before the next one that writes.
READING = {
    "--version", "cat-file", "rev-parse", "rev-list", "for-each-ref", "status", "log", "ls-tree", "ls-files",
    "merge-base", "symbolic-ref", "reflog",
}  # fmt: skip


# Every step is tried with NOSYNC_EVERY_STEP=1; otherwise each fourth, so that these tests take seconds.
STRIDE = 1 if os.environ.get("NOSYNC_EVERY_STEP") else 4


def states_of_a_killed_run(world: World, *argv: str, stride: int = STRIDE) -> Iterator[World]:
    """Run a verb and copy the whole checkout before each step that writes: what a kill there would leave behind."""
    folder = world.root.parent / f"states-{argv[0]}"
    number = count()

    def look() -> None:
        step = next(number)
        if step % stride == 0:
            world.copy(folder / f"{step:03d}")

    with before_each_step(look):
        result = world.run(*argv)
    assert result.code == 0, result.text
    assert next(number) > 15
    for state in sorted(folder.iterdir()):
        yield replace(world, root=state)
        shutil.rmtree(state)


def run_and_kill(world: World, step: int, *argv: str) -> bool:
    """Run a verb in a process that is killed before its n-th step that writes; returns whether it came to that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner; the child only runs git
        child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        number = count()
        with (
            patched_environment(world.environment | {"NOSYNC_ROOT": str(world.root)}),
            before_each_step(lambda: os.kill(os.getpid(), signal.SIGKILL) if next(number) == step else None),
        ):
            try:
                os._exit(cli.main(list(argv)))
            finally:
                os._exit(99)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@contextmanager
def before_each_step(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` before each git command that writes, each rename, move and removal."""
    busy = []

    def acting(inner: Callable[..., Any], reads: Callable[..., bool] = lambda *_: False) -> Callable[..., Any]:
        def acted(*args: Any, **kwargs: Any) -> Any:
            if not busy and not reads(*args):
                busy.append(1)
                act()
                busy.clear()
            return inner(*args, **kwargs)

        return acted

    def reading(argv: list[str], *_: Any) -> bool:
        while argv[:1] == ["-c"]:
            argv = argv[2:]
        return argv[0] in READING or "--check" in argv

    places = [(os, "rename"), (os, "replace"), (shutil, "rmtree"), (shutil, "move"), (Path, "unlink")]
    before = [(place, name, getattr(place, name)) for place, name in places] + [(nosync_git, "_run", nosync_git._run)]
    for place, name, inner in before:
        setattr(place, name, acting(inner, reading) if name == "_run" else acting(inner))
    try:
        yield
    finally:
        for place, name, inner in before:
            setattr(place, name, inner)


def other_patch(world: World, text: str) -> None:
    """Let the patch of beta make another file, so that the tree has to be made anew."""
    tree = world.root.parent / "writer"
    if not tree.exists():
        git(world.root.parent, "clone", "-q", str(world.tree("base")), str(tree))
    loss = str(BASE_FILES["src/demo/loss.py"]).replace("loss 5\n", f"{text}\n")
    git(tree, "reset", "-q", "--hard", "origin/main")
    commit(tree, {"src/demo/loss.py": loss}, "loss: say five\n")
    world.add_patches("beta", "1.0", export(tree, "origin/main", "HEAD"))


def test_killed_in_a_first_apply_from_git(world: World) -> None:
    for state in states_of_a_killed_run(world, "apply", "demo"):
        assert not state.tree().exists() or len(state.log()) == 4
        state.apply("--source", "git")
        assert len(state.log()) == 4
        assert (state.root / "upstream/demo/.git").is_file()
        assert git(state.root, "submodule", "status").startswith(f" {state.bases[0].commit}")
        assert state.leftovers() == []


def test_killed_in_a_first_apply_from_the_archive(offline: World) -> None:
    for state in states_of_a_killed_run(offline, "apply", "demo"):
        state.apply()
        assert len(state.log()) == 4 and state.leftovers() == []


def test_killed_in_a_forced_apply_nothing_of_the_users_is_lost(applied: World) -> None:
    other_patch(applied, "five, anew")
    mine = commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    write(applied.tree(), {"edit.txt": "edit\n"})
    for state in states_of_a_killed_run(applied, "apply", "demo", "--force"):
        state.apply("--force")
        tree = state.tree()
        assert "five, anew\n" in (tree / "src/demo/loss.py").read_text()
        assert len(state.log()) == 4 and git(tree, "status", "--porcelain") == ""
        assert mine in git(tree, "log", "--format=%H", "--glob=refs/nosync/kept/*").split()
        (edits,) = [
            ref
            for ref in git(tree, "for-each-ref", "--format=%(refname)", "refs/nosync/kept").split()
            if ref.endswith("/edits")
        ]
        assert git(tree, "show", f"{edits}:edit.txt") == "edit\n"
        assert state.leftovers() == []


def test_killed_in_a_refresh_no_commit_and_no_patch_is_lost(applied_archive: World) -> None:
    """Also of what was left out: the second patch of alpha has a part that the archive lacks."""
    applied_archive.edit_commit(1, {"src/demo/core.py": "one\n"}, "core: say one")
    applied_archive.amend({"src/demo/loss.py": "LOSS\n"})
    for state in states_of_a_killed_run(applied_archive, "refresh", "demo"):
        assert git(state.tree(), "show", "HEAD:src/demo/loss.py") == "LOSS\n"
        state.refresh()
        files = state.patch_files()
        assert [name.rpartition("/")[2] for name in files if name.endswith(".patch")] == [
            "0001-core-say-ten.patch",
            "0002-core-say-one.patch",
            "0003-tests-one-more.patch",
            "0001-loss-say-five.patch",
        ]
        assert b"diff --git a/tests/test_core.py" in files["demo/alpha/1.0/0002-core-say-one.patch"]
        assert b"diff --git a/tests/test_more.py" in files["demo/alpha/1.0/0003-tests-one-more.patch"]
        assert b"+LOSS\n" in files["demo/beta/1.0/0001-loss-say-five.patch"]
        assert not [name for name in files if "partial" in name]
        assert "nothing to do" in state.apply().json["notes"][0]
        assert state.leftovers() == []


def test_killed_in_the_refresh_of_an_inherited_series_its_new_folder_is_whole_or_not_there(
    applied: World,
) -> None:
    applied.apply("--base", "1.1")
    applied.edit_commit(0, {"src/demo/run.sh": "other\n"}, base="1.1")
    for state in states_of_a_killed_run(applied, "refresh", "demo", "--base", "1.1"):
        folder = state.root / "patches/demo/alpha/1.1"
        assert not folder.exists() or len(list(folder.iterdir())) == 3
        state.refresh("--base", "1.1")
        assert len(list(folder.iterdir())) == 3 and not list(folder.parent.glob(".*"))


def test_killed_in_a_rebase_the_patches_are_whole_and_a_rerun_ends_in_the_same_files(
    applied: World, tmp_path: Path
) -> None:
    whole = applied.copy(tmp_path / "whole")
    assert whole.run("rebase", "demo", "--to", "1.1").code == 0
    for state in states_of_a_killed_run(applied, "rebase", "demo", "--to", "1.1", stride=min(STRIDE * STRIDE, 16)):
        folders = ("demo/alpha/1.1/", "demo/beta/1.1/")
        for folder in folders:  # each is there whole or not at all
            there = [name for name in state.patch_files() if name.startswith(folder)]
            assert there in ([], [name for name in whole.patch_files() if name.startswith(folder)])
        assert state.run("rebase", "demo", "--to", "1.1").code == 0
        assert state.patch_files() == whole.patch_files() and state.leftovers() == []


def test_killed_in_an_export_the_former_one_stays_whole(applied: World) -> None:
    def exported(world: World) -> dict[str, bytes]:
        folder = world.root / "build/export"
        return {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in sorted(folder.rglob("*"))
            if file.is_file() and not file.name.startswith("range-diff")
        }

    argv = ("export", "demo", "--series", "alpha")
    assert applied.run(*argv).code == 0
    former = exported(applied)
    for state in states_of_a_killed_run(applied, *argv, stride=min(STRIDE * STRIDE, 16)):
        assert exported(state) in (former, {})  # {}: between the two renames, which the next run undoes
        assert state.run(*argv).code == 0
        assert exported(state) == former and state.leftovers() == []


def test_a_real_kill_leaves_what_the_copies_show(applied: World) -> None:
    applied.amend({"src/demo/loss.py": "LOSS\n"})
    assert run_and_kill(applied, 6, "refresh", "demo")
    applied.refresh()
    other_patch(applied, "five, anew")
    assert run_and_kill(applied, 6, "apply", "demo")
    applied.apply()
    assert "five, anew\n" in (applied.tree() / "src/demo/loss.py").read_text()
    assert applied.leftovers() == []


def test_killed_while_cleaning_the_rest_is_cleaned_by_the_next(applied: World) -> None:
    for step in (0, 1, 2):
        copy = applied.copy(applied.root.parent / f"copy-{step}")
        assert run_and_kill(copy, step, "clean", "demo")
        for kind in ("base", "patched"):
            assert not copy.tree(kind).exists() or git(copy.tree(kind), "status", "--porcelain") == ""
        assert copy.run("clean", "demo").code == 0
        assert not copy.tree().exists()


def test_killed_between_the_two_renames_the_former_tree_comes_back(applied: World) -> None:
    mine = commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    old = applied.root / "build/scratch" / f"old-patched-{applied.tree().name}"
    old.parent.mkdir(exist_ok=True)
    for verb in (("refresh", "demo"), ("clean", "demo"), ("apply", "demo")):
        if applied.tree().exists():
            os.rename(applied.tree(), old)
        if verb[0] == "refresh":
            assert applied.run(*verb, "--dry").code == 1  # it has a commit that is in no patch
        else:
            assert applied.run(*verb).code == 2
        assert git(applied.tree(), "rev-parse", "HEAD").strip() == mine


def test_a_folder_made_by_hand_since_does_not_cost_the_former_tree(applied: World) -> None:
    mine = commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    old = applied.root / "build/scratch" / f"old-patched-{applied.tree().name}"
    old.parent.mkdir(exist_ok=True)
    os.rename(applied.tree(), old)
    applied.tree().mkdir()
    (applied.tree() / "x").touch()
    error = applied.apply(code=2).json["error"]
    assert str(old) in error["seen"] and f"mv {applied.tree()} " in error["way_out"]
    (applied.tree() / "x").unlink()
    assert "local work" in applied.apply(code=2).json["error"]["seen"]
    assert git(applied.tree(), "rev-parse", "HEAD").strip() == mine


def test_a_killed_swap_that_was_complete_leaves_the_new_tree(applied: World) -> None:
    layout = Layout(applied.root)
    old = applied.root / "build/scratch" / f"old-patched-{applied.tree().name}"
    shutil.copytree(applied.tree(), old, symlinks=True)
    trees.recover(applied.tree(), layout)
    assert applied.tree().exists() and not old.exists()


# ---- two at once ---------------------------------------------------------------------------------


def test_two_applies_at_once_both_end_well_and_one_names_the_other(world: World) -> None:
    env = os.environ | {"NOSYNC_ROOT": str(world.root)}
    command = [sys.executable, "-m", "nosync", "apply", "demo"]
    runs = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    results = [(run.communicate(timeout=120), run.returncode) for run in runs]
    assert [code for _, code in results] == [0, 0], results
    assert len(world.log()) == 4 and world.leftovers() == []
    assert sum("nothing to do" in out for (out, _), _ in results) == 1


@pytest.mark.parametrize("verb", [["apply"], ["refresh"], ["rebase", "--to", "1.1"], ["export"]], ids=" ".join)
def test_a_second_run_waits_and_says_for_whom(applied: World, verb: list[str]) -> None:
    file = applied.root / "build/lock"
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            f"import sys, time; from pathlib import Path; from nosync.lock import exclusive\n"
            f"with exclusive(Path({str(file)!r}), 'a long test'): print('held', flush=True); time.sleep(1)",
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    held = pytest.raises(NosyncError, match=f"is held by process {holder.pid} \\(a long test\\)")
    with held, lock.exclusive(file, "impatient", patience=0.0):
        pass
    result = applied.run(verb[0], "demo", *verb[1:])
    assert result.code == 0 and f"waiting for process {holder.pid} (a long test)" in result.err
    holder.wait()


def test_a_killed_holder_holds_nothing(applied: World) -> None:
    file = applied.root / "build/lock"
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            f"import os; from pathlib import Path; from nosync.lock import exclusive\n"
            f"with exclusive(Path({str(file)!r}), 'doomed'): os.kill(os.getpid(), 9)",
        ]
    )  # fmt: skip
    holder.wait()
    begin = time.monotonic()
    assert applied.run("apply", "demo").code == 0
    assert time.monotonic() - begin < 60


# ---- a disk that refuses -------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int) -> None:
    def refusing(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), "build/somewhere")

    monkeypatch.setattr(module, name, refusing)


@pytest.mark.parametrize(
    ("module", "name"), [(os, "rename"), (shutil, "move"), (shutil, "rmtree")], ids=["rename", "move", "rmtree"]
)
def test_a_full_disk_is_one_clear_message_and_exit_2_and_the_next_run_mends(
    offline: World, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, module, name, errno.ENOSPC)
        result = offline.run("apply", "demo")
    assert result.code == 2
    assert "No space left on device" in result.err and "free some space" in result.err
    assert "Traceback" not in result.text
    offline.apply()
    assert len(offline.log()) == 4


def test_a_full_disk_while_unpacking_is_not_blamed_on_the_archive(
    offline: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    with monkeypatch.context() as patch:
        refuse(patch, tarfile.TarFile, "makefile", errno.ENOSPC)
        result = offline.run("apply", "demo")
    assert result.code == 2 and "No space left on device" in result.err and "unsafe" not in result.err


def test_a_full_disk_under_git_is_told_in_gits_own_words(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = shutil.which("git")
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\ncase " $* " in *" am "*|*" unpack-objects "*)\n'
        f'echo "fatal: unable to write file: No space left on device" >&2; exit 128;; esac\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
        result = world.run("apply", "demo", "--json")
    assert result.code == 2 and "No space left on device" in result.json["error"]["details"]
    assert not world.tree("base").exists()
    world.apply()


def test_a_full_disk_while_writing_patches_leaves_them_whole(applied: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = applied.patch_files()
    mine = applied.amend({"src/demo/loss.py": "mine\n"})
    with monkeypatch.context() as patch:
        refuse(patch, os, "replace", errno.ENOSPC)
        assert applied.run("refresh", "demo").code == 2
    assert {name: data for name, data in applied.patch_files().items() if name in before} == before
    assert applied.commits()[-1] == mine
    applied.refresh()
    assert not [name for name in applied.patch_files() if "partial" in name]


@pytest.mark.parametrize(
    "verb", [["apply"], ["refresh"], ["clean"], ["rebase", "--to", "1.1"], ["export"]], ids=" ".join
)
def test_a_read_only_checkout_is_one_clear_message_and_exit_2(
    applied: World, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.setattr(lock, "open", _read_only, raising=False)
    result = applied.run(verb[0], "demo", *verb[1:])
    assert result.code == 2 and "Read-only file system" in result.err and "a read-only checkout" in result.err


def _read_only(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_status_needs_no_lock_and_writes_nothing(applied: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "open", _read_only, raising=False)
    assert applied.run("status", "demo").code == 0


def test_an_interrupt_says_that_nothing_is_half_way(applied: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    other_patch(applied, "five")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stop)
        result = applied.run("apply", "demo")
    assert result.code == 130 and "run the same command again" in result.err
    applied.apply()


def test_git_missing_or_too_old_is_said(applied: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "empty"))
        assert "git is not on the PATH" in applied.run("status").err
    old = tmp_path / "empty" / "git"
    old.write_text("#!/bin/sh\necho git version 2.30.2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}:{os.environ['PATH']}")
    result = applied.run("status")
    assert result.code == 2 and "git 2.30 is too old" in result.err
