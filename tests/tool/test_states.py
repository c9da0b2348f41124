"""The apply vocabulary: what becomes of a patch, and that nothing is hidden or left half-way."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import CORE
from synthetic import BASE_FILES, LINES, BaseEntry, Files, World, commit, git, make_patches, new_repo, replaced, write

STEP = [({"src/demo/core.py": CORE}, "core: say ten\n")]


def with_upstream(world: World, tmp_path: Path, files: Files, name: str = "moved") -> str:
    """Let the pinned base be an upstream that changed by ``files``; returns the commit of that."""
    repo = new_repo(tmp_path / name)
    commit(repo, BASE_FILES)
    changed = commit(repo, files)
    world.bases = [BaseEntry("1.0", changed, "", True)]
    world.url = f"file://{repo}"
    world.save()
    if (world.root / "upstream/demo/.git").exists():
        git(world.root / "upstream/demo", "remote", "set-url", "origin", world.url)
    return changed


def words(world: World, code: int, series: str = "alpha") -> list[str]:
    return [entry["word"] for entry in world.apply(code=code).row(series=series)["files"]]


def test_a_pre_image_that_differs_is_drift_and_not_hidden(world: World, tmp_path: Path) -> None:
    with_upstream(world, tmp_path, {"src/demo/core.py": replaced(LINES, 40, "line forty\n")})
    result = world.apply(code=1)
    row = result.row(series="alpha")
    assert row["state"] == "drifted" and "other blobs than the patch names: src/demo/core.py" in row["detail"]
    assert len(world.log()) == 4
    assert "line forty\n" in (world.tree() / "src/demo/core.py").read_text()
    assert world.apply(code=1).row(series="alpha")["made"] == []


def test_lines_that_moved_are_drift_too(world: World, tmp_path: Path) -> None:
    """git apply takes an offset without a word."""
    with_upstream(world, tmp_path, {"src/demo/core.py": "# a new line\n" + LINES})
    assert words(world, 1) == ["drifted", "drifted", "unmodified"]


def test_a_file_that_upstream_deleted_is_target_gone_and_the_tree_stays_as_it_was(
    applied: World, tmp_path: Path
) -> None:
    before = applied.commits()
    with_upstream(applied, tmp_path, {"src/demo/loss.py": None})
    result = applied.apply(code=1)
    row = result.row(series="beta")
    assert row["state"] == "target-gone" and "not in this base: src/demo/loss.py" in row["detail"]
    assert result.row(series="alpha")["state"] == "applied"
    assert applied.commits() == before


def test_a_change_that_upstream_has_is_already_upstream_and_never_counted_as_applied(
    world: World, tmp_path: Path
) -> None:
    with_upstream(world, tmp_path, {"src/demo/core.py": CORE})
    result = world.apply(code=1)
    row = result.row(series="alpha")
    assert row["state"] == "already-upstream"
    assert (row["files"][0]["word"], row["files"][0]["commit"]) == ("already-upstream", "")
    assert "core: say ten" not in world.log()


def test_a_deletion_that_upstream_made_is_already_upstream_and_not_target_gone(
    bare: World, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    bare.add_series("alpha")
    steps: list[tuple[Files, str]] = [({"src/demo/old.py": None}, "remove old\n")]
    bare.add_patches("alpha", "1.0", make_patches(upstream.repo, upstream.first, steps))
    with_upstream(bare, tmp_path, {"src/demo/old.py": None})
    assert words(bare, 1) == ["already-upstream"]


def test_the_same_change_a_second_time_is_not_taken_for_the_first(bare: World, upstream: SimpleNamespace) -> None:
    """Where every blob fits the patch is new, however much its reverse would fit as well."""
    repeated = "a\nb\nc\n" * 6
    steps: list[tuple[Files, str]] = [
        ({"src/demo/rep.py": repeated}, "add it\n"),
        ({"src/demo/rep.py": "a\nb\nc\n" + repeated}, "once more\n"),
        ({"src/demo/rep.py": "a\nb\nc\na\nb\nc\n" + repeated}, "and once more\n"),
    ]
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(upstream.repo, upstream.first, steps))
    assert words(bare, 0) == ["unmodified"] * 3


def test_a_conflict_exits_1_names_the_file_and_leaves_the_former_tree(applied: World) -> None:
    before, files = applied.commits(), (applied.tree() / "src/demo/loss.py").read_bytes()
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    file.write_bytes(file.read_bytes().replace(b"-loss 5\n", b"-loss 55\n"))
    result = applied.apply(code=1)
    row = result.row(series="beta")
    assert row["state"] == "conflict" and "in src/demo/loss.py" in row["detail"]
    assert row["made"] == []
    assert applied.commits() == before and (applied.tree() / "src/demo/loss.py").read_bytes() == files
    assert applied.leftovers() == []
    assert (
        applied.run("status", "demo", "--json")
        .row(base="1.0", series="beta")["state"]
        .endswith("patches changed since")
    )


def test_a_conflict_on_the_first_apply_leaves_no_patched_tree(world: World) -> None:
    file = world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch"
    file.write_bytes(file.read_bytes().replace(b"-line 10\n", b"-line 99\n"))
    result = world.apply(code=1)
    assert result.row(series="alpha")["state"] == "conflict"
    assert result.row(series="beta")["state"] == "not applied"
    assert not world.tree().exists() and world.tree("base").exists()


def test_a_patch_that_is_no_patch_is_a_conflict_and_no_crash(world: World) -> None:
    (world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch").write_bytes(b"\x00 not a mail\n")
    result = world.run("apply", "demo", "--json")
    assert result.code == 1 and result.row(series="alpha")["state"] == "conflict"
    (world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch").write_bytes(b"")
    assert world.run("apply", "demo", "--json").code == 1


@pytest.mark.parametrize("path", ["../out.py", "src/../../out.py", ".git/hooks/pre-commit", "src/.GIT/config"])
def test_a_patch_that_reaches_out_of_the_tree_is_refused(world: World, path: str) -> None:
    file = world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch"
    file.write_bytes(file.read_bytes().replace(b"src/demo/core.py", path.encode()))
    error = world.apply(code=2).json["error"]
    assert f"touches {path}" in error["seen"]
    assert not world.tree().exists()


def test_a_patch_that_adds_a_submodule_is_refused(world: World) -> None:
    file = world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch"
    head = file.read_bytes().partition(b"diff --git")[0]
    file.write_bytes(
        head
        + b"diff --git a/vendored b/vendored\nnew file mode 160000\nindex "
        + b"0" * 40 + b".." + b"1" * 40
        + b"\n--- /dev/null\n+++ b/vendored\n@@ -0,0 +1 @@\n+Subproject commit " + b"1" * 40 + b"\n"
    )  # fmt: skip
    assert "a submodule: vendored" in world.apply(code=2).json["error"]["seen"]


# ---- a base without patches of its own -----------------------------------------------------------


def test_a_base_without_its_own_folder_gets_the_earlier_bases_patches_by_a_three_way_merge(
    world: World,
) -> None:
    result = world.apply("--base", "1.1")
    row = result.row(series="alpha")
    assert row["detail"].startswith("patches of 1.0, merged three-way")
    assert row["ok"]
    text = (world.tree("patched", "1.1") / "src/demo/core.py").read_text()
    assert "line ten\n" in text and "line thirty\n" in text and "line twenty\n" in text
    assert "loss five\n" in (world.tree("patched", "1.1") / "src/demo/loss.py").read_text()
    assert len(world.log("1.1")) == 4
    status = world.run("status", "demo", "--json").row(base="1.1", series="alpha")["state"]
    assert "patches of 1.0, three-way" in status


def test_a_second_patch_on_the_same_file_merges_too(world: World, upstream: SimpleNamespace) -> None:
    """It names blobs that only the patch below it makes; the merge needs the earlier base with its patches."""
    assert [entry["word"] for entry in world.apply("--base", "1.1").row(series="alpha")["files"]] == [
        "drifted", "drifted", "unmodified",
    ]  # fmt: skip
    assert not world.tree("patched", "1.0").exists()  # only looked at in the scratch folder
    assert world.leftovers() == []


def test_nothing_left_to_merge_is_already_upstream(bare: World, upstream: SimpleNamespace, tmp_path: Path) -> None:
    """``git am --3way`` exits 0 and makes no commit there."""
    repo = new_repo(tmp_path / "merged")
    first = commit(repo, BASE_FILES)
    # the change, and one next to it, so that neither the patch nor its reverse applies
    second = commit(repo, {"src/demo/core.py": replaced(CORE, 12, "line twelve\n")})
    bare.bases = [BaseEntry("1.0", first, "", True), BaseEntry("1.1", second, "")]
    bare.url = f"file://{repo}"
    bare.save()
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(repo, first, STEP))
    row = bare.apply("--base", "1.1").row(series="alpha")
    assert row["state"] == "already-upstream" and row["files"][0]["commit"] == ""
    assert bare.log("1.1") == []


def test_an_inherited_conflict_names_the_file(bare: World, tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "apart")
    first = commit(repo, BASE_FILES)
    second = commit(repo, {"src/demo/core.py": replaced(LINES, 10, "line 10, upstream's way\n")})
    bare.bases = [BaseEntry("1.0", first, "", True), BaseEntry("1.1", second, "")]
    bare.url = f"file://{repo}"
    bare.save()
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(repo, first, STEP))
    row = bare.apply("--base", "1.1", code=1).row(series="alpha")
    assert row["state"] == "conflict" and "in src/demo/core.py" in row["detail"]
    assert not bare.tree("patched", "1.1").exists()


def test_a_merge_without_the_blobs_says_so_and_is_no_conflict(world: World) -> None:
    """A patch that names blobs of no known base."""
    for file in (world.root / "patches/demo/alpha/1.0").glob("0001-*"):
        file.write_bytes(
            re.sub(rb"^index (?!0{40})[0-9a-f]{40}", b"index " + b"a" * 40, file.read_bytes(), flags=re.MULTILINE)
        )
        file.write_bytes(file.read_bytes().replace(b"\n line 9\n", b"\n line nine\n"))
    error = world.apply("--base", "1.1", code=2).json["error"]
    assert "lacks the base that the patch was written for" in error["seen"]
    assert "make apply P=demo BASE=1.0" in error["way_out"]


def test_an_own_folder_takes_the_place_of_the_inherited_patches(world: World, upstream: SimpleNamespace) -> None:
    """One series on two bases: mending one must not break the other."""
    steps = [({"src/demo/core.py": replaced(LINES, 35, "line 35, for 1.1\n")}, "core: for 1.1\n")]
    world.add_patches("alpha", "1.1", make_patches(upstream.repo, upstream.second, steps))
    world.apply("--base", "1.1")
    assert "core: for 1.1" in world.log("1.1")
    world.apply()
    assert "core: for 1.1" not in world.log("1.0")


def test_the_newest_earlier_base_with_a_folder_wins(world: World, upstream: SimpleNamespace) -> None:
    world.bases.append(BaseEntry("1.2", upstream.second, ""))
    world.save()
    shutil.copytree(world.root / "patches/demo/beta/1.0", world.root / "patches/demo/beta/1.1")
    status = {(row["base"], row["series"]): row["state"] for row in world.run("status", "demo", "--json").json["rows"]}
    assert status == {
        ("1.0", "alpha"): "not applied", ("1.0", "beta"): "not applied",
        ("1.1", "alpha"): "not applied", ("1.1", "beta"): "not applied",
        ("1.2", "alpha"): "not applied", ("1.2", "beta"): "not applied",
    }  # fmt: skip
    result = world.apply("--base", "1.2")
    assert result.row(series="beta")["detail"].startswith("patches of 1.1")
    assert result.row(series="alpha")["detail"].startswith("patches of 1.0")


def test_status_follows_the_patches_the_pin_and_local_work(applied: World) -> None:
    def state(series: str = "beta", base: str = "1.0") -> str:
        return str(applied.run("status", "demo", "--json").row(series=series, base=base)["state"])

    assert state() == "applied" and state(base="1.1") == "not applied"
    applied.amend({"src/demo/loss.py": "mine\n"})
    assert state() == "applied, local work"
    git(applied.tree(), "reset", "-q", "--hard", "refs/nosync/applied")
    (file,) = (applied.root / "patches/demo/beta/1.0").iterdir()
    file.write_bytes(file.read_bytes() + b"\n")
    assert state() == "applied, patches changed since"
    file.write_bytes(file.read_bytes()[:-1])
    applied.bases[0].commit = applied.bases[1].commit
    applied.save()
    assert state() == "applied, pin changed since"
    shutil.rmtree(applied.root / "patches/demo/beta/1.0")
    assert state() == "no patches"


def test_state_comes_from_git_and_not_from_a_file_beside_it(applied: World) -> None:
    """A tree that git says was moved is not 'applied', whatever was recorded."""
    git(applied.tree(), "update-ref", "refs/heads/main", "HEAD~1")
    assert "local work" in applied.run("status", "demo", "--json").row(series="beta", base="1.0")["state"]
    assert applied.apply(code=2).json["exit"] == 2


def test_a_record_that_cannot_be_read_means_a_rebuild(applied: World) -> None:
    before = applied.commits()
    blob = git(applied.tree(), "hash-object", "-w", "--stdin", data=b"{}").strip()
    git(applied.tree(), "update-ref", "refs/nosync/record", blob)
    assert applied.apply().row(series="beta")["made"] == ["patched"]
    assert applied.commits() == before


@pytest.mark.parametrize("text", ["[]", "5", '{"summary": []}', "{", '{"summary": {"own": 1}}'])
def test_results_that_cannot_be_read_are_none(applied: World, text: str) -> None:
    write(applied.root, {"build/results/tests/demo@1.0.json": text})
    assert applied.run("status", "demo", "--json").row(base="1.0", series="beta")["own_tests"] == "-"
