"""The verbs bench and bench-report on a synthetic upstream: from patches to the README's table."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, write

from nosync.bench import Asked, bench
from nosync.benchreport import bench_report
from nosync.errors import NosyncError
from nosync.layout import Layout

SCRIPT = """
import sys
from nosync.measure import writing

options = writing.parser("lines of the tree's core").parse_args()
text = (options.tree / "demo" / "core.py").read_text()
with writing.Lines(options.out) as lines:
    lines.count("twenty", text.count("twenty"))
    lines.count("ten", text.count("line ten"))
"""
SUITE = """
prefix = "demo"

[[workload]]
name = "whole"
kind = "count"
gpus = 0
script = "lines.py"

[[workload]]
name = "alpha-alone"
kind = "count"
gpus = 0
script = "lines.py"
arms = ["base", "alpha"]
"""
README = "before\n<!-- table: results -->\nby hand\n<!-- end -->\nafter\n"
CLAIMS = """
[[claim]]
project = "demo"
claim = "fewer lines"
figure = "demo.twenty"
readme = "lines"

[[claim]]
project = "demo"
claim = "faster"
reason = "no such machine"
"""


@pytest.fixture
def layout(applied: World, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.delenv("NOSYNC_PYTHON", raising=False)
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    monkeypatch.setenv("PYTHONPATH", str(scripts))
    write(applied.root, {"tests/demo/bench/bench.toml": SUITE, "tests/demo/bench/lines.py": SCRIPT})
    write(applied.root, {"README.md": README, "results/claims.toml": CLAIMS, "docs/.keep": ""})
    return Layout(applied.root)


def test_both_trees_and_the_one_that_ends_with_a_series(layout: Layout) -> None:
    """An arm may be a series: its tree has what lies on it left out."""
    report = bench(layout, "demo", "pinned", Asked(smoke=True))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    body = json.loads(file.read_text())
    assert [workload["state"] for workload in body["workloads"]] == ["measured", "measured"]
    assert set(body["trees"]) == {"base", "patched", "alpha"}
    assert len(set(body["trees"].values())) == 3
    assert set(body["measured"]) == {"alpha@1.0", "beta@1.0"}
    assert report.code == 0
    made = layout.build / "bench" / "demo@1.0+alpha"
    assert (made / "src" / "demo" / "core.py").is_file()


def test_carried_trees_are_of_known_code_or_count_for_no_series(layout: Layout, tmp_path: Path) -> None:
    """Known are those that a bench of this checkout ran on, file for file."""
    bench(layout, "demo", "pinned", Asked(smoke=True))
    for kind in ("base", "patched"):
        shutil.copytree(layout.tree(kind, "demo", "1.0"), tmp_path / kind, ignore=shutil.ignore_patterns(".git"))
    asked = Asked(smoke=True, base_tree=tmp_path / "base", patched_tree=tmp_path / "patched", out=tmp_path / "out")

    def measured() -> dict[str, str]:
        return json.loads(next((tmp_path / "out").glob("*.json")).read_text())["measured"]

    report = bench(layout, "demo", "pinned", asked)
    assert measured().keys() == {"alpha@1.0", "beta@1.0"}
    assert not any("no series" in line for line in report.notes)
    (tmp_path / "patched" / "src" / "demo" / "core.py").write_text("older = True\n")
    report = bench(layout, "demo", "pinned", asked)
    assert measured() == {}
    assert any("the numbers count for no series" in line for line in report.notes)


def test_a_result_of_unknown_code_says_so(layout: Layout) -> None:
    bench(layout, "demo", "pinned", Asked(only=("whole",)))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    (layout.root / "results" / "demo").mkdir(parents=True)
    unknown = json.loads(file.read_text()) | {"measured": {}}
    (layout.root / "results" / "demo" / file.name).write_text(json.dumps(unknown))
    assert "not known to be of the present code of alpha, beta" in bench_report(layout).rows[0]["said"]


def test_trees_that_were_carried_here(layout: Layout, tmp_path: Path) -> None:
    """As folders, without git; what was not carried is a row with its reason."""
    for kind in ("base", "patched"):
        shutil.copytree(layout.tree(kind, "demo", "1.0"), tmp_path / kind, ignore=shutil.ignore_patterns(".git"))
    asked = Asked(smoke=True, base_tree=tmp_path / "base", patched_tree=tmp_path / "patched", out=tmp_path / "out")
    report = bench(layout, "demo", "pinned", asked)
    (file,) = (tmp_path / "out").glob("*.json")
    assert all(what.startswith("files ") for what in json.loads(file.read_text())["trees"].values())
    assert [row["what"] for row in report.rows if row.get("state")] == ["needs the tree alpha, which was not given"]
    with pytest.raises(NosyncError, match="only one of"):
        bench(layout, "demo", "pinned", Asked(base_tree=tmp_path / "base"))
    with pytest.raises(NosyncError, match=r"gone: there is no demo in it, nor in its src/"):
        bench(layout, "demo", "pinned", Asked(base_tree=tmp_path / "base", patched_tree=tmp_path / "gone"))


def test_a_project_without_a_suite_says_so(layout: Layout) -> None:
    (layout.root / "tests/demo/bench/bench.toml").unlink()
    with pytest.raises(NosyncError, match=r"bench\.toml"):
        bench(layout, "demo", "pinned", Asked())


def _full_for_readme(inner: Callable[..., int]) -> Callable[..., int]:
    """Writes half of the README, then the disk is full."""

    def write_half(file: Path, data: Any, **more: Any) -> int:
        if not file.name.startswith("README"):
            return inner(file, data, **more)
        inner(file, data[: len(data) // 2], **more)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    return write_half


def test_the_report_fills_the_page_and_the_readme(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a committed result; with dry it only says that they would change, and on a full disk it changes nothing."""
    bench(layout, "demo", "pinned", Asked(only=("whole",)))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    target = layout.root / "results" / "demo" / file.name
    target.parent.mkdir(parents=True)
    shutil.copy(file, target)
    assert bench_report(layout, dry=True).code == 1
    assert (layout.root / "README.md").read_text() == README
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", _full_for_readme(Path.write_text))
        patch.setattr(Path, "write_bytes", _full_for_readme(Path.write_bytes))
        with pytest.raises(OSError, match="No space left"):
            bench_report(layout)
    assert (layout.root / "README.md").read_text() == README and not list(layout.root.rglob("*.partial"))
    assert bench_report(layout).code == 0
    body = json.loads(file.read_text())
    row = f"| fewer lines | {body['figures']['demo.twenty.base']} | {body['figures']['demo.twenty.patched']} |"
    page = (layout.root / "docs" / "results.md").read_text()
    assert row in page
    assert "| faster | - | - | - | no such machine |" in page
    readme = (layout.root / "README.md").read_text()
    assert "by hand" not in readme
    assert readme.startswith("before\n<!-- table: results -->\n| what |")
    assert bench_report(layout, dry=True).code == 0


def test_a_result_of_other_patches_that_make_the_same_trees_is_of_the_present_code(layout: Layout) -> None:
    """A refreshed series can differ patch by patch and end in the same files; a run on others is said to be old."""
    bench(layout, "demo", "pinned", Asked(only=("whole",)))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    body = json.loads(file.read_text())
    folder = layout.root / "results" / "demo"
    folder.mkdir(parents=True)
    before = {**body, "measured": dict.fromkeys(body["measured"], "other")}
    (folder / "a-2026-01-02.json").write_text(json.dumps(before))
    assert "not known to be of the present code of alpha, beta" in bench_report(layout).rows[0]["said"]
    (folder / "b-2026-01-01.json").write_text(json.dumps({**body, "figures": {}}))
    assert bench_report(layout).rows[0]["said"] == ""
    (folder / "a-2026-01-02.json").write_text(json.dumps(before | {"trees": body["trees"] | {"patched": "files 0"}}))
    assert "not known to be" in bench_report(layout).rows[0]["said"]


def test_only_the_series_in_the_arms_trees_have_to_be_the_present_ones(layout: Layout) -> None:
    """A run on the tree that ends with alpha says as much when beta has changed; one with alpha changed does not."""
    bench(layout, "demo", "pinned", Asked(only=("whole",)))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    body = json.loads(file.read_text())
    (workload,) = body["workloads"]
    assert workload["arms"] == ["base", "patched"]
    body["workloads"] = [workload | {"arms": ["base", "alpha"]}]
    (layout.root / "results" / "demo").mkdir(parents=True)
    for series, said in (("beta", ""), ("alpha", "not known to be of the present code of alpha")):
        body["measured"] = json.loads(file.read_text())["measured"] | {f"{series}@1.0": "other"}
        (layout.root / "results" / "demo" / file.name).write_text(json.dumps(body))
        assert bench_report(layout).rows[0]["said"] == said


def test_a_dry_run_is_no_result(layout: Layout) -> None:
    bench(layout, "demo", "pinned", Asked(smoke=True, only=("whole",)))
    (file,) = (layout.results / "bench" / "demo").glob("*.json")
    target = layout.root / "results" / "demo" / file.name
    target.parent.mkdir(parents=True)
    shutil.copy(file, target)
    assert [row["said"] for row in bench_report(layout).rows] == ["not measured yet", "no such machine"]
