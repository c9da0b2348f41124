"""``lint``: what must hold between pins and patches, found without building anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from synthetic import BASE_FILES, Files, Link, Script, World, make_patches, write

FILE = "patches/demo/alpha/1.0/0001-core-say-ten.patch"


def problems(world: World, where: str) -> str:
    result = world.run("lint", "--json")
    assert result.code == 1, result.text
    rows = [row for row in result.json["rows"] if row["where"].startswith(where) and row["result"] == "wrong"]
    assert rows, result.text
    assert result.json["exit"] == 1
    return "; ".join(str(row["detail"]) for row in rows)


def edit(world: World, change: Callable[[bytes], bytes], file: str = FILE) -> None:
    path = world.root / file
    before = path.read_bytes()
    assert change(before) != before
    path.write_bytes(change(before))


def replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


def test_a_sound_checkout_passes_and_nothing_is_built(world: World) -> None:
    result = world.run("lint", "--json")
    assert result.code == 0 and {row["result"] for row in result.json["rows"]} == {"ok"}
    assert not (world.root / "build").exists()


def test_a_gitlink_that_is_not_the_pin_is_found(world: World) -> None:
    world.record_gitlink(world.bases[1].commit)
    assert f"the gitlink is {world.bases[1].commit}" in problems(world, "upstream/demo")
    write(world.root, {".gitmodules": "[submodule]\n"})
    assert ".gitmodules has another address" in problems(world, "upstream/demo")


def test_a_missing_gitlink_is_found(world: World) -> None:
    shutil.rmtree(world.root / ".git")
    assert "no gitlink is recorded" in problems(world, "upstream/demo")


def test_attributes_that_let_a_clone_change_line_ends_are_found(world: World) -> None:
    (world.root / ".gitattributes").unlink()
    assert "'* -text'" in problems(world, ".gitattributes")


def test_the_checkout_is_asked_and_not_what_git_dir_names(world: World) -> None:
    """As inside a git hook."""
    assert world.run("lint", env={"GIT_DIR": "/nonexistent"}).code == 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(replace(b"b/src/demo/core.py", b"b/../core.py"), "touches ../core.py", id="dot-dot"),
        pytest.param(replace(b"b/src/demo/core.py", b"b/.git/config"), "touches .git/config", id="git folder"),
        pytest.param(replace(b"100644\n", b"160000\n"), "a submodule: src/demo/core.py", id="submodule"),
        pytest.param(replace(b"The number is", b"nosync: the number is"), "a word of this monorepo", id="own words"),
        pytest.param(
            replace(b"The number is", b"see build/patched/x, it is"), "a word of this monorepo", id="own path"
        ),
        pytest.param(replace(b"+line ten\n", b"+line ten  \n"), "trailing whitespace", id="trailing whitespace"),
        pytest.param(
            replace(b"The number", b"x\n---\nThe number"), "looks like the start of a diff", id="three dashes"
        ),
        pytest.param(replace(b"The number", b"Index: x\nThe number"), "looks like the start of a diff", id="Index"),
        pytest.param(replace(b"The number", b"diff --git a/x b/x\nThe"), "no full blob ids", id="diff in the message"),
        pytest.param(replace(b"The number is", b"x" * 90), "a line of the message has", id="long line"),
        pytest.param(replace(b"core: say ten", b"core: " + b"x" * 70), "the subject has 76", id="long subject"),
        pytest.param(replace(b"From 0000", b"From 1234"), "not written by refresh", id="commit id"),
        pytest.param(lambda data: data.partition(b"diff --git")[0], "no diff", id="no diff"),
        pytest.param(
            lambda data: data.replace(data[data.index(b"index ") + 6 :][:40], b"abc1234"),
            "no full blob ids",
            id="short ids",
        ),
    ],
)
def test_lint_finds(world: World, change: Callable[[bytes], bytes], found: str) -> None:
    edit(world, change)
    assert found in problems(world, FILE)


def test_a_heading_underlined_with_dashes_is_fine(world: World) -> None:
    edit(world, replace(b"The number", b"Heading\n-------\n--option\nThe number"))
    assert world.run("lint").code == 0


@pytest.mark.parametrize("subject", [b"=?bogus?q?x?=", b"=?utf-8?b?x?="])
def test_a_subject_that_cannot_be_decoded_is_taken_as_it_stands(world: World, subject: bytes) -> None:
    edit(world, replace(b"core: say ten", subject))
    assert world.run("lint").code == 0


def test_a_patch_turned_to_crlf_is_named_as_that(world: World) -> None:
    edit(world, replace(b"\n", b"\r\n"))
    assert problems(world, FILE) == "CRLF line ends; git's own lines have none"
    error = world.apply(code=2).json["error"]
    assert "has CRLF line ends" in error["seen"] and "git checkout" in error["way_out"]


def test_a_folder_of_no_project_is_found(world: World) -> None:
    write(world.root, {"patches/dmo/alpha/series.toml": "title = 'lost'\n"})
    assert "no project dmo; one of: demo" in problems(world, "patches/dmo")


def test_a_binary_and_real_submodules_are_found(bare: World, upstream: SimpleNamespace) -> None:
    steps: list[tuple[Files, str]] = [({"src/demo/blob.bin": bytes(range(256))}, "add a blob\n")]
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(upstream.repo, upstream.first, steps))
    assert "binary: src/demo/blob.bin" in problems(bare, "patches/demo/alpha/1.0")


def test_modes_links_and_deletions_are_fine(bare: World, upstream: SimpleNamespace) -> None:
    steps: list[tuple[Files, str]] = [
        ({"src/demo/core.py": Script(str(BASE_FILES["src/demo/core.py"]).encode())}, "mode\n"),
        ({"src/demo/new link.py": Link("core.py"), "src/demo/old.py": None}, "link and delete\n"),
        (
            {"src/demo/empty.py": ""},
            "an empty file: größer, with a subject of 72 letters though not of bytes\n",
        ),
    ]
    bare.add_series("alpha")
    bare.add_patches("alpha", "1.0", make_patches(upstream.repo, upstream.first, steps))
    result = bare.run("lint", "--json")
    assert result.code == 0, result.out


def test_wrong_numbers_are_found(world: World) -> None:
    (world.root / FILE).rename((world.root / FILE).with_name("0005-core-say-ten.patch"))
    assert "expected number 0003" in problems(world, "patches/demo/alpha/1.0")


def test_a_missing_sign_off_is_found_where_upstream_wants_one(world: World) -> None:
    world.add_series("alpha", 10, sign_off=True)
    assert "no Signed-off-by" in problems(world, FILE)
    signed = replace(b"The number is a word now.\n", b"The number.\n\nSigned-off-by: A <a@example.org>\n")
    edit(world, signed)
    rows = {row["where"]: row["result"] for row in world.run("lint", "--json").json["rows"]}
    assert rows[FILE] == "ok"


def test_a_folder_for_no_base_a_missing_cover_and_a_merge_without_its_commit_are_found(world: World) -> None:
    (world.root / "patches/demo/alpha/7.7").mkdir()
    world.add_series("beta", 20, status="merged")
    (world.root / "patches/demo/beta/cover.md").unlink()
    text = problems(world, "patches/demo")
    assert "7.7 is no base of demo" in text and "no cover.md" in text and "merged_as is empty" in text


@pytest.mark.parametrize(
    ("toml", "seen"),
    [
        ("status = 'open'\norder = 1\n", "title"),
        ("title = 'x'\nstatus = 'lost'\norder = 1\n", "status 'lost'"),
        ("title = \n", "not valid TOML"),
        ("title = 'x'\nstatus = 'open'\norder = [1]\n", "order = [1] is not a whole number"),
        ("title = 'x'\nstatus = 'open'\norder = inf\n", "order = inf"),
        ("title = 'x'\nstatus = 'open'\norder = true\n", "order = True"),
        ("title = 'x'\nstatus = 'open'\norder = 1\ndepends = 5\n", "depends = 5 is not a list"),
        ("title = 'x'\nstatus = 'open'\norder = 1\ndepends = [5]\n", "depends = [5]"),
        ("title = 'x'\nstatus = 'open'\norder = 1\ndepends = 'beta'\n", "depends = 'beta'"),
        ("title = 'x'\nstatus = 'open'\norder = 1\nmerged_as = 5\n", "merged_as = 5 is not a string"),
        ("title = 'x'\nstatus = 'open'\norder = 1\npull_request = 5\n", "pull_request = 5"),
    ],
)
def test_a_wrong_series_toml_exits_2_for_every_verb(applied: World, toml: str, seen: str) -> None:
    write(applied.root, {"patches/demo/alpha/series.toml": toml})
    for verb in (("lint",), ("apply",), ("status",), ("refresh", "demo")):
        result = applied.run(*verb, "--json")
        assert result.code == 2 and seen in result.json["error"]["seen"], verb


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        pytest.param(lambda text: text + b"# \xff\n", "not valid TOML", id="not UTF-8"),
        pytest.param(lambda text: text + b"[\n", "not valid TOML", id="not TOML"),
        pytest.param(lambda text: text + b"[demo.own_tests]\nminutes = 'x'\n", "minutes = 'x'", id="minutes"),
        pytest.param(lambda text: text.replace(b'id = "1.1"', b"id = 5"), "id = 5 is not a string", id="base's id"),
        pytest.param(lambda text: text.replace(b'licence = "MIT"\n', b""), "'licence' is missing", id="missing"),
        pytest.param(lambda text: text + b"[other]\nurl = 5\n", "[other]: url = 5", id="url"),
        pytest.param(lambda text: b"demo = 5\n", "demo = 5 is not a table", id="no table"),
        pytest.param(lambda text: text.split(b"[[")[0], "'bases' is missing", id="no bases"),
        pytest.param(lambda text: text + b'[[demo.bases]]\nid = "9"\ncommit = 5\n', "commit = 5", id="commit"),
        pytest.param(
            lambda text: text + b'[[demo.bases]]\nid = "9"\narchive = {package="x"}\n', "'version'", id="archive"
        ),
    ],
)
def test_a_wrong_projects_toml_exits_2_with_the_command_that_shows_the_slip(
    world: World, change: Callable[[bytes], bytes], seen: str
) -> None:
    edit(world, change, "upstream/projects.toml")
    error = world.run("status", "--json").json["error"]
    assert seen in error["seen"] and error["way_out"] == "git diff upstream/projects.toml"
