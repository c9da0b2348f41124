"""Where the files come from: git first, the archive in one line, and never anything unverified."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import cached
from synthetic import (
    BASE_FILES,
    BaseEntry,
    Script,
    World,
    archive,
    commit,
    git,
    in_archive,
    make_patches,
    new_repo,
    recorded_git,
    sha256,
    write,
)

from nosync import git as nosync_git
from nosync.layout import Layout
from nosync.projects import Archive
from nosync.sources import archive as archives

PIP_SETTINGS = archives._pip_settings  # as it is before a fixture takes its place
NETWORK = {"ls-remote", "clone", "fetch"}
SOLO = """
[solo]
url = "file:///nowhere/solo"
licence = "MIT"
import = "solo"
source_root = "."
paths = ["src"]
[[solo.bases]]
id = "9"
pinned = true
commit = "1111111111111111111111111111111111111111"
"""


# ---- which one -----------------------------------------------------------------------------------


def test_git_is_taken_where_both_can_be_had(world: World, upstream: SimpleNamespace) -> None:
    cached(world, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    assert world.apply().row(series="alpha")["source"] == "git"


def test_the_archive_serves_where_git_cannot_be_reached_and_one_line_says_so(offline: World) -> None:
    result = offline.apply()
    assert result.row(series="alpha")["source"] == "archive"
    lines = [line for line in result.err.splitlines() if "source archive, since" in line]
    assert len(lines) == 1 and "could not be reached" in lines[0]


def test_source_archive_takes_the_archive_and_a_plain_apply_goes_back_to_git(
    applied: World, upstream: SimpleNamespace
) -> None:
    cached(applied, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    assert applied.apply("--source", "archive").row(series="alpha")["source"] == "archive"
    assert not (applied.tree() / "tests").exists()
    assert applied.apply().row(series="alpha")["source"] == "git"
    assert (applied.tree() / "tests/test_more.py").exists()


def test_source_git_refuses_the_archive(offline: World) -> None:
    error = offline.apply("--source", "git", code=2).json["error"]
    assert "demo 1.0 cannot be had" in error["seen"] and "insteadOf" in error["way_out"]
    assert not offline.tree("base").exists()


def test_git_is_taken_again_once_the_submodule_is_there(applied_archive: World, upstream: SimpleNamespace) -> None:
    applied_archive.url = upstream.url
    applied_archive.save()
    assert applied_archive.apply().row(series="alpha")["source"] == "archive"  # made already, no network is asked
    git(applied_archive.root, "-c", "protocol.file.allow=always", "submodule", "update", "--init")
    assert applied_archive.apply().row(series="alpha")["source"] == "git"


def test_a_base_whose_commit_is_unknown_comes_from_the_archive(offline: World) -> None:
    offline.bases[1] = BaseEntry("1.1", "", offline.bases[1].sha256)
    offline.save()
    result = offline.apply("--base", "1.1", code=0)
    assert "the commit of 1.1 is not known" in result.err


def test_a_thin_clone_that_lacks_the_blobs_and_cannot_fetch_them_gives_way_to_the_archive(
    offline: World, upstream: SimpleNamespace
) -> None:
    folder = offline.root / "upstream" / "demo"
    git(folder.parent, "clone", "-q", "--filter=blob:none", "--no-checkout", upstream.url, str(folder))
    git(folder, "remote", "set-url", "origin", offline.url)
    result = offline.apply()
    assert result.row(series="alpha")["source"] == "archive"
    assert "is not whole in upstream/demo" in result.err


def test_a_thin_clone_fetches_the_blobs_of_another_base_all_at_once(applied: World) -> None:
    with recorded_git() as calls:
        assert applied.apply("--base", "1.1").code == 0
    assert sum(call[0] == "pack-objects" for call in calls) <= 2
    assert (applied.tree("base", "1.1") / "src/demo/core.py").read_text().count("line thirty") == 1


def test_files_in_the_submodules_folder_without_a_repository_are_left_alone(offline: World) -> None:
    (offline.root / "upstream/demo/mine.txt").write_text("mine\n")
    result = offline.apply()
    assert "holds files but is no git repository" in result.err
    assert (offline.root / "upstream/demo/mine.txt").read_text() == "mine\n"


def test_paths_that_match_nothing_are_an_error(world: World) -> None:
    world.paths = ("sources",)
    world.save()
    assert "holds none of: sources" in world.apply(code=2).json["error"]["seen"]


def test_upstreams_own_submodules_stay_away(bare: World, tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "with-submodule")
    commit(repo, BASE_FILES)
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},src/vendored")
    git(repo, "commit", "-q", "-m", "with a submodule")
    bare.bases = [BaseEntry("1.0", git(repo, "rev-parse", "HEAD").strip(), "", True)]
    bare.url = f"file://{repo}"
    bare.save()
    bare.apply()
    assert "src/vendored" not in git(bare.tree("base"), "ls-files")


# ---- no network ----------------------------------------------------------------------------------


def test_a_project_that_cannot_be_had_is_a_row_unless_it_was_named(offline: World) -> None:
    offline.more_projects = SOLO
    offline.save()
    result = offline.run("apply", "--json")
    assert result.code == 0
    assert result.row(project="demo", series="alpha")["state"] == "applied"
    row = result.row(project="solo")
    assert row["state"] == "not reachable" and "solo 9 cannot be had" in row["detail"]
    assert "no archive of it exists" in row["detail"]
    named = offline.run("apply", "solo", "--json")
    assert named.code == 2 and "solo 9 cannot be had" in named.json["error"]["seen"]


def test_a_refusal_of_the_network_is_not_waited_for_again(offline: World) -> None:
    offline.more_projects = SOLO
    offline.save()
    offline.run("apply")
    with recorded_git() as calls:
        again = offline.run("apply", "--json")
    assert not [call for call in calls if call[0] in NETWORK]
    assert "min ago" in again.row(project="solo")["detail"]
    assert "nothing to do" in again.json["notes"][0]
    with recorded_git() as calls:
        offline.run("apply", "solo")
    assert [call[0] for call in calls if call[0] in NETWORK] == ["ls-remote"]


def test_a_refusal_is_forgotten_after_a_while(offline: World, monkeypatch: pytest.MonkeyPatch) -> None:
    offline.more_projects = SOLO
    offline.save()
    offline.run("apply")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 700)
    with recorded_git() as calls:
        offline.run("apply")
    assert [call[0] for call in calls if call[0] in NETWORK] == ["ls-remote"]
    (offline.root / "build" / "unreachable.json").write_text("{half")
    assert offline.run("apply").code == 0


def test_where_nothing_can_be_had_apply_exits_2_and_names_each_reason(world: World) -> None:
    world.cut_off()
    result = world.run("apply", "--json")
    assert result.code == 2
    assert result.json["error"]["seen"] == "no project can be had"
    assert "demo==1.0 could not be fetched" in result.json["error"]["details"]


def test_a_host_that_never_answers_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    helper = tmp_path / "bin" / "git-remote-silent"
    helper.parent.mkdir()
    helper.write_text("#!/bin/sh\nexec sleep 60\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{__import__('os').environ['PATH']}")
    monkeypatch.setattr("nosync.sources.submodule._ANSWER", 0.5)
    world.url = "silent://nowhere"
    world.save()
    world.environment["GIT_ALLOW_PROTOCOL"] = "silent:file"
    begin = time.monotonic()
    world.apply("--source", "git", code=2)
    assert time.monotonic() - begin < 30


# ---- the archive ---------------------------------------------------------------------------------


def test_the_archive_is_found_on_the_users_index_by_name_and_version(
    world: World, upstream: SimpleNamespace, index: SimpleNamespace
) -> None:
    index.serve(upstream.files / "demo-1.1.tar.gz")
    index.serve(upstream.files / "demo-1.0.tar.gz")
    world.environment["UV_DEFAULT_INDEX"] = index.url
    result = world.apply("--source", "archive")
    assert result.row(series="alpha")["source"] == "archive"
    assert [file.name for file in (world.root / "build/downloads").glob("*/*")] == ["demo-1.0.tar.gz"]
    assert world.leftovers() == []


def test_pips_variables_name_the_index_too(
    world: World, upstream: SimpleNamespace, index: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.serve(upstream.files / "demo-1.0.tar.gz")
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setattr(archives, "_pip_settings", PIP_SETTINGS)
    world.apply("--source", "archive")


def test_a_variable_of_pips_overrides_its_files() -> None:
    text = (
        ":env:.index-url='https://a.example/simple'\nglobal.index-url='https://b.example/simple'\nglobal.timeout='5'\n"
    )
    assert archives._parse_pip_config(text) == {"index-url": ["https://a.example/simple"], "timeout": ["5"]}


def test_an_archive_with_another_sha256_is_refused_before_it_is_unpacked(
    world: World, upstream: SimpleNamespace, index: SimpleNamespace
) -> None:
    shutil.copy(upstream.files / "demo-1.1.tar.gz", index.folder / "x.tar.gz")
    (index.folder / "x.tar.gz").rename(index.folder / "demo-1.0.tar.gz")
    index.serve_name = index.folder / "simple/demo/index.html"
    index.serve_name.write_text('<a href="/demo-1.0.tar.gz">demo-1.0.tar.gz</a>\n')
    world.environment["UV_DEFAULT_INDEX"] = index.url
    error = world.apply("--source", "archive", code=2).json["error"]
    assert f"expected {upstream.hashes['1.0']}" in error["seen"]
    assert "nothing was unpacked" in error["way_out"]
    assert not (world.root / "build/downloads").exists() and not world.tree("base").exists()
    assert world.leftovers() == []


def test_a_damaged_copy_in_the_cache_is_fetched_again(
    world: World, upstream: SimpleNamespace, index: SimpleNamespace
) -> None:
    cached(world, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    (file,) = (world.root / "build/downloads").glob("*/*.tar.gz")
    file.write_bytes(file.read_bytes()[:-100])
    index.serve(upstream.files / "demo-1.0.tar.gz")
    world.environment["UV_DEFAULT_INDEX"] = index.url
    world.apply("--source", "archive")
    assert sha256(file) == upstream.hashes["1.0"]


def test_an_index_without_the_release_is_named_as_the_cause(world: World, index: SimpleNamespace) -> None:
    world.cut_off()
    world.environment["UV_DEFAULT_INDEX"] = index.url
    error = world.apply(code=2).json["error"]
    assert "the index has no source archive of demo==1.0" in error["seen"]
    assert "PIP_INDEX_URL" in error["way_out"]


def _member(name: str, **values: object) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        for key, value in values.items():
            setattr(member, key, value)
        tar.addfile(member, io.BytesIO(b"x" * member.size))

    return add


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(_member("/absolute.txt", size=1), id="absolute path"),
        pytest.param(_member("demo-1.0/../../up.txt", size=1), id="dot-dot"),
        pytest.param(_member("demo-1.0/l", type=tarfile.SYMTYPE, linkname="../../../up"), id="symlink to outside"),
        pytest.param(_member("demo-1.0/l", type=tarfile.SYMTYPE, linkname="/etc/passwd"), id="symlink to absolute"),
        pytest.param(_member("demo-1.0/h", type=tarfile.LNKTYPE, linkname="../../up"), id="hard link to outside"),
        pytest.param(_member("demo-1.0/d", type=tarfile.CHRTYPE, devmajor=1, devminor=3), id="device"),
        pytest.param(_member("demo-1.0/f", type=tarfile.FIFOTYPE), id="pipe"),
        pytest.param(_member("demo-1.0/.git/hooks/post-checkout", size=1), id="git folder"),
        pytest.param(_member("demo-1.0/src/.GIT/config", size=1), id="git folder, other case"),
        pytest.param(_member("second-top/x", size=1), id="two folders at the top"),
    ],
)
def test_an_archive_with_unsafe_members_is_refused_though_its_hash_is_right(
    offline: World, tmp_path: Path, bad: Callable[[tarfile.TarFile], None]
) -> None:
    digest = archive(tmp_path / "demo-1.0.tar.gz", "demo-1.0", in_archive(BASE_FILES), bad)
    cached(offline, tmp_path / "demo-1.0.tar.gz", digest)
    offline.bases[0].sha256 = digest
    offline.save()
    error = offline.apply(code=2).json["error"]
    assert "cannot be unpacked safely" in error["seen"] or "at its top instead of one folder" in error["seen"]
    assert not (offline.root / "build" / "base").exists()
    assert not list(tmp_path.rglob("up.txt")) and not Path("/absolute.txt").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip"])
def test_an_archive_that_is_damaged_as_released_is_refused(offline: World, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "demo-1.0.tar.gz"
    archive(file, "demo-1.0", in_archive(BASE_FILES) | {"src/noise.bin": bytes(range(256)) * 300})
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    file.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "no gzip": b"<html>busy</html>"}[damage])
    cached(offline, file, sha256(file))
    offline.bases[0].sha256 = sha256(file)
    offline.save()
    assert "cannot be unpacked safely" in offline.apply(code=2).json["error"]["seen"]
    assert offline.leftovers() == [] or all(not name.startswith("archive") for name in offline.leftovers())


def test_links_inside_and_modes_come_through_the_archive(applied_archive: World, applied: World) -> None:
    for name in ("src/demo/run.sh", "src/demo/link.py", "src/demo/win.txt", "src/demo/grüß e.txt"):
        entry = [git(each.tree("base"), "ls-files", "-s", "--", name) for each in (applied, applied_archive)]
        assert entry[0] == entry[1] != ""


def test_what_upstream_ignores_is_still_part_of_the_archive(offline: World, tmp_path: Path) -> None:
    file = tmp_path / "demo-1.0.tar.gz"
    digest = archive(file, "demo-1.0", in_archive(BASE_FILES) | {".gitignore": "*.py\n", "x.egg-info/PKG-INFO": "x\n"})
    cached(offline, file, digest)
    offline.bases[0].sha256 = digest
    offline.save()
    offline.apply()
    assert {"src/demo/core.py", "x.egg-info/PKG-INFO"} <= set(git(offline.tree("base"), "ls-files").splitlines())


# ---- what an archive lacks -----------------------------------------------------------------------


def test_diffs_of_paths_that_the_archive_lacks_are_left_out_and_reported(applied_archive: World) -> None:
    result = applied_archive.apply()
    files = {entry["file"]: entry for entry in result.row(series="alpha")["files"]}
    words = [entry["word"] for entry in files.values()]
    assert words == ["unmodified", "applied", "empty"]
    assert [entry["left_out"] for entry in files.values()] == [
        [],
        ["tests/test_core.py"],
        ["tests/test_more.py"],
    ]
    assert result.row(series="alpha")["state"] == "applied"
    assert "not in the source: tests/test_core.py, tests/test_more.py" in result.row(series="alpha")["detail"]
    assert applied_archive.log() == [
        "core: say ten",
        "core: say twenty, and test it",
        "tests: one more",
        "loss: say five",
    ]


def test_refresh_of_a_tree_from_an_archive_keeps_what_was_left_out_byte_for_byte(
    applied_archive: World,
) -> None:
    before = applied_archive.patch_files()
    applied_archive.refresh()
    assert applied_archive.patch_files() == before
    applied_archive.edit_commit(1, {"src/demo/core.py": "line one\n"}, "core: say one")
    applied_archive.refresh()
    after = applied_archive.patch_files()
    (old,), (new,) = before.keys() - after.keys(), after.keys() - before.keys()
    assert "0002-core-say-one" in new
    cut = b"diff --git a/tests/test_core.py"
    assert after[new].partition(cut)[2] == before[old].partition(cut)[2] != b""
    assert {name: data for name, data in after.items() if name != new} == {
        name: data for name, data in before.items() if name != old
    }


def test_left_out_diffs_survive_though_the_files_on_disk_are_half_gone(applied_archive: World) -> None:
    """A refresh that was killed between writing and removing files left the old file away."""
    before = applied_archive.patch_files()
    applied_archive.edit_commit(1, {"src/demo/core.py": "line one\n"}, "core: say one")
    folder = applied_archive.root / "patches/demo/alpha/1.0"
    next(folder.glob("0002-*")).unlink()
    applied_archive.refresh()
    (new,) = applied_archive.patch_files().keys() - before.keys()
    assert b"diff --git a/tests/test_core.py" in applied_archive.patch_files()[new]


def test_a_dropped_commit_takes_its_left_out_diffs_along_and_refresh_says_so(applied_archive: World) -> None:
    tree = applied_archive.tree()
    git(tree, "rebase", "-q", "--onto", "HEAD~2", "HEAD~1")
    result = applied_archive.refresh()
    assert any("gone with alpha/0003" in note and "tests/test_more.py" in note for note in result.json["notes"])


def test_a_commit_on_paths_that_the_archive_lacks_is_refused_with_the_reason(applied_archive: World) -> None:
    before = applied_archive.patch_files()
    applied_archive.amend({"tests/test_new.py": "def test_new():\n    pass\n"})
    error = applied_archive.refresh(code=2).json["error"]
    assert "touches tests/test_new.py, which the archive lacks" in error["seen"]
    assert "SOURCE=git" in error["way_out"]
    assert applied_archive.patch_files() == before


def test_both_sources_give_the_same_commits_where_patches_touch_only_what_both_have(
    bare: World, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    """The trees differ by what the archive lacks, the patches that come back do not."""
    steps = [
        ({"src/demo/core.py": "short\n"}, "core: short\n"),
        ({"src/demo/win.txt": b"a\r\nb\n"}, "win: other ends\n"),
    ]
    bare.add_series("gamma")
    bare.add_patches("gamma", "1.0", make_patches(upstream.repo, upstream.first, steps))
    cached(bare, upstream.files / "demo-1.0.tar.gz", upstream.hashes["1.0"])
    before = bare.patch_files()
    for source in ("git", "archive"):
        assert bare.apply("--source", source).row(series="gamma")["state"] == "applied"
        bare.refresh()
        assert bare.patch_files() == before


def test_a_release_whose_files_are_not_the_commits_is_reported_as_drift(offline: World, tmp_path: Path) -> None:
    file = tmp_path / "demo-1.0.tar.gz"
    text = str(BASE_FILES["src/demo/core.py"]).replace("line 40", "line 40, as released")
    digest = archive(file, "demo-1.0", in_archive(BASE_FILES) | {"src/demo/core.py": text})
    cached(offline, file, digest)
    offline.bases[0].sha256 = digest
    offline.save()
    result = offline.apply(code=1)
    row = result.row(series="alpha")
    assert row["state"] == "drifted" and "src/demo/core.py" in row["detail"]
    assert len(offline.log()) == 4
    # where projects.toml says so of that file it is expected, applied and still said; of another file it is not
    projects = offline.root / "upstream/projects.toml"
    for differs, code, state in (("core", 0, "applied"), ("loss", 1, "drifted")):
        offline.save()
        text = projects.read_text(encoding="utf-8").replace(
            'id = "1.0"\n', f'id = "1.0"\narchive_differs = ["src/demo/{differs}.py"]\n'
        )
        projects.write_text(text, encoding="utf-8")
        row = offline.apply("--force", code=code).row(series="alpha")
        assert row["state"] == state and "src/demo/core.py" in row["detail"]
        if state == "applied":
            before = offline.patch_files()
            assert offline.refresh("--dry").json["rows"] == []
            offline.refresh()
            git(offline.tree(), "gc", "-q", "--prune=now")
            offline.refresh()
            assert offline.patch_files() == before


def test_download_is_safe_to_call_twice(offline: World) -> None:
    layout = Layout(offline.root)
    entry = Archive("demo", "1.0", offline.bases[0].sha256)
    assert archives.download(layout, entry) == archives.download(layout, entry)
    assert json.loads(offline.run("status", "demo", "--json").out)["exit"] == 0


# ---- whose files, whose settings -----------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_of_another_user_are_taken_as_they_are(world: World) -> None:
    """As in a container. git's own advice, a global setting, would not reach the trees."""
    _give_away(world.root)
    world.apply()
    _give_away(world.tree("base"))
    shutil.rmtree(world.tree())
    world.apply()


def _give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)


def test_a_git_that_takes_no_permission_from_us_is_told_where_to_take_it_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.38, which is not at hand here."""
    run = nosync_git._run

    def older(argv: list[str], *rest: Any) -> tuple[int, bytes, bytes]:
        mine = "submodule" in argv
        return (128, b"", b"fatal: unsafe repository ('/x' is owned by someone else)\n") if mine else run(argv, *rest)

    monkeypatch.setattr(nosync_git, "_run", older)
    assert "--add safe.directory" in world.apply(code=2).json["error"]["way_out"]


def test_a_hook_of_the_users_that_fails_does_not_hide_the_repository(world: World, tmp_path: Path) -> None:
    """As git-lfs' does where its program is not installed."""
    write(tmp_path, {"hooks/post-checkout": Script(b"#!/bin/sh\nexit 1\n")})
    write(tmp_path, {"home/.gitconfig": f"[core]\n\thooksPath = {tmp_path}/hooks\n"})
    world.environment = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home")}
    assert world.apply().row(series="alpha")["source"] == "git"


def test_a_full_disk_is_no_broken_network(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = nosync_git._run

    def full(argv: list[str], *rest: Any) -> tuple[int, bytes, bytes]:
        return (128, b"", b"fatal: write error: No space left on device\n") if "clone" in argv else run(argv, *rest)

    monkeypatch.setattr(nosync_git, "_run", full)
    error = world.apply(code=2).json["error"]
    assert (error["cause"], error["way_out"]) == ("a full disk", "free some space")


def test_a_clone_that_fails_half_way_is_no_repository_out_of_reach(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nosync_git._run

    def odd(argv: list[str], *rest: Any) -> tuple[int, bytes, bytes]:
        return (128, b"", b"fatal: something odd\n") if "clone" in argv else run(argv, *rest)

    monkeypatch.setattr(nosync_git, "_run", odd)
    assert "could not be cloned (fatal: something odd)" in world.apply("--source", "git", code=2).json["error"]["seen"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/simple", "not-a-url"])
@pytest.mark.parametrize("verb", [("drift", "demo"), ("rebase", "demo", "--to", "7.7"), ("apply", "demo")])
def test_an_index_that_cannot_be_asked_is_an_error_in_words(world: World, address: str, verb: tuple[str, ...]) -> None:
    world.cut_off()
    result = world.run(*verb, "--json", env={"UV_DEFAULT_INDEX": address})
    assert result.code == 2 and result.json["error"]["way_out"]
