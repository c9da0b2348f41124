"""Suites, what a bench writes, and the tables of claims: no number without a measurement, no path of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from measuring import runner, workload

from nosync.measure import bench, claims, options, plots, results
from nosync.measure.__main__ import main
from nosync.measure.ab import Measured
from nosync.measure.claims import Claim, ResultFile
from nosync.measure.plots import Span
from nosync.measure.suite import Suite, SuiteError, Workload, load_suite

TIMED = "for step in range(3):\n    lines.time('part.step', speed + step / 100)\nlines.write(versions={'torch': '2.x'})"


def request(folder: Path, *workloads: Workload, **more: object) -> bench.Request:
    given = runner(folder)
    suite = Suite(folder / "bench.toml", "project", workloads)
    fields = {"suite": suite, "base": "1.0", "trees": given.trees, "python": sys.executable, "out": folder / "out"}
    return bench.Request(**fields | {"path": given.path, "command": f"bench {folder}", "smoke": True} | more)


# ---- suites ----


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('kind = "slow"', "kind 'slow'"),
        ('kind = "time"\nscript = "gone.py"', "there is no gone.py"),
        ('kind = "time"\nrunz = 3', "no field runz"),
    ],
)
def test_a_wrong_suite_says_what_is_wrong(tmp_path: Path, line: str, said: str) -> None:
    script = "" if "script" in line else 'script = "a.py"\n'
    (tmp_path / "a.py").touch()
    (tmp_path / "bench.toml").write_text(f'prefix = "p"\n[[workload]]\nname = "a"\n{script}{line}\n')
    with pytest.raises(SuiteError, match=said):
        load_suite(tmp_path / "bench.toml")


def test_the_projects_suites_can_be_read() -> None:
    """Every bench.toml of the repository, with a script behind each workload."""
    files = sorted(Path(__file__).resolve().parents[1].glob("*/bench/bench.toml"))
    assert {load_suite(file).prefix for file in files} == {"fairchem", "torch-sim", "liger-kernel", "physicsnemo"}


def test_gpus_asks_for_the_workloads_with_ranks_alone(tmp_path: Path) -> None:
    """Each with ``--ranks`` behind its arguments, so that it wins over one of its own, and with a name of its own."""
    job = workload(tmp_path, TIMED, name="job", ranks=True, arguments=("--ranks", "2"), gpus=2)
    suite = Suite(tmp_path / "bench.toml", "p", (workload(tmp_path, TIMED, name="other"), job))
    assert [each.name for each in suite.chosen(())] == ["other", "job"]
    (eight,) = suite.chosen((), gpus=8)
    assert (eight.name, eight.gpus, eight.arguments) == ("job-8-gpus", 8, ("--ranks", "2", "--ranks", "8"))
    with pytest.raises(SuiteError, match=r"no such workload .* on 8 GPUs.*: job"):
        suite.chosen(("other",), gpus=8)


# ---- what a bench writes ----


def test_single_steps_that_differ_are_a_range(tmp_path: Path) -> None:
    """Waits and collectives of a timed workload's steps: fewest to most, and no failure where they are not alike."""
    told = TIMED + "\nlines.write(waits=int(speed))\nlines.write(waits=7)\nlines.write(collectives=int(speed) - 1)"
    file, body = bench.bench(request(tmp_path, workload(tmp_path, told, name="job", runs=2), gpus=0))
    assert body["figures"]["project.job.waits.base"] == "7 to 10"
    assert body["figures"]["project.job.collectives.patched"] == "8"
    assert "7 to 10 waits a step, 9 collectives a step" in file.with_suffix(".md").read_text()


def test_a_bench_writes_json_markdown_and_a_plot(tmp_path: Path) -> None:
    file, body = bench.bench(request(tmp_path, workload(tmp_path, TIMED, runs=2), measured={"s@1.0": "digest"}))
    assert json.loads(file.read_text()) == body
    assert body["figures"]["project.part.step.base"] == "10.01 ms"
    assert body["figures"]["project.part.step.patched"] == "9.01 ms"
    assert body["figures"]["project.part.step.ratio"] == "0.900"
    assert body["measured"] == {"s@1.0": "digest"}
    assert "| part.step | 10.01 ms | 9.01 ms | 0.900 |" in file.with_suffix(".md").read_text()
    dots = ElementTree.fromstring(file.with_suffix(".svg").read_text()).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(dots)) == 4  # two runs an arm


def test_no_folder_of_this_machine_is_in_a_result(tmp_path: Path) -> None:
    """Results are committed."""
    failing = workload(tmp_path, "raise OSError(f'{options.tree}/src/a.py and {sys.prefix}/lib')", name="failing")
    file, body = bench.bench(request(tmp_path, failing))
    said = body["workloads"][0]["reason"]
    assert "<base>/src/a.py" in said
    for folder in (str(tmp_path / "base"), sys.prefix, str(Path(__file__).resolve().parents[2])):
        assert folder + "/" not in file.read_text()


def test_a_command_names_folders_by_what_they_hold() -> None:
    folders = {"base": Path("trees/a"), "flce": Path("trees/c"), "out": Path("there")}
    words = ["bench", "--base-tree", "./trees/a/", "--series-tree", "flce=trees/c", "--out", "there", "--only", "a b"]
    said = "bench --base-tree <base> --series-tree flce=<flce> --out <out> --only 'a b'"
    assert options.typed(words, folders) == said


def test_a_failed_workload_has_its_reason_and_leaves_the_others(tmp_path: Path) -> None:
    failing = workload(tmp_path, "raise SystemExit(7)", name="failing")
    file, body = bench.bench(request(tmp_path, failing, workload(tmp_path, TIMED, runs=1)))
    assert [each["state"] for each in body["workloads"]] == ["failed", "measured"]
    assert not any("failing" in name for name in body["figures"])
    assert "**No number: failed.**" in file.with_suffix(".md").read_text()


def test_what_did_not_start_says_why(tmp_path: Path) -> None:
    timed = workload(tmp_path, TIMED)
    _, late = bench.bench(request(tmp_path, timed, seconds=0.0))
    _, treeless = bench.bench(request(tmp_path, Workload(**vars(timed) | {"arms": ("base", "series")})))
    _, small = bench.bench(request(tmp_path, Workload(**vars(timed) | {"gpus": 99}), smoke=False))
    reasons = [body["workloads"][0]["reason"] for body in (late, treeless, small)]
    assert reasons[0] == "the 0 seconds were over"
    assert reasons[1] == "needs the tree series, which was not given"
    assert reasons[2].startswith("needs 99 GPUs")
    assert not any(body["figures"] for body in (late, treeless, small))


def test_recordings_give_pairs_and_worst_differences() -> None:
    pairs = [("base vs patched", 1), ("base vs patched", 0), ("base vs base", 0)]
    outcome = {
        "equivalent": False,
        "pairs": [{"kind": k, "pair": [0, i], "exceedances": n, "not_exact": []} for i, (k, n) in enumerate(pairs)],
        "exceedances": [
            {"kind": "base vs patched", "pair": [0, 0], "step": 2, "quantity": "loss", "difference": 7.55e-4,
             "declared": 6.26e-4, "fresh": 1.86e-3}
        ],
        "quantities": {"loss": {"base vs patched": {"difference": 7.55e-4, "step": 2, "tolerance": 6.26e-4}}},
    }  # fmt: skip
    lines = "\n".join(results.equivalence_lines(outcome))
    assert "base vs patched: 1 of 2 pairs within tolerance" in lines
    assert "7.55e-04, declared budget 6.26e-04, budget of the later base runs 1.86e-03" in lines
    found = results.figures("p", [Measured(Workload("values", "record", Path("values.py")), equivalence=outcome)])
    assert found["p.values.exceeded.patched"] == "7.55e-04 against 6.26e-04 (1.86e-03)"
    assert found["p.values.exceeded.base"] == "none"


def test_the_standard_library_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way in of a GPU host: no verb, no project; its exit code says whether anything failed."""
    given = runner(tmp_path)
    for name, body in (("good", TIMED), ("bad", "raise SystemExit(1)")):
        workload(tmp_path, body, name=name)
    entries = (f'[[workload]]\nname = "{n}"\nkind = "time"\nscript = "{n}.py"\nruns = 1\n' for n in ("good", "bad"))
    (tmp_path / "bench.toml").write_text('prefix = "p"\n' + "".join(entries))
    argv = [str(tmp_path / "bench.toml"), "--base-id", "1.0", "--out", str(tmp_path / "out"), "--smoke"]
    argv += [word for arm, tree in given.trees.items() for word in ("--tree", f"{arm}={tree}")]
    assert main([*argv, "--only", "good"]) == 0
    assert "part.step" in capsys.readouterr().out
    assert main(argv) == 1
    assert main([*argv, "--only", "other"]) == 2


def test_a_bench_that_is_stopped_takes_its_workload_along(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hanging = f"import os, time\nPath({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    given = runner(tmp_path)
    workload(tmp_path, hanging, name="hanging")
    (tmp_path / "bench.toml").write_text(
        'prefix = "p"\n[[workload]]\nname = "h"\nkind = "time"\nscript = "hanging.py"\n'
    )
    argv = [sys.executable, "-m", "nosync.measure", str(tmp_path / "bench.toml"), "--base-id=1", f"--out={tmp_path}"]
    argv += ["--smoke", *(f"--tree={arm}={tree}" for arm, tree in given.trees.items())]
    process = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": str(given.path[0])})
    end = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 143
    status = Path("/proc", pid.read_text(), "stat")
    assert not status.exists() or status.read_text().split()[2] in "ZX"


# ---- pictures ----


def test_a_timeline_marks_each_host_wait() -> None:
    lanes = [
        ("base", [Span("wait", 1.0, 2.0, "loss.py:129"), Span("device", 0.5, 3.0, "kernel <a>")]),
        ("patched", [Span("device", 0.5, 2.0, "kernel")]),
    ]
    picture = ElementTree.fromstring(plots.timeline("a step", lanes))
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "1 host waits, 2.00 ms blocked" in texts
    assert "0 host waits, 0.00 ms blocked" in texts
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}path"))) == 1
    assert texts.index("base") < texts.index("patched")


def test_an_empty_timeline_is_a_picture_too() -> None:
    ElementTree.fromstring(plots.timeline("nothing", [("base", []), ("patched", [])], unit="events"))
    ElementTree.fromstring(plots.runs("nothing", {}))


# ---- claims ----


def result(date: str, figures: dict[str, str], **more: object) -> ResultFile:
    body = {"suite": "p", "base": "1.0", "date": date, "command": "bench p", "figures": figures, "workloads": []}
    machine = {"gpus": ["NVIDIA H200"], "driver": "1"}
    return ResultFile(f"results/p/h200-{date}.json", body | {"machine": machine, "trees": {}} | more)


def test_a_claim_takes_its_figures_from_the_newest_file() -> None:
    files = [
        result(
            "2026-02-02", {"p.a.base": "10 ms", "p.a.patched": "8 ms", "p.a.ratio": "0.800", "p.a.verdict": "faster"}
        ),
        result("2026-01-01", {"p.a.base": "11 ms", "p.a.patched": "9 ms", "p.b.base": "3", "p.b.patched": "0"}),
    ]
    one, other = claims.rows([Claim("p", "one", "p.a", readme="A"), Claim("p", "other", "p.b")], files)
    assert (one.base, one.patched, one.ratio, one.said) == ("10 ms", "8 ms", "0.800", "faster")
    assert (other.base, other.patched, other.ratio) == ("3", "0", "")
    page = claims.page([one, other])
    assert "| one | 10 ms | 8 ms | 0.800 | faster | [1] |" in page
    assert "1. [results/p/h200-2026-02-02.json]" in page
    assert "| A | 10 ms | 8 ms | 0.800 |" in claims.readme_table([one, other])


def test_a_claim_without_a_number_has_a_reason() -> None:
    """Its own, the workload's, or that nobody has run it; never silence."""
    failed = {"name": "b", "state": "unavailable", "reason": "no such package"}
    files = [result("2026-01-01", {}, workloads=[failed | {"versions": {}}])]
    given = [Claim("p", "x", reason="needs 8 GPUs"), Claim("p", "y", "p.b_ms"), Claim("p", "z", "p.c")]
    rows = claims.rows(given, files)
    assert [row.said for row in rows] == ["needs 8 GPUs", "unavailable: no such package", claims.NOT_YET]
    assert not any(row.base or row.patched for row in rows)


def test_a_result_of_other_code_says_so() -> None:
    file = ResultFile("results/p/a.json", result("2026-01-01", {"p.a.base": "1", "p.a.patched": "0"}).body, ("s",))
    (row,) = claims.rows([Claim("p", "x", "p.a", readme="waits")], [file])
    assert "not known to be of the present code of s" in row.said
    assert "not known to be of the present code of s |" in claims.readme_table([row])


def test_a_result_of_the_present_code_goes_before_a_newer_one_of_other_code() -> None:
    new = ResultFile("results/p/new.json", result("2026-02-02", {"p.a.base": "1", "p.a.patched": "0"}).body, ("s",))
    old = result("2026-01-01", {"p.a.base": "3", "p.a.patched": "2"})
    (row,) = claims.rows([Claim("p", "x", "p.a")], [new, old])
    assert (row.base, row.said) == ("3", "")


def test_two_figures_of_their_own_names_and_their_ratio() -> None:
    files = [result("2026-01-01", {"p.indexing": "60 µs", "p.where": "15 µs"})]
    (row,) = claims.rows([Claim("p", "x", base="p.indexing", patched="p.where")], files)
    assert (row.base, row.patched, row.ratio) == ("60 µs", "15 µs", "0.250")


@pytest.mark.parametrize(
    "entry", ['claim = "x"', 'claim = "x"\nfigure = "a"\nreason = "b"', 'claim = "x"\nfigur = "a"']
)
def test_a_claim_must_be_whole(tmp_path: Path, entry: str) -> None:
    (tmp_path / "claims.toml").write_text(f'[[claim]]\nproject = "p"\n{entry}\n')
    with pytest.raises(ValueError, match=r"claims\.toml"):
        claims.load_claims(tmp_path / "claims.toml")


def test_a_table_is_put_between_its_markers() -> None:
    text = "a\n<!-- table: results -->\nold\n<!-- end -->\nb <!-- end -->\n"
    assert claims.put_between(text, "results", "new") == (
        "a\n<!-- table: results -->\nnew\n<!-- end -->\nb <!-- end -->\n"
    )
    with pytest.raises(ValueError, match="there is no"):
        claims.put_between("a", "results", "new")
