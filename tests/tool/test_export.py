"""``export``: what a pull request needs, the same bytes each time, and nothing sent unless asked."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from killing import killed_at
from synthetic import (
    BASE_FILES,
    LINES,
    BaseEntry,
    Files,
    Result,
    World,
    commit,
    git,
    make_patches,
    new_repo,
    replaced,
    write,
)  # fmt: skip

from nosync import figures, pullrequest, rewriting
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import load_projects
from nosync.series import cell, load_series

TEN = replaced(LINES, 10, "line ten\n")


def export(world: World, *more: str, code: int = 0) -> Result:
    result = world.run("export", "demo", "--json", *more)
    assert result.code == code, result.text
    return result


def out(world: World, series: str = "alpha") -> Path:
    return world.root / "build" / "export" / "demo" / series


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def clone(world: World, to: Path, series: str = "alpha") -> Path:
    git(to.parent, "clone", "-q", str(out(world, series) / f"{series}.bundle"), str(to))
    return to


def subjects(repo: Path, what: str = "HEAD") -> list[str]:
    return git(repo, "log", "--reverse", "--format=%s", what).splitlines()


def upstreaming(world: World, text: str) -> None:
    """Add lines to projects.toml."""
    world.more_projects = text
    world.save()


def commit_all(world: World) -> None:
    git(world.root, "add", "-A", ".")
    git(world.root, "commit", "-q", "-m", "state")


# ---- the bundle and the patches ----


def test_the_bundle_clones_and_holds_the_series_and_nothing_else(world: World, tmp_path: Path) -> None:
    export(world, "--series", "alpha")
    repo = clone(world, tmp_path / "clone")
    assert subjects(repo) == ["demo 1.0", "core: say ten", "core: say twenty, and test it", "tests: one more"]
    assert (repo / "src/demo/core.py").read_text().count("ten\n") == 1
    who = set(git(repo, "log", "--format=%an|%cn|%aI|%cI", "HEAD~3..").splitlines())
    assert who == {"Ada Łovelace|Ada Łovelace|2024-03-01T12:34:56+05:30|2024-03-01T12:34:56+05:30"}
    assert "nosync" not in git(repo, "log", "-p", "--format=fuller")
    assert world.leftovers() == []


def test_dependencies_come_along_and_nothing_else(world: World, upstream: SimpleNamespace, tmp_path: Path) -> None:
    world.add_series("gamma", 15)
    new: list[tuple[Files, str]] = [({"src/demo/gamma.py": "g\n"}, "gamma\n")]
    world.add_patches("gamma", "1.0", make_patches(upstream.repo, upstream.first, new))
    export(world, "--series", "beta")
    assert subjects(clone(world, tmp_path / "clone", "beta"), "HEAD~4..") == [
        "core: say ten", "core: say twenty, and test it", "tests: one more", "loss: say five",
    ]  # fmt: skip


def test_a_hidden_dependency_is_named(world: World, upstream: SimpleNamespace) -> None:
    steps: list[tuple[Files, str]] = [
        ({"src/demo/core.py": TEN}, "a\n"),
        ({"src/demo/core.py": replaced(TEN, 11, "eleven\n")}, "b\n"),
    ]
    top = dict(list(make_patches(upstream.repo, upstream.first, steps).items())[1:])
    world.add_series("gamma", 15)
    world.add_patches("gamma", "1.0", {"0001-b.patch": next(iter(top.values()))})
    result = world.run("export", "demo", "--series", "gamma")
    assert result.code == 2
    assert "'depends' in series.toml does not name" in result.err
    assert not out(world, "gamma").exists()


def test_the_mailbox_is_the_committed_patches_and_applies_with_plain_git(world: World, tmp_path: Path) -> None:
    export(world, "--series", "alpha")
    committed = {
        name.rpartition("/")[2]: data
        for name, data in world.patch_files().items()
        if name.startswith("demo/alpha/1.0/")
    }
    assert everything(out(world) / "patches") == committed
    repo = tmp_path / "plain"
    git(tmp_path, "clone", "-q", str(world.upstream), str(repo))
    git(repo, "checkout", "-q", world.bases[0].commit)
    git(repo, "am", "-q", *(str(file) for file in sorted((out(world) / "patches").iterdir())))
    assert len(subjects(repo, f"{world.bases[0].commit}..HEAD")) == 3


def test_the_branch_to_push_stands_on_upstreams_commit_with_all_of_its_files(world: World, tmp_path: Path) -> None:
    export(world, "--series", "alpha")
    base = world.bases[0].commit
    repo = tmp_path / "plain"
    git(tmp_path, "clone", "-q", str(world.upstream), str(repo))
    git(repo, "fetch", "-q", str(out(world) / f"alpha-on-{base[:12]}.bundle"), "alpha:alpha")
    assert git(repo, "rev-parse", "alpha~3").strip() == base
    assert git(repo, "diff", "--name-only", base, "alpha").split() == [
        "src/demo/core.py",
        "tests/test_core.py",
        "tests/test_more.py",
    ]
    assert git(repo, "show", "alpha:docs/far.md") == "not among the paths\n"
    assert git(repo, "for-each-ref", "refs/replace") == ""


def test_two_exports_are_the_same_bytes(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(world, "--series", "alpha")
    first = everything(world.root / "build/export")
    other = world.copy(tmp_path / "some other place")
    hostile = tmp_path / "gitconfig"
    hostile.write_text(
        "[core]\n\tautocrlf = true\n[diff]\n\tnoprefix = true\n\talgorithm = patience\n[pack]\n\twindow = 3\n"
        "[commit]\n\tgpgsign = true\n[user]\n\tname = Someone Else\n\temail = else@example.org\n"
        "[init]\n\tdefaultBranch = trunk\n[format]\n\tsignoff = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(hostile))
    shutil.rmtree(other.root / "build")
    export(other, "--series", "alpha")
    assert everything(other.root / "build/export") == first


def test_no_path_of_this_machine_is_in_what_goes_out(world: World) -> None:
    upstreaming(world, '[[demo.upstreaming.checks]]\nline = "where"\ncommand = "pwd && ls -d $PWD/src && false"\n')
    export(world, "--series", "alpha", code=1)
    for name, data in everything(world.root / "build/export").items():
        if not name.endswith(".bundle"):
            assert str(world.root).encode() not in data, name


# ---- a base that is known as an archive alone ----


def test_an_archive_gives_a_synthetic_root_and_says_what_is_not_on_it(offline: World, tmp_path: Path) -> None:
    result = export(offline, "--series", "alpha")
    repo = clone(offline, tmp_path / "clone")
    assert "source archive demo 1.0" in git(repo, "log", "-1", "--format=%B", "HEAD~3")
    assert result.row(what="branch to push")["result"] == "not yet"
    assert "cannot be reached" in (out(offline) / "send.sh").read_text()
    assert "tests/test_more.py" in (out(offline) / "CHECKLIST.md").read_text()
    committed = {
        name.rpartition("/")[2]: data
        for name, data in offline.patch_files().items()
        if name.startswith("demo/alpha/1.0/")
    }
    assert everything(out(offline) / "patches") == committed


def archived(world: World) -> None:
    """The base 1.0 is known by its archive and not by its commit; 1.1 is pinned."""
    world.bases[0].commit, world.bases[0].pinned = "", False
    world.bases[1].pinned = True
    world.save()


def test_when_the_real_commit_is_reachable_the_series_is_grafted_onto_it(
    offline: World, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    archived(offline)
    export(offline, "--series", "alpha", "--base", "1.0")
    assert not list(out(offline).glob("*-on-*"))
    offline.url = upstream.url
    git(upstream.repo, "tag", "-f", "-a", "-m", "release", "v1.0", upstream.first)
    archived(offline)
    (offline.root / "build/unreachable.json").unlink(missing_ok=True)
    result = export(offline, "--series", "alpha", "--base", "1.0")
    assert upstream.first[:12] in result.row(what="branch to push")["detail"]
    repo = tmp_path / "plain"
    git(tmp_path, "clone", "-q", str(upstream.repo), str(repo))
    git(repo, "fetch", "-q", str(out(offline) / f"alpha-on-{upstream.first[:12]}.bundle"), "alpha:alpha")
    assert git(repo, "rev-parse", "alpha~3").strip() == upstream.first
    assert "test_more" in git(repo, "show", "alpha:tests/test_more.py")


def test_a_tag_that_is_not_what_the_release_was_made_from_is_refused(offline: World, upstream: SimpleNamespace) -> None:
    archived(offline)
    offline.url = upstream.url
    git(upstream.repo, "tag", "-f", "v1.0", upstream.second)
    archived(offline)
    result = offline.run("export", "demo", "--series", "alpha", "--base", "1.0")
    git(upstream.repo, "tag", "-d", "v1.0")
    assert result.code == 2
    assert "differ in src/demo/core.py" in result.err
    export(offline, "--series", "alpha", "--base", "1.0", "--source", "archive")


# ---- rewriting ----


def test_our_trailers_go_and_sign_off_comes_once(world: World, upstream: SimpleNamespace, tmp_path: Path) -> None:
    signed = "one\n\nBody: it is.\n\nSigned-off-by: Ada Łovelace <ada@example.org>\nNosync-Origin: here\n"
    bare = "two\n\nSee 12345678 and\nNosync-Origin: in a paragraph, which stays\nindeed.\n"
    world.add_series("gamma", 15, sign_off=True)
    steps: list[tuple[Files, str]] = [({"a.py": "1\n"}, signed), ({"b.py": "1\n"}, bare)]
    world.add_patches("gamma", "1.0", make_patches(upstream.repo, upstream.first, steps))
    export(world, "--series", "gamma", code=1)  # the second message names us in its body: the checklist says so
    repo = clone(world, tmp_path / "clone", "gamma")
    assert (
        git(repo, "log", "-1", "--format=%B", "HEAD^").strip()
        == "one\n\nBody: it is.\n\nSigned-off-by: Ada Łovelace <ada@example.org>"
    )
    assert (
        git(repo, "log", "-1", "--format=%B").strip()
        == bare.strip() + "\n\nSigned-off-by: Ada Łovelace <ada@example.org>"
    )


def test_mailmap_decides_author_and_committer(world: World, tmp_path: Path) -> None:
    write(world.root, {"upstream/mailmap": "Ada King <king@example.org> <ada@example.org>\n"})
    world.add_series("alpha", 10, sign_off=True)
    export(world, "--series", "alpha")
    repo = clone(world, tmp_path / "clone")
    assert set(git(repo, "log", "--format=%an <%ae> %cn", "HEAD~3..").splitlines()) == {
        "Ada King <king@example.org> Ada King"
    }
    assert (
        git(repo, "log", "--format=%(trailers:key=Signed-off-by,valueonly)", "-1").strip()
        == "Ada King <king@example.org>"
    )


def test_our_paths_go_and_our_tests_move_with_their_history(
    world: World, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    upstreaming(world, '[demo.upstreaming]\ndrop = ["notes/"]\nmoves = [["sync-tests/", "tests/sync/"]]\n')
    world.add_series("gamma", 15)
    steps: list[tuple[Files, str]] = [
        ({"notes/ours.md": "ours\n"}, "ours alone\n"),
        ({"src/demo/g.py": "1\n", "notes/ours.md": "more\n"}, "both\n"),
        ({"sync-tests/test_g.py": "1\n"}, "test\n"),
        ({"sync-tests/test_g.py": "1\n2\n"}, "test more\n"),
    ]
    world.add_patches("gamma", "1.0", make_patches(upstream.repo, upstream.first, steps))
    result = export(world, "--series", "gamma")
    repo = clone(world, tmp_path / "clone", "gamma")
    assert subjects(repo, "HEAD~3..") == ["both", "test", "test more"]
    assert git(repo, "ls-files", "notes", "sync-tests", "tests/sync") == "tests/sync/test_g.py\n"
    assert git(repo, "log", "--format=%s", "--", "tests/sync").splitlines() == ["test more", "test"]
    assert "4 are committed" in result.row(what="patches")["detail"]


@pytest.mark.parametrize(
    ("message", "body", "trailers"),
    [
        (b"subject\n", b"subject", []),
        (b"subject\n\nA: b\n", b"subject", [b"A: b"]),
        (b"A: b\n", b"A: b", []),  # a subject is no trailer
        (b"s\n\ntext\nA: b\n", b"s\n\ntext\nA: b", []),
        (b"s\n\nA: b\n\ntext\n", b"s\n\nA: b\n\ntext", []),
        (b"s\n\nt\n\nA: b\nC-d: e\n\n", b"s\n\nt", [b"A: b", b"C-d: e"]),
    ],
)
def test_trailers_are_the_last_paragraph_and_nothing_else(message: bytes, body: bytes, trailers: list[bytes]) -> None:
    assert rewriting.split_trailers(message) == (body, trailers)


# ---- text, figures, checklist ----


def measured(
    world: World, digest: str = "", name: str = "box-2026-01-01", base: str = "1.0", figure: str = "demo.steps"
) -> Path:
    project = load_projects(world.root / "upstream/projects.toml")["demo"]
    series = next(each for each in load_series(world.root / "patches", project) if each.name == "alpha")
    digest = digest or figures.code_digest(cell(project, series, project.base(base)))
    body = {"figures": {figure: name}, "measured": {f"alpha@{base}": digest}}
    write(world.root, {f"results/demo/{name}.json": json.dumps(body)})
    return world.root / "results/demo" / f"{name}.json"


def test_figures_come_from_the_newest_committed_results(world: World) -> None:
    write(world.root, {"patches/demo/alpha/cover.md": "It takes {{demo.steps}} steps, {{ demo.steps }}.\n"})
    measured(world)
    measured(world, name="abc-2026-02-01")
    commit_all(world)
    export(world, "--series", "alpha")
    assert (out(world) / "PR.md").read_text() == "# alpha\n\nIt takes abc-2026-02-01 steps, abc-2026-02-01.\n"


def test_a_figure_of_another_base_is_marked_and_the_text_says_which(world: World) -> None:
    write(world.root, {"patches/demo/alpha/cover.md": "From {{demo.steps}} steps,\nin {{demo.ms}} or {{demo.s}}.\n"})
    measured(world, name="own-2026-01-01")
    measured(world, name="new-2026-02-01", base="1.1")
    measured(world, name="time-2026-01-01", base="1.1", figure="demo.ms")
    measured(world, name="long-2026-01-01", base="1.1", figure="demo.s")
    commit_all(world)
    row = export(world, "--series", "alpha").row(what="PR.md")
    assert (row["result"], row["detail"]) == ("written", "with figures of 1.1")
    assert (out(world) / "PR.md").read_text() == (
        "# alpha\n\nFrom own-2026-01-01 steps,\nin time-2026-01-01 † or long-2026-01-01 †.\n\n"
        "† Measured with this change on demo 1.1.\n"
    )


def test_a_figure_of_another_base_counts_only_of_the_present_code(world: World) -> None:
    write(world.root, {"patches/demo/alpha/cover.md": "It takes {{demo.steps}} steps.\n"})
    measured(world, "0" * 64, base="1.1")
    commit_all(world)
    assert export(world, "--series", "alpha", code=1).row(what="PR.md")["result"] == "figures missing"


def test_of_one_day_a_host_of_its_own_goes_before_a_shared_one(world: World) -> None:
    """What others ran on the host's other GPUs slows a step that the host queues."""
    alone, shared = measured(world, name="a-2026-02-01"), measured(world, name="b-2026-02-01")
    older = measured(world, name="c-2026-01-01")
    body = json.loads(shared.read_text()) | {"machine": {"gpus_left_to_others": 1}}
    shared.write_text(json.dumps(body))
    assert [file for file, _ in figures.results(Layout(world.root), "demo")][:3] == [alone, shared, older]


@pytest.mark.parametrize("how", ["missing", "stale", "not committed"])
def test_a_figure_that_cannot_be_stood_for_is_an_error(world: World, how: str) -> None:
    write(world.root, {"patches/demo/alpha/cover.md": "It takes {{demo.steps}} steps.\n"})
    if how != "missing":
        measured(world, "0" * 64 if how == "stale" else "")
    if how == "stale":
        commit_all(world)
    result = export(world, "--series", "alpha", code=1)
    said = {
        "missing": "no file under results/ has it",
        "stale": "measured before alpha",
        "not committed": "is not committed",
    }[how]
    assert said in result.row(what="PR.md")["detail"]
    assert not (out(world) / "PR.md").exists()


def test_a_reworded_message_does_not_make_a_figure_old_but_a_changed_line_does(world: World) -> None:
    write(world.root, {"patches/demo/alpha/cover.md": "{{demo.steps}}\n"})
    measured(world)
    commit_all(world)
    file = world.root / "patches/demo/alpha/1.0/0001-core-say-ten.patch"
    file.write_bytes(file.read_bytes().replace(b"The number is a word now.", b"A word."))
    export(world, "--series", "alpha")
    later = world.root / "patches/demo/alpha/1.0/0003-tests-one-more.patch"
    later.write_bytes(later.read_bytes().replace(b"test_more()", b"test_less()"))
    assert "measured before" in export(world, "--series", "alpha", code=1).row(what="PR.md")["detail"]


CHECKS = """
[[demo.upstreaming.checks]]
line = "no tabs"
command = '! grep -n "\t" "$@"'
files = ["src/*.py"]
pull_request = true
[[demo.upstreaming.checks]]
line = "a licence is agreed to"
pull_request = true
[[demo.upstreaming.checks]]
line = "no changed rust"
command = "false"
files = ["*.rs"]
[[demo.upstreaming.checks]]
line = "by rules that we do not have"
command = "false"
files = ["*.py"]
needs = ["lint.toml"]
"""


def test_each_line_is_checked_by_its_command_and_shows_its_output(world: World) -> None:
    upstreaming(world, CHECKS)
    result = export(world, "--series", "alpha")
    words = {
        row["detail"].partition(":")[0]: row["result"] for row in result.json["rows"] if row["what"] == "checklist"
    }
    assert words["no tabs"] == "holds"
    assert words["a licence is agreed to"] == "by hand"
    assert words["no changed rust"] == "nothing to check"
    assert words["by rules that we do not have"] == "by hand"
    assert '$ ! grep -n "\t" src/demo/core.py' in (out(world) / "CHECKLIST.md").read_text()
    assert (out(world) / "PR.md").read_text().endswith("## Checklist\n\n- [x] no tabs\n- [ ] a licence is agreed to\n")


def test_what_was_wrong_before_us_is_not_ours_and_what_is_new_is(world: World, upstream: SimpleNamespace) -> None:
    upstreaming(world, CHECKS.replace('! grep -n "\t" "$@"', '! grep -n "loss 3$\\|tab" "$@"'))
    world.add_series("gamma", 15)
    loss = LINES.replace("line", "loss")
    for number, (text, word) in enumerate([("loss five\n", "as on the base"), ("tab\n", "wrong")]):
        steps: list[tuple[Files, str]] = [({"src/demo/loss.py": replaced(loss, 5, text, "loss")}, f"{number}\n")]
        shutil.rmtree(world.root / "patches/demo/gamma/1.0", ignore_errors=True)
        world.add_patches("gamma", "1.0", make_patches(upstream.repo, upstream.first, steps))
        result = export(world, "--series", "gamma", code=int(word == "wrong"))
        assert [row["result"] for row in result.json["rows"] if row["detail"].startswith("no tabs")] == [word]


def test_a_command_that_does_not_work_is_wrong_even_if_it_fails_on_the_base_too(world: World) -> None:
    upstreaming(world, CHECKS.replace('! grep -n "\t" "$@"', "no-such-linter"))
    rows = export(world, "--series", "alpha", code=1).json["rows"]
    assert [row["result"] for row in rows if row["detail"].startswith("no tabs")] == ["wrong"]


def test_a_fixer_does_not_change_the_branch(world: World, tmp_path: Path) -> None:
    upstreaming(world, CHECKS.replace('! grep -n "\t" "$@"', 'sed -i s/line/LINE/ "$@"'))
    export(world, "--series", "alpha")
    assert "LINE" not in (clone(world, tmp_path / "clone") / "src/demo/core.py").read_text()


def test_series_that_are_merged_or_ours_stay_here(world: World) -> None:
    world.add_series("alpha", 10, status="merged", merged_as="abc")
    world.add_series("beta", 20, upstream=False)
    result = export(world)
    assert {row["series"]: row["result"] for row in result.json["rows"]} == {"alpha": "left away", "beta": "left away"}
    assert world.run("export", "demo", "--series", "beta").code == 2
    export(world, "--series", "alpha")


# ---- a base without patches of its own ----


def test_an_earlier_bases_patches_are_merged_three_way_as_apply_does(world: World, tmp_path: Path) -> None:
    row = export(world, "--series", "beta", "--base", "1.1").row(what="patches")
    assert "alpha: patches of 1.0, merged three-way; beta: patches of 1.0, merged three-way" in row["detail"]
    repo = clone(world, tmp_path / "clone", "beta")
    world.apply("--base", "1.1")
    assert subjects(repo, "HEAD~4..") == world.log("1.1")
    names = ("src/demo/core.py", "src/demo/loss.py", "tests/test_core.py", "tests/test_more.py")
    for name in names:
        assert (repo / name).read_bytes() == (world.tree("patched", "1.1") / name).read_bytes()
    git(repo, "checkout", "-q", "HEAD~4")
    git(repo, "am", "-q", *(str(file) for file in sorted((out(world, "beta") / "patches").iterdir())))
    assert git(repo, "rev-parse", "HEAD^{tree}") == git(repo, "rev-parse", "origin/beta^{tree}")
    first = everything(world.root / "build/export")
    again = export(world, "--series", "beta", "--base", "1.1").row(what="range-diff")
    assert again["result"] == "no change" and everything(world.root / "build/export") == first
    assert world.leftovers() == []


def two_bases(world: World, repo: Path, later: Files, steps: list[tuple[Files, str]]) -> None:
    """1.0, and 1.1 with ``later`` on it; the series alpha, made of the steps, has patches for 1.0 alone."""
    first = commit(repo, BASE_FILES)
    second = commit(repo, later)
    world.bases = [BaseEntry("1.0", first, "", True), BaseEntry("1.1", second, "")]
    world.url = f"file://{repo}"
    world.save()
    world.add_series("alpha")
    world.add_patches("alpha", "1.0", make_patches(repo, first, steps))


def test_a_merged_patch_that_the_base_has_already_is_left_out_and_named(bare: World, tmp_path: Path) -> None:
    # the first change and one beside it, so that nothing is left to merge
    later: Files = {"src/demo/core.py": replaced(TEN, 12, "line twelve\n")}
    steps: list[tuple[Files, str]] = [({"src/demo/core.py": TEN}, "ten\n"), ({"src/demo/new.py": "n\n"}, "new\n")]
    two_bases(bare, new_repo(tmp_path / "merged"), later, steps)
    row = export(bare, "--base", "1.1").row(what="patches")
    assert row["result"] == "1 files" and "in 1.1 already: alpha/0001-ten.patch" in row["detail"]
    assert subjects(clone(bare, tmp_path / "clone")) == ["demo 1.1", "new"]
    (bare.root / "patches/demo/alpha/1.0/0002-new.patch").unlink()
    result = bare.run("export", "demo", "--base", "1.1")
    assert result.code == 2 and "every patch of demo/alpha is in 1.1 already" in result.err


def test_patches_that_do_not_merge_are_a_persons_to_rebase(bare: World, tmp_path: Path) -> None:
    later: Files = {"src/demo/core.py": replaced(LINES, 10, "line 10, upstream's way\n")}
    two_bases(bare, new_repo(tmp_path / "apart"), later, [({"src/demo/core.py": TEN}, "ten\n")])
    result = bare.run("export", "demo", "--base", "1.1")
    assert result.code == 2 and "alpha/0001-ten.patch is conflict on 1.1" in result.err
    assert "make rebase-demo TO=1.1 S=alpha" in result.err
    assert not out(bare).exists() and bare.leftovers() == []


def test_patches_of_a_later_base_are_not_exported_for_an_earlier_one(world: World) -> None:
    (world.root / "patches/demo/alpha/1.0").rename(world.root / "patches/demo/alpha/1.1")
    result = world.run("export", "demo", "--series", "alpha")
    assert result.code == 2 and "has no patches for 1.0 or an earlier base" in result.err


def test_nothing_is_exported_when_the_commits_are_not_those_of_the_patches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another git in the same folder, or a rewriting that drops or joins commits: no bogus patch may leave."""
    export(world, "--series", "alpha")
    former = everything(out(world))
    inner = rewriting.rewrite

    def too_many(repo: Repo, branch: str, rules: rewriting.Rules) -> None:
        inner(repo, branch, rules)
        commit(repo.path, {"src/demo/foreign.py": "not of the series\n"}, "foreign")

    def too_few(repo: Repo, branch: str, rules: rewriting.Rules) -> None:
        git(repo.path, "reset", "-q", "--soft", "HEAD~2")
        git(repo.path, "commit", "-q", "-m", "joined")
        inner(repo, branch, rules)

    for other, count in ((too_many, 4), (too_few, 2)):
        with monkeypatch.context() as patch:
            patch.setattr(rewriting, "rewrite", other)
            result = world.run("export", "demo", "--series", "alpha")
        assert result.code == 2
        assert f"the branch has {count} commits for 3 patches; nothing was exported" in result.err
        assert everything(out(world)) == former and world.leftovers() == []


def test_a_dirty_submodule_is_no_part_of_an_export_and_stays_as_it_is(world: World) -> None:
    export(world, "--series", "alpha")
    former = everything(out(world))
    folder = world.root / "upstream/demo"
    local = commit(folder, {"src/demo/core.py": "a local commit\n"}, "local")
    write(folder, {"src/demo/loss.py": "an edit\n", "src/demo/stray.py": "untracked\n"})
    shutil.rmtree(world.root / "build")
    export(world, "--series", "alpha")
    assert everything(out(world)) == former
    assert git(folder, "rev-parse", "HEAD").strip() == local
    assert (folder / "src/demo/loss.py").read_text() == "an edit\n"
    assert (folder / "src/demo/stray.py").exists()


def test_a_disk_that_fills_up_leaves_the_former_export(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    export(world, "--series", "alpha")
    former = everything(out(world))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "build/somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        result = world.run("export", "demo", "--series", "alpha")
    assert result.code == 2 and "No space left on device" in result.err
    assert everything(out(world)) == former
    export(world, "--series", "alpha")
    assert world.leftovers() == []


# ---- again, and sending ----


@pytest.mark.parametrize("name", ["PR.md", "patches/0001-core-say-ten.patch", "notes/mine.txt"])
def test_what_a_person_changed_in_an_export_is_not_replaced(world: World, tmp_path: Path, name: str) -> None:
    export(world)
    write(out(world), {name: "mine\n"})
    before = everything(world.root / "build/export")
    error = export(world, code=2).json["error"]
    assert name in error["seen"] and "cover.md" in error["cause"] and f"mv {out(world)} " in error["way_out"]
    assert everything(world.root / "build/export") == before and world.leftovers() == []
    export(world, "--series", "beta")
    out(world).rename(tmp_path / "elsewhere")
    export(world)


def test_what_is_changed_while_an_export_runs_is_not_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    export(world, "--series", "alpha")
    inner = pullrequest.text

    def meanwhile(*args: Any) -> Any:
        write(out(world), {"PR.md": "mine\n"})
        return inner(*args)

    monkeypatch.setattr(pullrequest, "text", meanwhile)
    assert "PR.md" in export(world, "--series", "alpha", code=2).json["error"]["seen"]
    assert (out(world) / "PR.md").read_text() == "mine\n"


def test_range_diff_shows_what_changed_since_the_previous_export_and_stays(world: World) -> None:
    assert export(world, "--series", "alpha").row(what="range-diff")["result"] == "first export"
    file = world.root / "patches/demo/alpha/1.0/0002-core-say-twenty-and-test-it.patch"
    file.write_bytes(file.read_bytes().replace(b"+line twenty and a half", b"+line twenty and more"))
    assert "1 commits differ" in export(world, "--series", "alpha").row(what="range-diff")["detail"]
    text = (out(world) / "range-diff.txt").read_text()
    assert "twenty and more" in text and "1:" in text
    assert export(world, "--series", "alpha").row(what="range-diff")["result"] == "no change"
    assert (out(world) / "range-diff.txt").read_text() == text


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``gh`` that notes what it was asked, and a fork that can be pushed to, both on this machine."""
    folder = tmp_path / "bin"
    write(
        folder,
        {"gh": f'#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >"{tmp_path}/asked"\ncat >"{tmp_path}/body"\n'},
    )
    (folder / "gh").chmod(0o755)
    git(tmp_path, "init", "-q", "--bare", "fork")
    monkeypatch.setenv("PATH", f"{folder}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("FORK", str(tmp_path / "fork"))
    monkeypatch.setenv("FORK_OWNER", "ada")
    return tmp_path


def test_nothing_is_sent_without_being_asked(world: World, gh: Path) -> None:
    export(world, "--series", "alpha")
    assert not (gh / "asked").exists()
    assert git(gh / "fork", "for-each-ref") == ""


def test_send_pushes_the_branch_and_opens_the_pull_request(world: World, gh: Path) -> None:
    world.add_series("alpha", 10, title='It\'s a "title" with $HOME')
    upstreaming(world, '[demo.upstreaming]\nbranch = "trunk"\nlabels = ["bug", "no-op"]\n')
    result = export(world, "--series", "alpha", "--send")
    assert result.row(what="send")["result"] == "sent"
    assert git(gh / "fork", "rev-parse", "alpha~3").strip() == world.bases[0].commit
    asked = (gh / "asked").read_text().splitlines()
    assert asked[:2] == ["pr", "create"]
    assert asked[asked.index("--title") + 1] == 'It\'s a "title" with $HOME'
    assert asked[asked.index("--base") + 1] == "trunk" and asked[asked.index("--head") + 1] == "ada:alpha"
    assert asked.count("--label") == 2
    assert (gh / "body").read_text() == "alpha\n"


def test_a_series_that_changed_is_sent_again(world: World, gh: Path) -> None:
    export(world, "--series", "alpha", "--send")
    first = git(gh / "fork", "rev-parse", "alpha").strip()
    file = world.root / "patches/demo/alpha/1.0/0002-core-say-twenty-and-test-it.patch"
    file.write_bytes(file.read_bytes().replace(b"Both.", b"Both of them."))
    world.add_series("alpha", 10, pull_request="https://example.org/pull/1")
    assert export(world, "--series", "alpha", "--send").row(what="send")["result"] == "sent"
    assert "Both of them." in git(gh / "fork", "log", "-1", "--format=%B", "alpha~1")
    export(world, "--series", "alpha")
    said = subprocess.run([out(world) / "send.sh"], capture_output=True, text=True, check=True).stdout
    second = git(gh / "fork", "rev-parse", "alpha").strip()
    assert f"alpha on the fork: {second}" in said and second != first


def test_an_open_pull_request_is_updated(world: World, gh: Path) -> None:
    world.add_series("alpha", 10, pull_request="https://example.org/pull/1")
    export(world, "--series", "alpha", "--send")
    assert (gh / "asked").read_text().splitlines()[:3] == ["pr", "edit", "https://example.org/pull/1"]


def test_nothing_is_sent_while_a_line_is_wrong(world: World, gh: Path) -> None:
    upstreaming(world, CHECKS.replace('! grep -n "\t" "$@"', "no-such-linter"))
    result = world.run("export", "demo", "--series", "alpha", "--send")
    assert result.code == 2
    assert "nothing was sent" in result.err
    assert git(gh / "fork", "for-each-ref") == ""


def test_killed_anywhere_the_former_export_is_whole_and_a_rerun_ends_right(world: World, tmp_path: Path) -> None:
    export(world, "--series", "alpha")
    former = everything(out(world))
    file = world.root / "patches/demo/alpha/1.0/0003-tests-one-more.patch"
    file.write_bytes(file.read_bytes().replace(b"test_more()", b"test_less()"))
    untouched = world.copy(tmp_path / "untouched")
    export(untouched, "--series", "alpha")
    runs = 0
    for number in range(4, 400, 17):
        if not killed_at(world, number, "export", "demo", "--series", "alpha"):
            break
        runs += 1
        assert everything(out(world)) == former
    assert runs > 2
    assert everything(out(world)) == everything(out(untouched))
    assert world.leftovers() == []


def test_a_line_of_the_cover_may_be_for_some_bases_alone() -> None:
    cover = "both\nnew <!-- only: 2.0 3.0 -->\nold <!-- only: 1.0 -->\nnot at the end <!-- only: 9 --> stays\n"
    assert pullrequest.for_base(cover, "1.0") == "both\nold\nnot at the end <!-- only: 9 --> stays\n"
    assert pullrequest.for_base(cover, "3.0") == "both\nnew\nnot at the end <!-- only: 9 --> stays\n"
