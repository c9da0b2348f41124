"""``refresh``: from a tree's commits back to patch files, byte for byte, or not at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic import (
    BASE_FILES,
    LINES,
    Files,
    Link,
    Script,
    World,
    author,
    commit,
    export,
    git,
    make_patches,
    replaced,
    write,
)

from nosync import refresh as refreshing


def changed_files(world: World, before: dict[str, bytes]) -> set[str]:
    after = world.patch_files()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


# ---- what changes, and what does not -------------------------------------------------------------


def test_refresh_without_a_change_changes_no_byte_and_says_so(applied: World) -> None:
    before, head = applied.patch_files(), applied.commits()
    result = applied.refresh()
    assert result.json["rows"] == [] and "no patch changes" in result.json["notes"][0]
    assert applied.patch_files() == before and applied.commits() == head
    assert applied.leftovers() == []
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_an_amended_commit_changes_exactly_its_patch(applied: World) -> None:
    before = applied.patch_files()
    applied.amend({"src/demo/loss.py": str(BASE_FILES["src/demo/loss.py"]).replace("loss 5\n", "loss V\n")})
    result = applied.refresh()
    assert changed_files(applied, before) == {"demo/beta/1.0/0001-loss-say-five.patch"}
    assert [(row["series"], row["change"]) for row in result.json["rows"]] == [("beta", "changed")]
    assert b"+loss V\n" in applied.patch_files()["demo/beta/1.0/0001-loss-say-five.patch"]
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_a_commit_amended_in_the_middle_changes_its_patch_and_those_that_name_its_blobs(applied: World) -> None:
    before = applied.patch_files()
    applied.edit_commit(2, {"tests/test_more.py": "def test_more():\n    assert 1\n"})
    applied.refresh()
    assert changed_files(applied, before) == {"demo/alpha/1.0/0003-tests-one-more.patch"}
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_after_refresh_the_tree_has_the_ids_that_apply_would_make(applied: World) -> None:
    applied.amend({"src/demo/loss.py": "all new\n"})
    applied.refresh()
    ids = applied.commits()
    shutil.rmtree(applied.tree())
    applied.apply()
    assert applied.commits() == ids


def test_dry_says_what_would_change_and_exits_1_and_writes_nothing(applied: World) -> None:
    assert applied.refresh("--dry").json["rows"] == []
    before = applied.patch_files()
    mine = applied.amend({"src/demo/loss.py": "all new\n"})
    result = applied.refresh("--dry", code=1)
    assert result.row(series="beta")["change"] == "changed"
    assert applied.patch_files() == before and applied.commits()[-1] == mine
    assert applied.leftovers() == []


def test_a_reworded_subject_renames_the_file(applied: World) -> None:
    before = applied.patch_files()
    applied.edit_commit(0, {}, "core: say ten, better")
    result = applied.refresh()
    assert {(row["patch"], row["change"]) for row in result.json["rows"]} == {
        ("0001-core-say-ten.patch", "removed"),
        ("0001-core-say-ten-better.patch", "new"),
    }
    assert len(applied.patch_files()) == len(before)


def test_a_reworded_first_commit_of_the_upper_series_stays_in_it(applied: World) -> None:
    applied.edit_commit(3, {}, "loss: other words")
    result = applied.refresh()
    assert {row["series"] for row in result.json["rows"]} == {"beta"}


def test_a_commit_with_all_but_its_place_changed_goes_where_s_says(applied: World) -> None:
    tree = applied.tree()
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    commit(
        tree,
        {"src/demo/loss.py": "x\n"},
        "loss: from scratch\n",
        author("N", "n@example.org", "2025-01-01T00:00:00Z"),
    )
    result = applied.refresh("--series", "beta")
    assert {(row["series"], row["change"]) for row in result.json["rows"]} == {
        ("beta", "removed"),
        ("beta", "new"),
    }


def rewritten(world: World, position: int) -> None:
    """Give a commit of the tree another author, date and message, as ``commit --amend --reset-author -m`` does."""
    tree, ids = world.tree(), world.commits()
    git(tree, "reset", "-q", "--hard", ids[position])
    who = author("N", "n@example.org", "2025-01-01T00:00:00Z")
    git(tree, "commit", "-q", "--amend", "--reset-author", "-m", "all other words", env=who)
    for later in ids[position + 1 :]:
        git(tree, "cherry-pick", later)


def test_a_rewritten_commit_at_the_border_of_two_series_changes_its_series_only_when_told(applied: World) -> None:
    rewritten(applied, 3)
    error = refused(applied)
    assert "stands where beta/0001-loss-say-five.patch was" in error["seen"]
    assert "S=beta" in error["way_out"] and "S=alpha" in error["way_out"]
    assert {row["series"] for row in applied.refresh("--series", "beta").json["rows"]} == {"beta"}


def test_a_new_commit_below_a_border_that_lost_none_needs_no_word(applied: World) -> None:
    git(applied.tree(), "reset", "-q", "--hard", applied.commits()[1])
    commit(applied.tree(), {"src/demo/new.py": "new\n"}, "new\n")
    git(applied.tree(), "cherry-pick", "refs/nosync/applied")  # beta's; alpha's last is dropped
    assert {row["series"] for row in applied.refresh().json["rows"]} == {"alpha"}


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_rewritten_commit_that_can_only_be_of_one_series_stays_in_it(applied: World, position: int) -> None:
    rewritten(applied, position)
    assert {row["series"] for row in applied.refresh().json["rows"]} == {"alpha"}


def test_a_new_commit_on_top_belongs_to_the_series_below_it_or_to_s(applied: World) -> None:
    commit(applied.tree(), {"src/demo/new.py": "new\n"}, "new: a file\n")
    copy = applied.copy(applied.root.parent / "second")
    assert applied.refresh().row(series="beta")["patch"] == "0002-new-a-file.patch"
    copy.add_series("gamma", 30)
    assert copy.refresh("--series", "gamma").row(series="gamma")["patch"] == "0001-new-a-file.patch"
    assert len(copy.log()) == 5 and "nothing to do" in copy.apply().json["notes"][0]


def test_a_new_commit_between_two_series_belongs_to_the_lower(applied: World) -> None:
    tree = applied.tree()
    top = git(tree, "rev-parse", "HEAD").strip()
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    commit(tree, {"src/demo/new.py": "new\n"}, "new: a file\n")
    git(tree, "cherry-pick", top)
    assert applied.refresh().row(change="new")["series"] == "alpha"


def test_commits_out_of_series_order_are_refused_with_the_listing(applied: World) -> None:
    before = applied.patch_files()
    tree, ids = applied.tree(), applied.commits()
    git(tree, "reset", "-q", "--hard", "refs/nosync/base")
    for ident in (ids[3], *ids[:3]):
        git(tree, "cherry-pick", ident)
    error = applied.refresh(code=2).json["error"]
    assert "mix the series (alpha below beta)" in error["seen"]
    assert "beta: loss: say five" in error["details"] and "rebase -i" in error["way_out"]
    assert applied.patch_files() == before
    commit(tree, {"x": "x\n"}, "new")
    assert applied.refresh("--series", "alpha", code=2).json["exit"] == 2


def test_commits_swapped_within_a_series_swap_their_numbers(applied: World) -> None:
    tree, ids = applied.tree(), applied.commits()
    git(tree, "reset", "-q", "--hard", "refs/nosync/base")
    for ident in (ids[0], ids[2], ids[1], ids[3]):
        git(tree, "cherry-pick", ident)
    applied.refresh()
    names = [name.rpartition("/")[2] for name in applied.patch_files() if "alpha/1.0" in name]
    assert names == [
        "0001-core-say-ten.patch", "0002-tests-one-more.patch", "0003-core-say-twenty-and-test-it.patch",
    ]  # fmt: skip
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_a_dropped_commit_removes_its_file_and_the_last_one_leaves_an_empty_series(applied: World) -> None:
    git(applied.tree(), "reset", "-q", "--hard", "HEAD~1")
    assert applied.refresh().row(series="beta")["change"] == "removed"
    folder = applied.root / "patches/demo/beta/1.0"
    assert [file.name for file in folder.iterdir()] == [".gitkeep"]  # git keeps no empty folder
    assert "nothing to do" in applied.apply().json["notes"][0]
    assert applied.run("status", "demo", "--json").row(series="beta", base="1.0")["patches"] == 0
    commit(applied.tree(), {"src/demo/new.py": "new\n"}, "new: a file\n")
    applied.refresh("--series", "beta")
    assert [file.name for file in folder.iterdir()] == ["0001-new-a-file.patch"]


def test_refresh_of_an_inherited_cell_writes_its_own_folder_only_when_it_changed(world: World) -> None:
    world.apply("--base", "1.1")
    before = world.patch_files()
    world.refresh("--base", "1.1")
    assert world.patch_files() == before
    world.edit_commit(3, {"src/demo/loss.py": "for 1.1\n"}, base="1.1")
    world.refresh("--base", "1.1")
    assert changed_files(world, before) == {"demo/beta/1.1/0001-loss-say-five.patch"}
    assert "nothing to do" in world.apply("--base", "1.1").json["notes"][0]
    world.apply()
    assert "loss five\n" in (world.tree() / "src/demo/loss.py").read_text()


def test_a_drifted_tree_refreshes_to_patches_that_name_its_own_blobs(applied: World) -> None:
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    file.write_bytes(file.read_bytes().replace(b"+loss five", b"+loss 5!!!"))
    applied.apply(code=1)
    assert applied.refresh().row(series="beta")["change"] == "changed"
    assert applied.apply().row(series="beta")["state"] == "applied"


# ---- what is refused -----------------------------------------------------------------------------


def refused(world: World, *more: str) -> dict[str, str]:
    before, head = world.patch_files(), git(world.tree(), "rev-parse", "HEAD")
    error: dict[str, str] = world.refresh(*more, code=2).json["error"]
    assert world.patch_files() == before and git(world.tree(), "rev-parse", "HEAD") == head
    assert error["way_out"]
    return error


@pytest.mark.parametrize(
    "message", ["core: \1 ten\n", "core: ten\n\n\1abc\n", "core: ten\n\n:100644 in\n:100644 out\n"]
)
def test_any_byte_in_a_message_survives_or_is_refused(applied: World, message: str) -> None:
    applied.edit_commit(0, {}, message)
    result = applied.run("refresh", "demo", "--json")
    if result.code:
        assert "does not survive the way through a patch file" in result.json["error"]["seen"]
    else:
        assert "nothing to do" in applied.apply().json["notes"][0]


@pytest.mark.parametrize("name", ["\n", "src/\1", "src/\n:1"])
def test_any_byte_in_the_name_of_a_file_survives(applied: World, name: str) -> None:
    commit(applied.tree(), {name: "1\n"}, "add a file\n")
    applied.refresh()
    assert "nothing to do" in applied.apply().json["notes"][0]
    assert (applied.tree() / name).read_text() == "1\n"


@pytest.mark.parametrize(
    "message",
    [
        "subject\n\nbody\n---\nmore\n",
        "subject\n\ndiff --git a/x b/x\nis how a diff starts\n",
        "subject\n\nIndex: 5\n",
        "[PATCH] tagged by hand\n\nbody\n",
        "subject\n\nbody\n\nFrom 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nmore\n",
        "subject\n\nFrom: Someone Else <else@example.org>\n\nbody\n",
        "subject of\nseveral lines\n\nbody\n",
        "subject\n\n\n\nbody\n\n\n\nmore\n",
        "subject\n\ntrailing   \nspaces\n",
        "subject  with   gaps\n\nbody\n",
    ],
    ids=[
        "three dashes",
        "diff --git",
        "Index",
        "PATCH tag",
        "mbox line",
        "From header",
        "long subject paragraph",
        "many empty lines",
        "trailing spaces",
        "gaps in the subject",
    ],
)
def test_a_message_that_mail_would_change_is_refused_or_survives_whole(applied: World, message: str) -> None:
    tree = applied.tree()
    write(tree, {"src/demo/new.py": "new\n"})
    git(tree, "add", ".")
    git(tree, "commit", "-q", "--cleanup=verbatim", "-F", "-", data=message.encode())
    before, want = applied.patch_files(), git(tree, "log", "-1", "--format=%B")
    result = applied.run("refresh", "demo", "--json")
    if result.code == 0:
        assert git(tree, "log", "-1", "--format=%B") == want
        shutil.rmtree(tree)
        applied.apply()
        assert git(tree, "log", "-1", "--format=%B") == want
        assert not message.startswith(("subject\n\nbody\n---", "[PATCH]", "subject\n\ndiff --git"))
    else:
        assert "does not survive the way through a patch file" in result.json["error"]["seen"]
        assert applied.patch_files() == before


def test_a_merge_commit_is_refused(applied: World) -> None:
    tree = applied.tree()
    git(tree, "switch", "-q", "-c", "side", "HEAD~1")
    commit(tree, {"side.txt": "side\n"}, "side")
    git(tree, "switch", "-q", "main")
    git(tree, "merge", "-q", "--no-ff", "-m", "merge", "side")
    assert "merge commit" in refused(applied)["seen"]


def test_uncommitted_edits_are_refused_with_both_ways_to_commit_them(applied: World) -> None:
    write(applied.tree(), {"src/demo/loss.py": "edited\n"})
    error = refused(applied)
    assert "uncommitted edits: src/demo/loss.py" in error["seen"]
    assert "--amend" in error["way_out"] and "--autosquash" in error["way_out"]


def test_a_branch_that_does_not_stand_on_the_base_is_refused(applied: World) -> None:
    git(applied.tree(), "switch", "-q", "--orphan", "elsewhere")
    commit(applied.tree(), {"x": "x\n"}, "x")
    assert "does not stand on the base" in refused(applied)["seen"]


def test_a_repository_committed_as_a_submodule_is_refused(applied: World) -> None:
    inner = applied.tree() / "inner"
    inner.mkdir()
    git(inner, "init", "-q", ".")
    commit(inner, {"x": "x\n"})
    git(applied.tree(), "add", "inner")
    git(applied.tree(), "commit", "-q", "-m", "inner")
    assert "holds inner as a submodule" in refused(applied)["seen"]


@pytest.mark.parametrize(("name", "content"), [("src/demo/loss.py", Link("core.py")), ("src/demo/link.py", "a file\n")])
def test_a_file_that_becomes_a_link_and_a_link_that_becomes_a_file_come_back(
    applied: World, name: str, content: Link | str
) -> None:
    (applied.tree() / name).unlink()
    applied.amend({name: content})
    applied.refresh()
    ids = applied.commits()
    shutil.rmtree(applied.tree())
    (entry,) = applied.apply().row(series="beta")["files"]
    assert entry["word"] == "unmodified" and applied.commits() == ids
    assert (applied.tree() / name).is_symlink() == isinstance(content, Link)


def test_patch_files_that_changed_since_are_not_written_over(applied: World) -> None:
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    file.write_bytes(file.read_bytes().replace(b"+loss five", b"+loss 5!!!"))
    applied.amend({"src/demo/loss.py": "mine\n"})
    error = refused(applied)
    assert f"changed since it was applied: {file.name}" in error["seen"] and "FORCE=1" in error["way_out"]
    file.unlink()
    assert "changed since" in refused(applied)["seen"]


def test_a_patch_added_by_hand_is_not_removed(applied: World) -> None:
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    (file.parent / "0002-another.patch").write_bytes(file.read_bytes())
    assert "0002-another.patch" in refused(applied)["seen"]


def test_a_patch_that_made_no_commit_is_not_dropped_in_silence(applied: World) -> None:
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    shutil.copy(file, file.parent / "0002-the-same-again.patch")
    result = applied.apply(code=1)
    assert result.row(series="beta")["state"] == "already-upstream"
    assert "made no commit (already-upstream)" in refused(applied)["seen"]


def test_a_series_that_was_removed_is_named(applied: World) -> None:
    shutil.rmtree(applied.root / "patches/demo/beta")
    assert "the series beta, which is gone" in refused(applied)["seen"]


def test_a_pin_that_moved_since_is_named_and_the_base_tree_stays(applied: World) -> None:
    base = git(applied.tree("base"), "rev-parse", "HEAD")
    applied.amend({"src/demo/loss.py": "mine\n"})
    applied.bases[0].commit = applied.bases[1].commit
    applied.save()
    assert "made from another pin" in refused(applied)["seen"]
    assert git(applied.tree("base"), "rev-parse", "HEAD") == base


def test_an_unknown_series_lists_the_known(applied: World) -> None:
    error = refused(applied, "--series", "gamma")
    assert "no series 'gamma'" in error["seen"] and "alpha, beta" in error["way_out"]


def test_without_a_tree_refresh_says_to_apply(world: World) -> None:
    error = world.refresh(code=2).json["error"]
    assert "there is no patched tree" in error["seen"] and "make apply P=demo" in error["way_out"]


def test_a_missing_base_tree_is_made_again(applied: World) -> None:
    shutil.rmtree(applied.tree("base"))
    applied.amend({"src/demo/loss.py": "mine\n"})
    assert applied.refresh().row(series="beta")["change"] == "changed"


# ---- branches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["detached", "branch"])
def test_main_comes_along_when_another_head_is_refreshed(applied: World, where: str) -> None:
    tree = applied.tree()
    git(tree, "switch", "-q", *(["--detach"] if where == "detached" else ["-c", "topic"]))
    applied.amend({"src/demo/loss.py": "mine\n"})
    applied.refresh()
    assert git(tree, "rev-parse", "main") == git(tree, "rev-parse", "HEAD")
    assert git(tree, "status", "--porcelain") == ""
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_a_branch_at_the_former_commits_is_not_called_local_work(applied: World) -> None:
    git(applied.tree(), "branch", "before")
    applied.amend({"src/demo/loss.py": "mine\n"})
    applied.refresh()
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_other_branches_of_the_users_stay(applied: World) -> None:
    tree = applied.tree()
    git(tree, "switch", "-q", "-c", "idea")
    mine = commit(tree, {"idea.txt": "idea\n"}, "idea")
    git(tree, "switch", "-q", "main")
    applied.amend({"src/demo/loss.py": "mine\n"})
    applied.refresh()
    assert git(tree, "rev-parse", "idea").strip() == mine
    applied.apply(code=2)


# ---- round trips ---------------------------------------------------------------------------------

LONG = "core: a subject that goes on and on, well beyond the width at which a mail header has to be folded into two"
TRIPS: dict[str, tuple[Files, str, dict[str, str]]] = {
    "CRLF": ({"src/demo/win.txt": b"one\r\n2\r\nthree\r\nfour\n"}, "win: edit\n", {}),
    "lone CR": ({"src/demo/win.txt": b"one\rtwo\r\nthree\r"}, "win: edit\n", {}),
    "no newline at the end": ({"src/demo/noeol.txt": b"first\nlast, edited"}, "noeol: edit\n", {}),
    "newline at the end comes": ({"src/demo/noeol.txt": b"first\nlast\n"}, "noeol: edit\n", {}),
    "brackets in the subject": ({"src/demo/core.py": "x\n"}, "[core] [RFC] say x [now]\n", {}),
    "non-ASCII author": (
        {"src/demo/core.py": "x\n"},
        "core: x\n",
        author("Jürgen „J“ Ögren-佐藤", "j@example.org"),
    ),
    "author with a comma and quotes": (
        {"src/demo/core.py": "x\n"},
        "core: x\n",
        author('Doe, "Jo" (x) J.', "j@example.org"),
    ),
    "non-ASCII subject": (
        {"src/demo/core.py": "x\n"},
        "core: größer, 更快, and quite a few words beyond that\n\nnaïve ☃\n",
        {},
    ),
    "non-ASCII file name": (
        {"src/demo/grüß e.txt": "changed\n", 'src/demo/新 fi\tle".py': "new\n"},
        "names\n",
        {},
    ),
    "name with spaces": ({"src/demo/a b  c .py": "new\n", "src/demo/ lead": "x\n"}, "names\n", {}),
    "name like a diff": ({"src/demo/b/a/b.py": "new\n", "a/b b/a": "x\n"}, "names\n", {}),
    "mode change": ({"src/demo/core.py": Script(LINES.encode())}, "mode\n", {}),
    "mode change of a name with spaces": ({"src/demo/grüß e.txt": Script("naïve\n".encode())}, "mode\n", {}),
    "mode change with an edit": ({"src/demo/core.py": Script(b"x\n")}, "mode\n", {}),
    "symlink": ({"src/demo/second.py": Link("loss.py"), "src/demo/link.py": Link("loss.py")}, "links\n", {}),
    "file becomes a symlink": ({"src/demo/core.py": None, "src/demo/core2.py": Link("core.py")}, "link\n", {}),
    "deleted file": ({"src/demo/old.py": None}, "remove old\n", {}),
    "moved file": ({"src/demo/old.py": None, "src/demo/older.py": "to be deleted\n"}, "move old\n", {}),
    "new file": ({"src/demo/deep/er/new.py": "new\n"}, "add new\n", {}),
    "new empty file": ({"src/demo/__init__.py": ""}, "add an empty file\n", {}),
    "binary": ({"src/demo/blob.bin": bytes(range(256)) * 4}, "add a blob\n", {}),
    "NUL byte": ({"src/demo/core.py": b"a\0b\n"}, "a NUL\n", {}),
    "empty lines": (
        {"src/demo/core.py": "\n\n\n x\n\n"},
        "subject\n\none\n\ntwo\n\n\tthree\n\n* four\n\n  five\n",
        {},
    ),
    "trailing spaces in the file": ({"src/demo/core.py": "x  \n\t\n \n"}, "spaces\n", {}),
    "long subject": ({"src/demo/core.py": "x\n"}, LONG + "\n\nbody\n", {}),
    "long non-ASCII subject": ({"src/demo/core.py": "x\n"}, LONG.replace("a", "ä") + "\n", {}),
    "From at a line start": (
        {"src/demo/core.py": "x\n"},
        "subject\n\nFrom here on it is fast.\n>From quoted\n",
        {},
    ),
    "only a subject": ({"src/demo/core.py": "x\n"}, "subject\n", {}),
    "no newline after the message": ({"src/demo/core.py": "x\n"}, "subject\n\nbody", {}),
    "scissors": ({"src/demo/core.py": "x\n"}, "subject\n\nabove\n-- >8 --\nbelow\n", {}),
    "trailers": (
        {"src/demo/core.py": "x\n"},
        "subject\n\nbody\n\nSigned-off-by: A <a@example.org>\nFixes: #5\n",
        {},
    ),
    "lines that begin like headers": (
        {"src/demo/core.py": "x\n"},
        "subject\n\nbody\n\nSubject: x\nDate: y\n",
        {},
    ),
    "dashes that are no separator": ({"src/demo/core.py": "x\n"}, "subject\n\nTitle\n-----\n\n--\nsig\n", {}),
    "removed lines of dashes": (
        {"src/demo/core.py": "--\n-- a\n", "src/demo/loss.py": "x\n"},
        "dashes come\n",
        {},
    ),
    "sub-second-free odd time zone": (
        {"src/demo/core.py": "x\n"},
        "x\n",
        author(date="1999-12-31T23:59:59-1130"),
    ),
    "empty commit": ({}, "nothing but words\n\nbody\n", {}),
    "hash at a line start": ({"src/demo/core.py": "x\n"}, "#5: subject\n\n# not a comment\n", {}),
}


@pytest.mark.parametrize("part", range(3))
def test_round_trip(applied: World, part: int) -> None:
    """Users' commits become patches that plain git would write as well, and that make the same commits again."""
    tree, names = applied.tree(), list(TRIPS)[part::3]
    for name in names:
        files, message, env = TRIPS[name]
        commit(tree, files, message, env or None)
    form = "%T%x00%an%x00%ae%x00%aI%x00%B%x01"
    contents = git(tree, "log", f"-{len(names)}", "--reverse", f"--format={form}")
    plain = export(tree, f"HEAD~{len(names)}", "HEAD")
    before = applied.patch_files()
    result = applied.refresh()
    again = git(tree, "log", f"-{len(names)}", "--reverse", f"--format={form}")
    assert re.sub("\n+\x01", "\x01", again) == re.sub("\n+\x01", "\x01", contents)
    assert git(tree, "status", "--porcelain") == ""
    assert [row["change"] for row in result.json["rows"]] == ["new"] * len(names)
    written = {name: data for name, data in applied.patch_files().items() if name not in before}
    assert [data for _, data in sorted(written.items())] == [plain[name] for name in sorted(plain)]
    assert "nothing to do" in applied.apply().json["notes"][0]
    assert applied.refresh().json["rows"] == []


def test_a_patch_that_removes_lines_of_dashes_is_read_right(bare: World, upstream: SimpleNamespace) -> None:
    """A removed line '--' reads '---' in the diff, as the end of a message does."""
    steps: list[tuple[Files, str]] = [
        ({"src/demo/core.py": "--\n-- a\nrest\n", "src/demo/loss.py": "--\n"}, "dashes come\n"),
        ({"src/demo/core.py": "rest\n", "src/demo/loss.py": "++\n"}, "dashes go\n"),
        ({"src/demo/core.py": "rest\n", "src/demo/loss.py": "more\n"}, "pluses go\n"),
    ]
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(upstream.repo, upstream.first, steps))
    assert [entry["word"] for entry in bare.apply().row(series="alpha")["files"]] == ["unmodified"] * 3
    assert bare.refresh().json["rows"] == []


# ---- hostile configuration -----------------------------------------------------------------------

HOSTILE = {
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.renames": "copies",
    "diff.algorithm": "patience",
    "diff.context": "9",
    "diff.interHunkContext": "20",
    "diff.indentHeuristic": "false",
    "diff.orderFile": "order",
    "diff.suppressBlankEmpty": "true",
    "diff.external": "false",
    "diff.relative": "true",
    "diff.submodule": "log",
    "diff.wsErrorHighlight": "all",
    "diff.ignoreSubmodules": "all",
    "diff.demo.textconv": "tr a-z A-Z <",
    "diff.python.xfuncname": "^never$",
    "core.abbrev": "4",
    "core.autocrlf": "true",
    "core.eol": "crlf",
    "core.quotePath": "false",
    "core.bigFileThreshold": "1",
    "core.whitespace": "fix,trailing-space",
    "core.commentChar": ";",
    "core.hooksPath": "hooks",
    "core.pager": "false",
    "commit.gpgSign": "true",
    "commit.cleanup": "strip",
    "commit.template": "template",
    "gpg.program": "false",
    "format.signature": "hostile signature",
    "format.pretty": "oneline",
    "format.attach": "hostile",
    "format.headers": "X-Hostile: 1",
    "format.numbered": "true",
    "format.coverLetter": "true",
    "format.subjectPrefix": "HOSTILE",
    "format.signOff": "true",
    "format.thread": "deep",
    "format.useAutoBase": "true",
    "format.notes": "true",
    "format.from": "true",
    "format.forceInBodyFrom": "true",
    "format.encodeEmailHeaders": "false",
    "format.filenameMaxLength": "12",
    "format.suffix": ".txt",
    "format.to": "hostile@example.org",
    "format.cc": "hostile@example.org",
    "format.outputDirectory": "elsewhere",
    "format.mboxrd": "true",
    "color.ui": "always",
    "color.diff": "always",
    "log.date": "relative",
    "log.decorate": "full",
    "log.follow": "true",
    "log.showSignature": "true",
    "log.mailmap": "true",
    "mailmap.file": "mailmap",
    "i18n.commitEncoding": "latin1",
    "i18n.logOutputEncoding": "latin1",
    "am.threeWay": "true",
    "am.keepcr": "false",
    "am.messageid": "true",
    "mailinfo.scissors": "true",
    "apply.whitespace": "fix",
    "apply.ignoreWhitespace": "change",
    "user.useConfigOnly": "true",
    "status.showUntrackedFiles": "no",
    "status.relativePaths": "true",
    "status.renames": "copies",
    "merge.renames": "false",
    "gc.auto": "1",
    "fetch.prune": "true",
    "transfer.fsckObjects": "true",
    "rebase.autoStash": "true",
    "submodule.recurse": "true",
    "notes.displayRef": "refs/notes/*",
}
VARIABLES = {
    "GIT_DIFF_OPTS": "--unified=7",
    "GIT_EXTERNAL_DIFF": "false",
    "GIT_DIR": "/nowhere",
    "GIT_WORK_TREE": "/nowhere",
    "GIT_INDEX_FILE": "/nowhere/index",
    "GIT_OBJECT_DIRECTORY": "/nowhere/objects",
    "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Hostile",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "diff.noprefix",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "diff.context",
    "GIT_CONFIG_VALUE_1": "12",
    "GIT_CONFIG_PARAMETERS": "'diff.algorithm'='histogram'",
    "GIT_PAGER": "false",
    "GIT_PAGER_IN_USE": "true",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_DEFAULT_HASH": "sha256",
    "GIT_NAMESPACE": "hostile",
    "GIT_CEILING_DIRECTORIES": "/",
    "GIT_TEMPLATE_DIR": "/nowhere",
}


def _into_user(world: World) -> None:
    home = world.root.parent / "hostile-home"
    home.mkdir()
    (home / "attributes").write_text("*.py diff=demo text eol=crlf ident\n*.txt binary\n")
    for key, value in (HOSTILE | {"core.attributesFile": str(home / "attributes")}).items():
        git(world.root, "config", "--file", str(home / ".gitconfig"), key, value)
    world.environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}


def _into_tree(world: World) -> None:
    for kind in ("base", "patched"):
        if world.tree(kind).exists():
            config = world.tree(kind) / ".git/config"
            for key, value in HOSTILE.items():
                git(world.root, "config", "--file", str(config), key, value)


def _into_variables(world: World) -> None:
    world.environment = dict(VARIABLES)


@pytest.mark.parametrize("place", [_into_user, _into_tree, _into_variables])
def test_hostile_configuration_changes_no_byte(applied: World, place: Callable[[World], None]) -> None:
    before, ids = applied.patch_files(), applied.commits()
    tree = applied.tree()
    place(applied)
    applied.refresh()
    assert applied.patch_files() == before and applied.commits() == ids
    # a user's own amend, made under a clean configuration: what is asked is what the tool makes of it
    config = (tree / ".git/config").read_bytes()
    (tree / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    text = str(BASE_FILES["src/demo/loss.py"])
    applied.amend({"src/demo/loss.py": replaced(text, 5, "loss V\r\n", "loss"), "src/demo/grüß e.txt": "ö \n\n"})
    (plain,) = export(tree, "HEAD~1", "HEAD").values()
    (tree / ".git/config").write_bytes(config)
    applied.refresh()
    assert changed_files(applied, before) == {"demo/beta/1.0/0001-loss-say-five.patch"}
    assert applied.patch_files()["demo/beta/1.0/0001-loss-say-five.patch"] == plain
    assert "nothing to do" in applied.apply().json["notes"][0]


@pytest.mark.parametrize("place", [_into_user, _into_variables])
def test_hostile_configuration_makes_the_same_trees(
    world: World, applied: World, place: Callable[[World], None]
) -> None:
    place(world)
    world.environment.pop("GIT_DIR", None)
    world.apply()
    assert world.commits() == applied.commits()
    assert (world.tree() / "src/demo/win.txt").read_bytes() == b"one\r\ntwo\r\nthree\r\n"
    world.run("status")
    assert git(world.root, "-c", "core.autocrlf=false", "submodule", "status").startswith(f" {world.bases[0].commit}")


def test_a_commit_made_while_refresh_runs_stays(applied: World, monkeypatch: pytest.MonkeyPatch) -> None:
    applied.amend({"src/demo/loss.py": "mine\n"})
    inner, late = refreshing._round_trip, []

    def meanwhile(*args: Any) -> Any:
        result = inner(*args)
        late.append(commit(applied.tree(), {"late.txt": "late\n"}, "late"))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(refreshing, "_round_trip", meanwhile)
        applied.refresh(code=2)
    assert applied.commits()[-1] == late[0]
    applied.refresh("--series", "beta")
    assert (applied.root / "patches/demo/beta/1.0/0002-late.patch").exists()
