"""``rebase``: series taken to another base, conflicts resolved with plain git, files written at the end alone."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from killing import killed_at
from synthetic import (
    LINES,
    BaseEntry,
    Files,
    Result,
    World,
    archive,
    author,
    commit,
    git,
    make_patches,
    new_repo,
    replaced,
    write,
)

from nosync import projectfile, replaying

TEN = replaced(LINES, 10, "line ten\n")
CLASH = replaced(LINES, 10, "line X\n")  # upstream's own idea of line 10


def rebase(world: World, *more: str, code: int = 0) -> Result:
    result = world.run("rebase", "demo", "--json", *more)
    assert result.code == code, result.text
    return result


def states(result: Result) -> dict[str, str]:
    return {row["patch"]: row["state"] for row in result.json["rows"]}


def place(world: World, base: str) -> Path:
    return world.root / "build" / "rebase" / f"demo@{base}"


def world_of(tmp_path: Path, upstream_next: Files, steps: list[tuple[Files, str]], first: Files | None = None) -> World:
    """A checkout with one series on 1.0 and a second base 1.1 that differs by ``upstream_next``."""
    repo = new_repo(tmp_path / "up")
    one = commit(repo, first or {"src/demo/core.py": LINES, "src/demo/gone.py": LINES, "README.md": "demo\n"}, "1.0")
    two = commit(repo, upstream_next, "1.1")
    world = World(tmp_path / "mono", repo, f"file://{repo}", [BaseEntry("1.0", one, "", True), BaseEntry("1.1", two)])
    world.root.mkdir()
    world.save()
    world.add_series("alpha", 10)
    world.add_patches("alpha", "1.0", make_patches(repo, one, steps))
    return world


# ---- without conflicts ----


def test_patches_that_fit_are_written_for_the_new_base(world: World) -> None:
    result = rebase(world, "--to", "1.1")
    assert set(states(result).values()) == {"unmodified", "applied"}
    assert result.row(patch="0001-loss-say-five.patch")["state"] == "applied"
    assert result.row(patch="0001-loss-say-five.patch")["from"] == "1.0"
    world.apply("--base", "1.1")
    assert world.log("1.1") == ["core: say ten", "core: say twenty, and test it", "tests: one more", "loss: say five"]
    assert not place(world, "1.1").exists()
    assert world.leftovers() == []


def test_written_patches_apply_strictly_and_without_another_base(world: World) -> None:
    rebase(world, "--to", "1.1")
    states_now = {entry["word"] for row in world.apply("--base", "1.1").json["rows"] for entry in row["files"]}
    assert states_now == {"unmodified"}


def test_a_base_that_has_patches_already_is_rebased_from_the_one_before(world: World) -> None:
    rebase(world, "--to", "1.1")
    before = world.patch_files()
    again = rebase(world, "--to", "1.1")
    assert world.patch_files() == before
    assert any("the same bytes as before" in note for note in again.json["notes"])


def test_uncommitted_patches_of_the_target_are_not_written_over(world: World) -> None:
    rebase(world, "--to", "1.1")
    file = world.root / "patches/demo/beta/1.1/0001-loss-say-five.patch"
    file.write_bytes(file.read_bytes().replace(b"say five", b"say 5"))
    result = world.run("rebase", "demo", "--to", "1.1")
    assert result.code == 2
    assert "not committed" in result.err
    assert b"say 5" in file.read_bytes()


@pytest.mark.parametrize("hidden", ["core.excludesFile", "status.showUntrackedFiles", "no repository"])
def test_uncommitted_patches_that_git_does_not_show_are_not_written_over(offline: World, hidden: str) -> None:
    world = offline
    rebase(world, "--to", "1.1")
    file = world.root / "patches/demo/beta/1.1/0001-loss-say-five.patch"
    file.write_bytes(file.read_bytes().replace(b"say five", b"say 5"))
    if hidden == "no repository":
        shutil.rmtree(world.root / ".git")
    else:
        (world.root.parent / "hidden").write_text("*.patch\n")
        value = str(world.root.parent / "hidden") if hidden == "core.excludesFile" else "no"
        git(world.root, "config", hidden, value)
    before = world.patch_files()
    error = rebase(world, "--to", "1.1", code=2).json["error"]
    assert "patches/demo/beta/1.1 holds patches" in error["seen"]
    assert "mv patches/demo/beta/1.1 <elsewhere>" in error["way_out"]
    assert world.patch_files() == before
    file.parent.rename(world.root.parent / "elsewhere")
    rebase(world, "--to", "1.1")


def test_dry_writes_nothing(world: World) -> None:
    before = world.patch_files()
    result = rebase(world, "--to", "1.1", "--dry")
    assert len(states(result)) == 4
    assert world.patch_files() == before
    assert world.leftovers() == []


def test_one_series_alone_stands_on_those_below(world: World) -> None:
    result = rebase(world, "--to", "1.1", "--series", "beta")
    assert {row["series"] for row in result.json["rows"]} == {"beta"}
    assert not (world.root / "patches/demo/alpha/1.1").exists()
    world.apply("--base", "1.1")


def test_the_second_patch_of_a_changed_file_finds_its_merge_base(tmp_path: Path) -> None:
    """Its pre-image is in no base: it is what the first patch makes of the file."""
    steps: list[tuple[Files, str]] = [
        ({"src/demo/core.py": TEN}, "one\n"),
        ({"src/demo/core.py": replaced(TEN, 12, "line twelve\n")}, "two\n"),
    ]
    # line 13 is context of the second patch, so it needs the merge; no line of either patch changed
    world = world_of(tmp_path, {"src/demo/core.py": replaced(LINES, 15, "line fifteen\n")}, steps)
    result = rebase(world, "--to", "1.1")
    assert states(result) == {"0001-one.patch": "applied", "0002-two.patch": "applied"}
    text = (world.root / "patches/demo/alpha/1.1/0002-two.patch").read_text()
    assert " line fifteen\n" in text


# ---- the vocabulary ----


def test_a_change_that_upstream_has_whole_is_already_upstream_and_not_counted_as_applied(tmp_path: Path) -> None:
    two = replaced(TEN, 30, "line thirty\n")
    world = world_of(
        tmp_path,
        {"src/demo/core.py": TEN},
        [({"src/demo/core.py": TEN}, "one\n"), ({"src/demo/core.py": two}, "two\n")],
    )
    result = rebase(world, "--to", "1.1")
    assert states(result) == {"0001-one.patch": "already-upstream", "0002-two.patch": "unmodified"}
    assert [file.name for file in sorted((world.root / "patches/demo/alpha/1.1").iterdir())] == ["0001-two.patch"]
    assert world.log("1.1") == ["two"] if world.apply("--base", "1.1") else False


def test_a_change_that_upstream_has_in_part_says_how_much_was_left(tmp_path: Path) -> None:
    both = replaced(TEN, 30, "line thirty\n")
    world = world_of(
        tmp_path, {"src/demo/core.py": replaced(TEN, 20, "line 20!\n")}, [({"src/demo/core.py": both}, "both\n")]
    )
    result = rebase(world, "--to", "1.1")
    row = result.row(patch="0001-both.patch")
    assert row["state"] == "already-upstream"
    assert "2 of 4 changed lines" in row["detail"]
    assert b"+line thirty" in (world.root / "patches/demo/alpha/1.1/0001-both.patch").read_bytes()


def test_a_series_that_is_wholly_upstream_stays_a_series_of_no_patches(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"src/demo/core.py": TEN}, [({"src/demo/core.py": TEN}, "one\n")])
    rebase(world, "--to", "1.1")
    git(world.root, "add", "-A", ".")
    git(world.root, "commit", "-q", "-m", "state")
    clone = world.root.parent / "clone"
    git(world.root.parent, "clone", "-q", str(world.root), str(clone))
    assert (clone / "patches/demo/alpha/1.1").is_dir()  # git keeps no empty folder; the base must not inherit 1.0's
    assert world.apply("--base", "1.1").row(series="alpha")["patches"] == "0/0"


def test_a_target_that_upstream_removed_is_target_gone_and_the_rest_untouched(tmp_path: Path) -> None:
    steps: list[tuple[Files, str]] = [({"src/demo/gone.py": TEN}, "gone\n"), ({"src/demo/core.py": TEN}, "core\n")]
    world = world_of(tmp_path, {"src/demo/gone.py": None}, steps)
    result = rebase(world, "--to", "1.1", code=1)
    assert states(result) == {"0001-gone.patch": "target-gone", "0002-core.patch": "waits"}
    assert "src/demo/gone.py" in result.row(patch="0001-gone.patch")["detail"]
    git(place(world, "1.1"), "rm", "-q", "src/demo/gone.py")
    git(place(world, "1.1"), "am", "--skip")
    done = rebase(world, "--continue")
    assert states(done) == {"0001-gone.patch": "dropped", "0002-core.patch": "unmodified"}


def test_a_dry_run_tries_the_patches_above_one_that_does_not_fit(tmp_path: Path) -> None:
    steps: list[tuple[Files, str]] = [({"src/demo/gone.py": TEN}, "gone\n"), ({"src/demo/core.py": TEN}, "core\n")]
    world = world_of(tmp_path, {"src/demo/gone.py": CLASH}, steps)
    assert states(rebase(world, "--to", "1.1", "--dry", code=1)) == {
        "0001-gone.patch": "conflict",
        "0002-core.patch": "unmodified",
    }
    assert world.leftovers() == []


def test_a_dry_run_says_which_conflict_may_follow_from_one_above(tmp_path: Path) -> None:
    steps: list[tuple[Files, str]] = [
        ({"src/demo/core.py": TEN}, "ten\n"),
        ({"src/demo/core.py": replaced(TEN, 11, "line eleven\n")}, "eleven\n"),
        ({"src/demo/gone.py": TEN}, "apart\n"),
    ]
    world = world_of(tmp_path, {"src/demo/core.py": CLASH, "src/demo/gone.py": CLASH}, steps)
    result = rebase(world, "--to", "1.1", "--dry", code=1)
    follows = {row["patch"]: row["detail"].startswith("without alpha/0001, perhaps") for row in result.json["rows"]}
    assert set(states(result).values()) == {"conflict"}
    assert follows == {"0001-ten.patch": False, "0002-eleven.patch": True, "0003-apart.patch": False}


# ---- conflicts ----

STEPS: list[tuple[Files, str]] = [
    ({"README.md": "demo, patched\n"}, "readme\n"),
    ({"src/demo/core.py": TEN}, "ten\n\nThe cause.\n"),
    ({"src/demo/core.py": replaced(TEN, 30, "line thirty\n")}, "thirty\n"),
]


@pytest.fixture
def clash(tmp_path: Path) -> World:
    """The second of three patches conflicts with 1.1."""
    return world_of(tmp_path, {"src/demo/core.py": CLASH}, STEPS)


def resolve(world: World) -> None:
    tree = place(world, "1.1")
    write(tree, {"src/demo/core.py": replaced(LINES, 10, "line ten, X\n")})
    git(tree, "add", "src/demo/core.py")


def test_a_conflict_names_files_hunks_and_what_upstream_changed_and_writes_nothing(clash: World) -> None:
    before, projects = clash.patch_files(), (clash.root / "upstream/projects.toml").read_bytes()
    result = rebase(clash, "--to", "1.1", code=1)
    assert states(result) == {
        "0001-readme.patch": "unmodified",
        "0002-ten.patch": "conflict",
        "0003-thirty.patch": "waits",
    }
    detail = result.row(patch="0002-ten.patch")["detail"]
    assert "src/demo/core.py: 1 conflicting hunk, upstream since 1.0: 1 hunks, +1 -1" in detail
    assert clash.patch_files() == before
    assert (clash.root / "upstream/projects.toml").read_bytes() == projects
    text = (place(clash, "1.1") / "src/demo/core.py").read_text()
    assert "<<<<<<< " in text and "line X\n" in text and "line ten\n" in text
    assert "git am --continue" in git(place(clash, "1.1"), "status") or "am session" in git(
        place(clash, "1.1"), "status"
    )


def test_a_resolved_conflict_goes_on_and_the_rest_follows(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    result = rebase(clash, "--continue")
    assert states(result) == {
        "0001-readme.patch": "unmodified",
        "0002-ten.patch": "resolved",
        "0003-thirty.patch": "applied",
    }
    clash.apply("--base", "1.1")
    assert clash.log("1.1", "%an %s") == ["Ada Łovelace readme", "Ada Łovelace ten", "Ada Łovelace thirty"]
    assert "line ten, X\n" in (clash.tree("patched", "1.1") / "src/demo/core.py").read_text()
    assert not place(clash, "1.1").exists()
    assert clash.leftovers() == []


def test_the_same_resolution_reproduces_the_committed_patches_byte_for_byte(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    rebase(clash, "--continue")
    committed = clash.patch_files()
    git(clash.root, "add", "-A", ".")
    git(clash.root, "commit", "-q", "-m", "state")
    assert rebase(clash, "--to", "1.1", code=1).row(patch="0002-ten.patch")["state"] == "conflict"
    resolve(clash)
    assert "patches/demo/alpha/1.1: the same bytes as before" in rebase(clash, "--continue").json["notes"]
    assert clash.patch_files() == committed


def test_ending_git_am_oneself_is_as_good(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    git(place(clash, "1.1"), "am", "--continue")
    assert states(rebase(clash, "--continue"))["0002-ten.patch"] == "resolved"


@pytest.mark.parametrize("how", ["nothing done", "marks left", "not added", "nothing left", "reset away"])
def test_what_is_not_resolved_is_not_gone_on_with(clash: World, how: str) -> None:
    rebase(clash, "--to", "1.1", code=1)
    tree = place(clash, "1.1")
    expected = {
        "nothing done": "not resolved yet",
        "marks left": "conflict marks are left",
        "not added": "edits that are not added",
        "nothing left": "am --skip",
        "reset away": "no longer stands on the patches",
    }[how]
    if how == "marks left":
        git(tree, "add", "src/demo/core.py")
    if how == "not added":
        resolve(clash)
        write(tree, {"src/demo/core.py": replaced(LINES, 10, "later\n")})
    if how == "nothing left":
        write(tree, {"src/demo/core.py": CLASH})
        git(tree, "add", "src/demo/core.py")
    if how == "reset away":
        git(tree, "am", "--quit")
        git(tree, "reset", "-q", "--hard", "HEAD^")
    before = clash.patch_files()
    result = clash.run("rebase", "demo", "--continue")
    assert result.code == 2
    assert expected in result.err
    assert clash.patch_files() == before
    assert tree.exists()


@pytest.mark.parametrize("am", ["waits", "was ended"])
@pytest.mark.parametrize("name", ["src/demo/notes.md", "secret.log", "src/demo/gone.py"])
def test_files_in_no_commit_do_not_go_with_the_worktree(clash: World, am: str, name: str) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    tree = place(clash, "1.1")
    with (tree / ".git/info/exclude").open("a") as ignored:
        ignored.write("*.log\n")
    if name == "src/demo/gone.py":
        git(tree, "update-index", "--assume-unchanged", name)
    if am == "was ended":
        git(tree, "am", "--continue")
    write(tree, {name: "mine\n", "src/demo/__pycache__/core.pyc": "not mine\n"})
    result = clash.run("rebase", "demo", "--continue")
    assert result.code == 2 and name in result.err and "git add -f" in result.err and "CONTINUE=1" in result.err
    assert (tree / name).read_text() == "mine\n"
    if name == "src/demo/gone.py":
        git(tree, "update-index", "--no-assume-unchanged", name)
        git(tree, "checkout", name)
    else:
        (tree / name).unlink()
    rebase(clash, "--continue")


def test_a_stash_does_not_go_with_the_worktree(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    git(place(clash, "1.1"), "am", "--continue")
    write(place(clash, "1.1"), {"README.md": "mine\n"})
    git(place(clash, "1.1"), "stash", "push", "-q")
    assert "stash pop" in rebase(clash, "--continue", code=2).json["error"]["way_out"]
    git(place(clash, "1.1"), "stash", "drop", "-q")
    rebase(clash, "--continue")


@pytest.mark.parametrize("how", ["an edit", "a commit"])
@pytest.mark.parametrize("stops", [False, True])
def test_work_done_while_a_rebase_goes_on_does_not_go_with_the_worktree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, stops: bool
) -> None:
    steps: list[tuple[Files, str]] = [*STEPS, ({"src/demo/gone.py": TEN}, "gone\n")]
    newer: Files = {"src/demo/core.py": CLASH} | ({"src/demo/gone.py": CLASH} if stops else {})
    world = world_of(tmp_path, newer, steps)
    rebase(world, "--to", "1.1", code=1)
    resolve(world)
    tree, inner, before = place(world, "1.1"), replaying.replay, world.patch_files()

    def meanwhile(*args: Any) -> Any:
        write(tree, {"late.txt": "late\n"})
        if how == "a commit":
            commit(tree, {}, "late")
        return inner(*args)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "replay", meanwhile)
        error = rebase(world, "--continue", code=2).json["error"]
    assert ("a commit" if how == "a commit" else "late.txt") in error["seen"]
    assert (tree / "late.txt").exists() and world.patch_files() == before and world.leftovers() == []


def test_a_second_start_names_the_operation_and_both_ways_out(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    work = (place(clash, "1.1") / "src/demo/core.py").read_bytes()
    result = clash.run("rebase", "demo", "--to", "1.1")
    assert result.code == 2
    assert "is in progress" in result.err and "CONTINUE=1" in result.err and "ABORT=1" in result.err
    assert (place(clash, "1.1") / "src/demo/core.py").read_bytes() == work


def test_giving_up_leaves_everything_as_it_was(clash: World) -> None:
    before = clash.patch_files()
    rebase(clash, "--to", "1.1", code=1)
    rebase(clash, "--abort")
    assert clash.patch_files() == before
    assert not place(clash, "1.1").exists()
    assert clash.run("rebase", "demo", "--continue").code == 2
    assert states(rebase(clash, "--to", "1.1", code=1))["0002-ten.patch"] == "conflict"


def test_patches_that_changed_meanwhile_stop_the_rebase(clash: World) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    file = clash.root / "patches/demo/alpha/1.0/0003-thirty.patch"
    file.write_bytes(file.read_bytes().replace(b"thirty\n\n", b"thirty, then\n\n"))
    result = clash.run("rebase", "demo", "--continue")
    assert result.code == 2
    assert "have changed since" in result.err


def test_a_dropped_patch_of_a_merged_series_needs_the_merge_in_the_base(
    clash: World, upstream: SimpleNamespace
) -> None:
    clash.add_series("alpha", 10, status="merged", merged_as="f" * 40)
    clash.add_patches("alpha", "1.0", {})
    rebase(clash, "--to", "1.1", code=1)
    git(place(clash, "1.1"), "am", "--skip")
    refused = clash.run("rebase", "demo", "--continue")
    assert refused.code == 2
    assert "not known to hold" in refused.err
    assert states(rebase(clash, "--continue", "--force"))["0002-ten.patch"] == "dropped"


def test_a_dropped_patch_of_a_merged_series_is_fine_where_the_base_has_the_merge(clash: World) -> None:
    merge = git(clash.upstream, "rev-parse", "main").strip()
    clash.add_series("alpha", 10, status="merged", merged_as=merge)
    rebase(clash, "--to", "1.1", code=1)
    git(place(clash, "1.1"), "am", "--skip")
    assert states(rebase(clash, "--continue"))["0002-ten.patch"] == "dropped"


def test_hostile_configuration_does_not_change_a_byte(
    clash: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    other = clash.copy(tmp_path / "other")
    rebase(clash, "--continue")
    hostile = tmp_path / "gitconfig"
    hostile.write_text(
        "[core]\n\tautocrlf = true\n\tabbrev = 7\n[diff]\n\tnoprefix = true\n\talgorithm = patience\n\tcontext = 9\n"
        "[commit]\n\tgpgsign = true\n[format]\n\tsignature = x\n[merge]\n\tconflictStyle = zdiff3\n"
        "[rerere]\n\tenabled = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(hostile))
    rebase(other, "--continue")
    assert other.patch_files() == clash.patch_files()


def test_a_merge_without_the_files_that_a_patch_was_written_for_is_no_conflict(clash: World) -> None:
    """git's 'sha1 information is lacking': a base that cannot be had whole, or a patch of no known base."""
    file = clash.root / "patches/demo/alpha/1.0/0002-ten.patch"
    data = re.sub(rb"^index [0-9a-f]{40}", b"index " + b"a" * 40, file.read_bytes(), flags=re.MULTILINE)
    file.write_bytes(data.replace(b"\n line 9\n", b"\n line nine\n"))
    before = clash.patch_files()
    result = clash.run("rebase", "demo", "--to", "1.1")
    assert result.code == 2 and "conflict" not in result.text
    assert "0002-ten.patch: a three-way merge lacks the files that the patch was written for" in result.err
    assert "make apply P=demo BASE=1.0" in result.err
    assert clash.patch_files() == before and not place(clash, "1.1").exists()


def test_no_git_identity_is_needed(clash: World) -> None:
    clash.environment = {"EMAIL": "", "GIT_AUTHOR_NAME": "", "GIT_COMMITTER_NAME": ""}
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    assert states(rebase(clash, "--continue"))["0002-ten.patch"] == "resolved"
    assert clash.run("export", "demo", "--base", "1.1").code == 0


# ---- where to ----


def test_a_git_ref_becomes_a_base_of_projects_toml(clash: World) -> None:
    clash.bases = clash.bases[:1]
    clash.save()
    text = (clash.root / "upstream/projects.toml").read_text()
    tip = commit(clash.upstream, {"README.md": "demo\n", "src/demo/core.py": LINES, "src/demo/new.py": "1\n"}, "later")
    result = rebase(clash, "--to", "main")
    assert set(states(result).values()) == {"unmodified"}
    new = (clash.root / "upstream/projects.toml").read_text()
    assert new == text.rstrip("\n") + f'\n\n[[demo.bases]]\nid = "{tip[:12]}"\ncommit = "{tip}"\n'
    assert (clash.root / "patches/demo/alpha" / tip[:12]).is_dir()
    clash.apply("--base", tip[:12])


def test_a_release_is_found_by_name_and_hash_and_placed_by_its_version(
    world: World, upstream: SimpleNamespace, index: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "src/demo/core.py": LINES.replace("line 25\n", "line xxv\n"),
        "src/demo/loss.py": LINES.replace("line", "loss"),
    }
    digest = archive(world.root.parent / "demo-1.0.5.tar.gz", "demo-1.0.5", files)
    index.serve(world.root.parent / "demo-1.0.5.tar.gz")
    page = index.folder / "simple" / "demo" / "index.html"
    page.write_text(page.read_text().replace('.tar.gz">', f'.tar.gz#sha256={digest}">'))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    result = rebase(world, "--to", "1.0.5")
    assert {row["source"] for row in result.json["rows"]} == {"archive"}
    table = tomllib.loads((world.root / "upstream/projects.toml").read_text())
    assert [base["id"] for base in table["demo"]["bases"]] == ["1.0", "1.0.5", "1.1"]
    assert table["demo"]["bases"][1]["archive"] == {"package": "demo", "version": "1.0.5", "sha256": digest}
    # what the archive lacks by nature was taken over, and applies again
    assert b"tests/test_more.py" in (world.root / "patches/demo/alpha/1.0.5/0003-tests-one-more.patch").read_bytes()
    assert result.row(patch="0003-tests-one-more.patch")["state"] == "empty"
    world.apply("--base", "1.0.5")


def test_a_name_that_is_nothing_says_what_it_may_be(world: World) -> None:
    world.apply()
    result = world.run("rebase", "demo", "--to", "no-such-branch")
    assert result.code == 2
    assert "no base, no release and no git ref" in result.err


def test_a_remote_may_have_any_name(clash: World, tmp_path: Path) -> None:
    """clone.defaultRemoteName, for our own clone and for one of the user's."""
    write(tmp_path, {"home/.gitconfig": "[clone]\n\tdefaultRemoteName = up\n"})
    clash.environment = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home")}
    clash.apply()
    commit(clash.upstream, {"src/demo/new.py": "1\n"}, "later")
    assert clash.run("rebase", "demo", "--to", "main", "--dry", "--json").json["rows"]
    git(clash.root / "upstream/demo", "remote", "rename", "origin", "mine")
    assert clash.run("rebase", "demo", "--to", "main", "--dry", "--json").json["rows"]


def test_what_git_says_of_a_ref_that_is_not_there_is_named(clash: World) -> None:
    clash.apply()
    error = clash.run("rebase", "demo", "--to", "lost", "--json").json["error"]
    assert "fatal: couldn't find remote ref lost" in error["cause"]


def test_the_oldest_base_has_nothing_before_it(world: World) -> None:
    result = world.run("rebase", "demo", "--to", "1.0")
    assert result.code == 2
    assert "the oldest base" in result.err


def test_the_commands_named_for_a_git_ref_can_be_typed(world: World, tmp_path: Path) -> None:
    """A commit can be fetched by its full id alone."""
    clone = tmp_path / "with-a-clash"
    git(tmp_path, "clone", "-q", str(world.upstream), str(clone))
    tip = commit(clone, {"src/demo/core.py": CLASH}, "a clash")
    world.url, world.bases = f"file://{clone}", world.bases[:1]
    world.save()
    error = world.run("rebase", "demo", "--to", "main", "--series", "beta", "--dry", "--json").json["error"]
    assert f"TO={tip} S=alpha" in error["way_out"]


# ---- killed ----


def test_killed_anywhere_a_rerun_ends_in_the_same_files(world: World, tmp_path: Path) -> None:
    world.apply()
    untouched = world.copy(tmp_path / "untouched")
    rebase(untouched, "--to", "1.1")
    for number in range(3, 400, 29):
        if not killed_at(world, number, "rebase", "demo", "--to", "1.1"):
            break
    else:
        raise AssertionError("the run never came to its end")
    rebase(world, "--to", "1.1")
    assert world.patch_files() == untouched.patch_files()
    assert world.leftovers() == []


def test_killed_while_going_on_the_resolution_is_not_lost(clash: World, tmp_path: Path) -> None:
    rebase(clash, "--to", "1.1", code=1)
    resolve(clash)
    untouched = clash.copy(tmp_path / "untouched")
    rebase(untouched, "--continue")
    runs = 0
    for number in range(2, 400, 19):
        if not killed_at(clash, number, "rebase", "demo", "--continue"):
            break
        runs += 1
        assert place(clash, "1.1").exists()
    assert runs > 1
    assert clash.patch_files() == untouched.patch_files()
    assert not place(clash, "1.1").exists()


def test_killed_between_the_patches_and_projects_toml(clash: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clash.bases = clash.bases[:1]
    clash.save()
    tip = commit(clash.upstream, {"src/demo/core.py": LINES}, "later", author())

    def killed(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(projectfile, "add_base", killed)
        assert clash.run("rebase", "demo", "--to", tip).code == 2
    rebase(clash, "--to", tip)
    assert f'commit = "{tip}"' in (clash.root / "upstream/projects.toml").read_text()
