"""What a user does in a patched tree is never lost: apply refuses, FORCE keeps it under refs that it prints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, commit, git, write

from nosync import applying
from nosync.git import Repo
from nosync.sources import Source


def kept(world: World) -> dict[str, str]:
    """ref below refs/nosync/kept, less its time stamp, to commit id."""
    lines = git(world.tree(), "for-each-ref", "--format=%(refname) %(objectname)", "refs/nosync/kept").splitlines()
    pairs = [line.split(" ") for line in lines]
    return {name.split("/", 4)[4]: ident for name, ident in pairs}


def show(world: World, ref: str, path: str) -> str:
    return git(world.tree(), "show", f"{ref}:{path}")


def refused(world: World) -> str:
    error = world.apply(code=2).json["error"]
    assert "make refresh-demo" in error["way_out"] and "FORCE=1" in error["way_out"]
    return str(error["seen"])


def force(world: World) -> list[str]:
    """``apply FORCE=1``; the refs that it says it kept."""
    notes = world.apply("--force").json["notes"]
    return [note.split()[1] for note in notes if note.startswith("kept: ")]


def test_a_local_commit_is_refused_and_kept_under_force(applied: World) -> None:
    applied_before = applied.commits()
    mine = commit(applied.tree(), {"src/demo/mine.py": "mine\n"}, "mine")
    assert "commits of its own on HEAD, refs/heads/main" in refused(applied)
    assert applied.commits()[-1] == mine
    refs = force(applied)
    assert applied.commits() == applied_before
    assert kept(applied)["HEAD"] == mine == git(applied.tree(), "rev-parse", refs[0]).strip()


def test_edits_are_refused_and_kept_with_untracked_and_deleted_files(applied: World) -> None:
    tree = applied.tree()
    write(tree, {"src/demo/loss.py": "edited\n", "new folder/ün.txt": "new\n", "src/demo/win.txt": b"a\r\nb"})
    (tree / "src/demo/core.py").unlink()
    (tree / "src/demo/old.py").chmod(0o755)
    assert "uncommitted edits" in refused(applied)
    assert (tree / "src/demo/loss.py").read_text() == "edited\n"
    force(applied)
    assert (tree / "src/demo/core.py").exists() and not (tree / "new folder").exists()
    edits = kept(applied)["edits"]
    assert show(applied, edits, "src/demo/loss.py") == "edited\n"
    assert show(applied, edits, "new folder/ün.txt") == "new\n"
    assert show(applied, edits, "src/demo/win.txt") == "a\r\nb"
    listing = git(tree, "ls-tree", "-r", edits)
    assert "src/demo/core.py" not in listing and "100755 blob" in [
        line.split(" ", 2)[0] + " blob" for line in listing.splitlines() if line.endswith("old.py")
    ]


def test_staged_edits_that_the_files_no_longer_show_are_kept(applied: World) -> None:
    tree = applied.tree()
    write(tree, {"src/demo/loss.py": "staged\n"})
    git(tree, "add", ".")
    write(tree, {"src/demo/loss.py": "and then edited\n"})
    refused(applied)
    force(applied)
    assert show(applied, kept(applied)["index"], "src/demo/loss.py") == "staged\n"
    assert show(applied, kept(applied)["edits"], "src/demo/loss.py") == "and then edited\n"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_edits_that_are_flagged_away_are_refused_and_kept(applied: World, flag: str) -> None:
    tree = applied.tree()
    git(tree, "update-index", flag, "src/demo/loss.py", "src/demo/core.py")
    applied.apply()  # a flag alone is no work
    write(tree, {"src/demo/loss.py": "edited\n"})
    assert "git status does not show: src/demo/loss.py" in refused(applied)
    force(applied)
    assert show(applied, kept(applied)["edits"], "src/demo/loss.py") == "edited\n"
    assert "edited\n" not in (tree / "src/demo/loss.py").read_text()


@pytest.mark.parametrize("by", [".git/info/exclude", ".gitignore", "src/.gitignore"])
def test_ignored_files_are_refused_and_kept(applied: World, by: str) -> None:
    tree = applied.tree()
    with (tree / by).open("a") as file:
        file.write("*.log\n/data*/\n")
    write(tree, {"src/a [1].log": "log\n", "src/data/x": "x\n", "src/__pycache__/x.pyc": "not mine\n"})
    assert "src/a [1].log" in refused(applied)
    force(applied)
    edits = kept(applied)["edits"]
    assert show(applied, edits, "src/a [1].log") == "log\n" and show(applied, edits, "src/data/x") == "x\n"
    assert "x.pyc" not in git(tree, "ls-tree", "-r", "--name-only", edits)


def test_what_running_the_code_leaves_is_no_work(applied: World) -> None:
    caches = ("__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", "src/demo.egg-info", "src/demo/__pycache__")
    write(applied.tree(), {f"{folder}/x.pyc": "not mine\n" for folder in caches} | {"src/demo/x.pyo": "nor this\n"})
    shutil.rmtree(applied.root / "patches/demo/beta")
    assert applied.apply().row(series="alpha")["made"] == ["patched"]


@pytest.fixture
def working(applied: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets a user do something in a tree of a checkout whose patches changed, while it is being rebuilt."""
    shutil.rmtree(applied.root / "patches/demo/beta")
    inner = applying.apply_all

    def during(act: Callable[[], object]) -> None:
        def apply_all(*args: Any) -> Any:
            act()
            return inner(*args)

        monkeypatch.setattr(applying, "apply_all", apply_all)

    return during


def test_work_done_while_a_tree_is_rebuilt_is_refused(applied: World, working: Callable[..., None]) -> None:
    working(lambda: write(applied.tree(), {"src/demo/loss.py": "meanwhile\n"}))
    assert "uncommitted edits" in refused(applied)
    assert (applied.tree() / "src/demo/loss.py").read_text() == "meanwhile\n" and applied.leftovers() == []


def test_a_commit_made_while_a_tree_is_rebuilt_is_kept_under_force(
    applied: World, working: Callable[..., None]
) -> None:
    working(lambda: commit(applied.tree(), {"mine.txt": "meanwhile\n"}, "mine"))
    assert len(force(applied)) == 2  # HEAD and main
    assert show(applied, kept(applied)["HEAD"], "mine.txt") == "meanwhile\n" and len(applied.log()) == 3


def test_work_done_in_a_base_tree_while_it_is_made_anew_is_refused(
    applied: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Source.fill

    def fill(*args: Any) -> None:
        write(applied.tree("base"), {"src/demo/loss.py": "meanwhile\n"})
        inner(*args)

    monkeypatch.setattr(Source, "fill", fill)
    git(applied.tree("base"), "update-ref", "-d", "refs/nosync/record")  # as of another version of the tool
    assert "the base tree" in applied.apply(code=2).json["error"]["seen"]
    assert (applied.tree("base") / "src/demo/loss.py").read_text() == "meanwhile\n"


def test_commits_that_the_reflog_alone_holds_are_kept_and_stand_in_no_ones_way(applied: World) -> None:
    tree, mine = applied.tree(), []
    for name in ("one", "two"):
        mine.append(commit(tree, {f"{name}.txt": f"{name}\n"}, name))
        git(tree, "reset", "-q", "--hard", "refs/nosync/applied")
    shutil.rmtree(applied.root / "patches/demo/beta")
    (note,) = [note for note in applied.apply().json["notes"] if note.startswith("kept: ")]
    assert set(mine) <= set(git(tree, "rev-list", note.split()[1]).split())
    assert applied.run("clean", "demo").code == 0


def test_every_stash_entry_is_kept(applied: World) -> None:
    tree = applied.tree()
    for text in ("first", "second"):
        write(tree, {"src/demo/loss.py": f"{text}\n", f"{text}.txt": "untracked\n"})
        git(tree, "stash", "push", "-q", "-u", "-m", text)
    assert "refs/stash" in refused(applied)
    force(applied)
    assert show(applied, kept(applied)["stash-0"], "src/demo/loss.py") == "second\n"
    assert show(applied, kept(applied)["stash-1"], "src/demo/loss.py") == "first\n"
    assert show(applied, kept(applied)["stash-1"] + "^3", "first.txt") == "untracked\n"


def test_commits_on_another_branch_are_kept_though_it_is_not_checked_out(applied: World) -> None:
    tree = applied.tree()
    git(tree, "switch", "-q", "-c", "idea")
    mine = commit(tree, {"idea.txt": "idea\n"}, "idea")
    git(tree, "switch", "-q", "main")
    assert "refs/heads/idea" in refused(applied)
    force(applied)
    assert kept(applied) == {"heads/idea": mine}


def test_commits_on_a_detached_head_are_kept(applied: World) -> None:
    git(applied.tree(), "switch", "-q", "--detach")
    mine = commit(applied.tree(), {"idea.txt": "idea\n"}, "idea")
    assert "commits of its own on HEAD" in refused(applied)
    force(applied)
    assert kept(applied) == {"HEAD": mine}


def test_a_tag_on_a_commit_of_the_users_is_kept_whole(applied: World) -> None:
    tree = applied.tree()
    commit(tree, {"idea.txt": "idea\n"}, "idea")
    git(tree, "tag", "-a", "v-mine", "-m", "what it is")
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    assert "refs/tags/v-mine" in refused(applied)
    force(applied)
    assert "what it is" in git(tree, "cat-file", "tag", kept(applied)["tags/v-mine"])


def test_a_reset_below_what_apply_left_is_refused(applied: World) -> None:
    git(applied.tree(), "reset", "-q", "--hard", "HEAD~1")
    assert "HEAD is not the commit that apply left" in refused(applied)
    assert force(applied) == []
    assert len(applied.log()) == 4


@pytest.mark.parametrize("operation", ["am", "rebase", "merge", "cherry-pick"])
def test_an_operation_in_progress_is_refused_even_under_force_and_not_discarded(applied: World, operation: str) -> None:
    tree = applied.tree()
    git(tree, "switch", "-q", "-c", "other", "HEAD~2")
    commit(tree, {"src/demo/loss.py": "another\n"}, "conflicts")
    patch = git(tree, "format-patch", "-1", "--stdout")
    git(tree, "switch", "-q", "main")
    commands = {
        "am": ("am", "-3"),
        "rebase": ("rebase", "other", "-q"),
        "merge": ("merge", "-q", "other"),
        "cherry-pick": ("cherry-pick", "other"),
    }
    with pytest.raises(AssertionError):
        git(tree, *commands[operation], data=patch.encode() if operation == "am" else None)
    before = git(tree, "status", "--porcelain")
    assert f"git {operation} in progress" in refused(applied)
    error = applied.apply("--force", code=2).json["error"]
    assert f"git {operation} is in progress" in error["seen"]
    assert f"{operation} --continue" in error["way_out"] and f"{operation} --abort" in error["way_out"]
    assert git(tree, "status", "--porcelain") == before
    assert "in progress" in applied.refresh(code=2).json["error"]["seen"]
    git(tree, operation, "--abort")


def test_a_linked_worktree_is_refused_even_under_force(applied: World, tmp_path: Path) -> None:
    git(applied.tree(), "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    assert "linked worktrees: linked" in refused(applied)
    error = applied.apply("--force", code=2).json["error"]
    assert "worktree remove" in error["way_out"]
    git(applied.tree(), "worktree", "remove", str(tmp_path / "linked"))
    applied.apply()


def test_a_repository_cloned_into_the_tree_is_refused_even_under_force(applied: World) -> None:
    inner = applied.tree() / "inner"
    inner.mkdir()
    git(inner, "init", "-q", ".")
    commit(inner, {"x": "x\n"}, "inner")
    refused(applied)
    assert "git repositories of their own: inner" in applied.apply("--force", code=2).json["error"]["seen"]
    assert (inner / "x").exists()


def test_a_branch_without_a_commit_is_refused(applied: World) -> None:
    git(applied.tree(), "switch", "-q", "--orphan", "empty")
    write(applied.tree(), {"x": "x\n"})
    refused(applied)
    assert "without a commit" in applied.apply("--force", code=2).json["error"]["seen"]
    assert (applied.tree() / "x").exists()


def test_what_was_kept_survives_the_next_rebuilds(applied: World) -> None:
    first = commit(applied.tree(), {"a.txt": "a\n"}, "a")
    force(applied)
    second = commit(applied.tree(), {"b.txt": "b\n"}, "b")
    force(applied)
    shutil.rmtree(applied.root / "patches/demo/beta")
    applied.apply()
    names = git(applied.tree(), "for-each-ref", "--format=%(objectname)", "refs/nosync/kept").split()
    assert {first, second} <= set(names)
    assert len(applied.log()) == 3


def test_local_work_stands_in_the_way_before_the_base_tree_is_touched(applied_archive: World) -> None:
    """Else refresh could no longer compare the tree with the base that it was made from."""
    applied_archive.amend({"src/demo/loss.py": "mine\n"})
    base = git(applied_archive.tree("base"), "rev-parse", "HEAD")
    applied_archive.url = f"file://{applied_archive.upstream}"
    applied_archive.save()
    applied_archive.apply("--source", "git", code=2)
    assert git(applied_archive.tree("base"), "rev-parse", "HEAD") == base
    assert applied_archive.refresh().code == 0


def test_local_work_in_the_base_tree_is_refused(applied: World) -> None:
    write(applied.tree("base"), {"src/demo/loss.py": "edited in the wrong tree\n"})
    error = applied.apply("--force", code=2).json["error"]
    assert "the base tree" in error["seen"] and "clean" not in error["way_out"]
    assert (applied.tree("base") / "src/demo/loss.py").read_text() == "edited in the wrong tree\n"


def test_the_way_out_of_an_edited_base_tree_touches_that_tree_alone(applied: World, tmp_path: Path) -> None:
    mine = commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    write(applied.tree("base"), {"src/demo/loss.py": "edited in the wrong tree\n"})
    error = applied.apply("--force", code=2).json["error"]
    assert error["way_out"].splitlines()[0].startswith(f"mv {applied.tree('base')} ")
    applied.tree("base").rename(tmp_path / "elsewhere")
    applied.run("test", "demo", env={"NOSYNC_PYTHON": "true"})  # makes the base tree, leaves the patched one
    assert applied.tree("base").exists() and applied.commits()[-1] == mine


def test_force_on_a_conflict_leaves_the_former_tree_with_the_work_in_it(applied: World) -> None:
    mine = commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    for file in (applied.root / "patches/demo/beta/1.0").iterdir():
        file.write_bytes(file.read_bytes().replace(b"-loss 5", b"-loss 55"))
    applied.apply("--force", code=1)
    assert applied.commits()[-1] == mine


def test_force_without_local_work_changes_nothing(applied: World) -> None:
    before = applied.commits()
    assert force(applied) == []
    assert applied.commits() == before


def test_the_users_own_locks_and_settings_in_the_tree_do_not_stop_a_look(applied: World) -> None:
    (applied.tree() / ".git/index.lock").write_text("")
    assert applied.run("status", "demo").code == 0
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_clean_of_one_base_leaves_the_others_and_says_what_force_removes(applied: World) -> None:
    applied.apply("--base", "1.1")
    commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    assert "build/patched/demo@1.1" in applied.run("clean", "demo", "--json").json["error"]["way_out"]
    way_out = applied.run("clean", "demo", "--base", "1.0", "--json").json["error"]["way_out"]
    assert "make clean-demo BASE=1.0 FORCE=1      # removes build/base/demo@1.0, build/patched/demo@1.0" in way_out
    assert applied.run("clean", "demo", "--base", "1.1").code == 0
    assert applied.tree().exists() and applied.tree("base").exists()
    assert not applied.tree("patched", "1.1").exists() and not applied.tree("base", "1.1").exists()


def test_clean_refuses_local_work_and_kept_refs_and_force_removes(applied: World) -> None:
    commit(applied.tree(), {"mine.txt": "mine\n"}, "mine")
    error = applied.run("clean", "demo", "--json").json["error"]
    assert "holds commits of its own" in error["seen"] and "make clean-demo FORCE=1" in error["way_out"]
    force(applied)
    result = applied.run("clean", "demo", "--json")
    assert result.code == 2 and "refs/nosync/kept/" in result.json["error"]["seen"]
    assert Repo(applied.tree()).exists()
    result = applied.run("clean", "demo", "--force", "--json")
    assert [row["tree"] for row in result.json["rows"]] == ["base", "patched"]
    assert not applied.tree().exists() and not applied.tree("base").exists()
    assert applied.leftovers() == []
    assert applied.run("clean", "demo", "--json").json["rows"] == []


@pytest.mark.parametrize(
    ("file", "data"),
    [
        (".git/HEAD", b"garbage\n"),
        (".git/index", b"garbage"),
        (".git/index", b"DIRC" + b"\1" * 60),
        (".git/config", b"[\n"),
    ],
)
@pytest.mark.parametrize("verb", [("apply",), ("clean", "demo"), ("refresh", "demo"), ("status",)])
def test_a_damaged_repository_is_named_with_a_way_out_that_loses_no_file(
    applied: World, file: str, data: bytes, verb: tuple[str, ...]
) -> None:
    (applied.tree() / file).write_bytes(data)
    error = applied.run(*verb, "--json").json["error"]
    assert "is damaged" in error["cause"] and f"mv {applied.tree()} {applied.tree()}.damaged" in error["way_out"]
    applied.tree().rename(f"{applied.tree()}.damaged")
    applied.apply()


@pytest.mark.parametrize("verb", [("apply", "demo", "--force"), ("refresh", "demo")])
def test_a_bisect_in_progress_is_ended_by_a_command_that_git_has(applied: World, verb: tuple[str, ...]) -> None:
    git(applied.tree(), "bisect", "start")
    error = applied.run(*verb, "--json").json["error"]
    assert error["way_out"] == f"git -C {applied.tree()} bisect reset"


def test_a_link_to_a_tree_elsewhere_is_not_removed(applied: World) -> None:
    """Nor moved out of its place."""
    elsewhere = applied.root / "elsewhere"
    applied.tree().rename(elsewhere)
    applied.tree().symlink_to(elsewhere)
    error = applied.run("clean", "demo", "--json").json["error"]
    assert "is a symbolic link" in error["seen"] and error["way_out"].startswith(f"rm {applied.tree()} ")
    assert applied.tree().is_symlink() and (elsewhere / "src").is_dir()
