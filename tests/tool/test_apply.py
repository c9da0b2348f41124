"""``apply``: both trees, from patches to commits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic import World, git, make_patches_quickly, recorded_git

from nosync.errors import NosyncError
from nosync.git import Repo, user_git

NETWORK = {"ls-remote", "clone", "fetch"}


def test_both_trees_stand_side_by_side_with_one_commit_per_patch(world: World) -> None:
    result = world.apply()
    assert world.log() == [
        "core: say ten",
        "core: say twenty, and test it",
        "tests: one more",
        "loss: say five",
    ]
    assert "line 10\n" in (world.tree("base") / "src/demo/core.py").read_text()
    assert "line ten\n" in (world.tree() / "src/demo/core.py").read_text()
    assert (world.tree() / "tests/test_more.py").exists()
    assert not (world.tree() / "docs").exists()
    row = result.row(series="alpha")
    assert (row["source"], row["patches"], row["state"], row["made"]) == (
        "git",
        "3/3",
        "applied",
        ["base", "patched"],
    )
    assert {entry["word"] for entry in row["files"]} == {"unmodified"}
    assert git(world.tree(), "status", "--porcelain") == ""
    assert world.leftovers() == []


def test_author_and_dates_come_from_the_patch(world: World) -> None:
    world.apply()
    assert set(world.log(form="%an|%ae|%aI|%cI")) == {
        "Ada Łovelace|ada@example.org|2024-03-01T12:34:56+05:30|2024-03-01T12:34:56+05:30"
    }


def test_a_second_apply_does_nothing_and_says_so_and_asks_no_network(world: World) -> None:
    world.apply()
    before = world.commits()
    with recorded_git() as calls:
        second = world.apply()
    assert second.row(series="alpha")["made"] == []
    assert "nothing to do" in second.json["notes"][0]
    assert not [call for call in calls if call[0] in NETWORK]
    assert len(calls) < 20
    assert world.commits() == before


def test_two_checkouts_with_other_identities_get_the_same_commit_ids(
    world: World, applied: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = applied.copy(tmp_path_factory.mktemp("elsewhere") / "another name")
    git(other.root, "config", "user.name", "Somebody Else")
    for folder in ("base", "patched"):
        shutil.rmtree(other.root / "build" / folder)
    other.environment = {
        "GIT_AUTHOR_NAME": "X",
        "GIT_COMMITTER_EMAIL": "x@example.net",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "TZ": "Asia/Tokyo",
        "LANG": "de_DE",
    }
    other.apply()
    assert other.commits() == applied.commits()
    assert git(other.tree("base"), "rev-parse", "HEAD") == git(applied.tree("base"), "rev-parse", "HEAD")


def test_no_git_identity_is_needed(world: World) -> None:
    world.environment = {"EMAIL": "", "GIT_AUTHOR_NAME": "", "GIT_COMMITTER_NAME": ""}
    world.apply()
    world.amend({"src/demo/loss.py": "other\n"})
    assert world.refresh().code == 0


def test_what_upstream_sets_in_gitattributes_changes_no_byte(applied: World) -> None:
    for kind in ("base", "patched"):
        tree = applied.tree(kind)
        assert (tree / "src/demo/win.txt").read_bytes() == b"one\r\ntwo\r\nthree\r\n"
        assert (tree / "src/demo/noeol.txt").read_bytes() == b"first\nlast"
        assert (tree / "src/demo/run.sh").read_bytes() == b"#!/bin/sh\necho $Id$\n"
        assert os.access(tree / "src/demo/run.sh", os.X_OK)
        assert (tree / "src/demo/link.py").readlink() == Path("core.py")
        assert (tree / "src/demo/grüß e.txt").read_text() == "naïve\n"


def test_a_changed_patch_rebuilds_the_patched_tree_alone(applied: World, upstream: SimpleNamespace) -> None:
    file = applied.root / "patches/demo/beta/1.0" / next(iter(upstream.beta))
    file.write_bytes(file.read_bytes().replace(b"+loss five", b"+loss 5!!!"))
    result = applied.apply(code=1)  # the blob that it names is not the one it makes: drift, and said so
    assert result.row(series="beta")["made"] == ["patched"]
    assert result.row(series="beta")["state"] == "drifted"
    assert "loss 5!!!\n" in (applied.tree() / "src/demo/loss.py").read_text()


def test_a_series_can_have_no_patches(applied: World) -> None:
    shutil.rmtree(applied.root / "patches/demo/beta/1.0")
    (applied.root / "patches/demo/beta/1.0").mkdir()
    result = applied.apply()
    assert applied.log()[-1] == "tests: one more"
    assert result.row(series="beta")["state"] == "applied"
    assert result.row(series="beta")["patches"] == "0/0"


def test_a_series_whose_base_folder_is_gone_has_no_patches(applied: World) -> None:
    shutil.rmtree(applied.root / "patches/demo/beta/1.0")
    assert applied.apply().row(series="beta")["state"] == "no patches"
    assert len(applied.log()) == 3


def test_a_project_without_series_gets_both_trees(bare: World) -> None:
    row = bare.apply().json["rows"][0]
    assert row["state"] == "no series"
    assert bare.log() == []
    shutil.rmtree(bare.root / "patches")
    assert bare.apply().json["rows"][0]["made"] == []


def test_a_series_on_top_of_a_missing_one_is_refused(applied: World) -> None:
    applied.add_series("gamma", 5, depends=["alpha"])
    result = applied.apply(code=2)
    assert "depends on alpha, which does not lie below it" in result.json["error"]["seen"]


def test_a_submodule_that_is_not_initialised_never_lets_git_act_on_the_superproject(world: World) -> None:
    folder = world.root / "upstream" / "demo"
    for run in (lambda: Repo(folder).git("status"), lambda: user_git(folder, "status")):
        with pytest.raises(NosyncError, match="not a git repository of its own"):
            run()
    before = git(world.root, "status", "--porcelain=v2", "--branch")
    world.cut_off()
    world.apply("--source", "git", code=2)
    assert git(world.root, "status", "--porcelain=v2", "--branch").splitlines()[:2] == before.splitlines()[:2]


def test_the_superproject_stays_clean_and_its_submodule_stands_at_the_pin(world: World) -> None:
    git(world.root, "add", ".")
    git(world.root, "commit", "-q", "-m", "all")
    world.apply("--base", "1.1")
    assert git(world.root, "status", "--porcelain") == ""
    assert git(world.root, "submodule", "status").startswith(f" {world.bases[0].commit}")
    assert (world.root / "upstream/demo/.git").is_file()
    assert not (world.root / "upstream/demo/docs").exists()


def test_a_tree_without_its_git_folder_is_no_reason_to_touch_the_superproject(applied: World) -> None:
    shutil.rmtree(applied.tree() / ".git")
    before = git(applied.root, "rev-parse", "--git-dir"), git(applied.root, "for-each-ref")
    result = applied.apply(code=2)
    assert "files, but no git repository any more" in result.json["error"]["seen"]
    applied.apply("--force", code=2)
    assert (applied.tree() / "src/demo/core.py").exists()
    assert (git(applied.root, "rev-parse", "--git-dir"), git(applied.root, "for-each-ref")) == before


def test_running_the_patched_code_leaves_nothing_in_the_way(applied: World) -> None:
    subprocess.run([sys.executable, "-c", "import demo.loss"], cwd=applied.tree() / "src", check=False)
    cache = applied.tree() / "src/demo/__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "core.cpython-312.pyc").write_bytes(b"x")
    assert "nothing to do" in applied.apply().json["notes"][0]


def test_sixty_patches_take_as_many_git_processes_as_four(bare: World, upstream: SimpleNamespace) -> None:
    files = {f"src/demo/many/{number:03d}.py": f"{number}\n" for number in range(60)}
    steps = [({name: body}, f"add {name}\n") for name, body in files.items()]
    bare.add_series("many")
    bare.add_patches("many", "1.0", make_patches_quickly(upstream.repo, upstream.first, steps))
    with recorded_git() as calls:
        bare.apply()
    assert len(bare.log()) == 60
    assert len(calls) < 40
    (mails,) = (call for call in calls if call[0] == "am")
    patches = sorted((bare.root / "patches/demo/many/1.0").iterdir())
    assert mails[-60:] == [str(file) for file in patches]  # as they are: no copies to write and to remove
    with recorded_git() as calls:
        bare.refresh()
    assert len(calls) < 45


@pytest.mark.parametrize(
    "argv", [["apply", "nobody"], ["refresh", "nobody"], ["clean", "nobody"], ["status", "nobody"]]
)
def test_an_unknown_project_is_named_and_exits_2(bare: World, argv: list[str]) -> None:
    result = bare.run(*argv, "--json")
    assert result.code == 2
    assert result.json["exit"] == 2
    assert "no project 'nobody'" in result.json["error"]["seen"]


def test_an_unknown_base_lists_the_known_ones(bare: World) -> None:
    error = bare.apply("--base", "9.9", code=2).json["error"]
    assert "it has 1.0, 1.1" in error["seen"]
    assert "BASE=pinned" in error["way_out"]


def test_the_table_for_people_says_the_same_as_json(applied: World) -> None:
    result = applied.run("apply", "demo")
    assert result.code == 0
    assert "alpha" in result.out and "applied" in result.out and "nothing to do" in result.out


def test_a_missing_projects_file_and_one_that_is_not_toml_exit_2(bare: World) -> None:
    file = bare.root / "upstream/projects.toml"
    file.write_text("[demo\n")
    assert "is not valid TOML" in bare.run("apply").err
    file.unlink()
    result = bare.run("apply")
    assert result.code == 2 and "is missing" in result.err and "way out:" in result.err


def test_it_runs_as_a_module_in_a_process_of_its_own(applied: World) -> None:
    env = os.environ | {"NOSYNC_ROOT": str(applied.root)}
    done = subprocess.run(
        [sys.executable, "-m", "nosync", "apply", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"exit": 0' in done.stdout
