"""``nosync audit``: the host syncs of a script, by call site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nosync.hostsync import audit

SCRIPT = """
import sys
import torch
model = torch.nn.Linear(3, 2).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.profiler.record_function("step"):
        model(torch.ones(4, 3, device="cuda")).sum().backward()
        optimizer.step()
        float(model.weight.sum()), bool(model.bias.sum() > 0)
        model.bias.tolist()
assert sys.argv[1:] == ["--its", "own"], sys.argv
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def sites(script: Path, *options: str) -> list[dict[str, object]]:
    out = script.with_suffix(".json")
    code = audit.main([str(script), "--backend", "virtual", "--json", str(out), *options, "--", "--its", "own"])
    assert code == 0
    return json.loads(out.read_text(encoding="utf-8"))["sites"]


def test_the_whole_run(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sites(script)
    assert [(row["line"], row["operator"], row["waits"]) for row in rows] == [
        (10, "aten::_local_scalar_dense", 6),
        (11, "aten::_to_copy", 3),
        (4, "aten::_to_copy", 2),
    ]
    printed = capsys.readouterr().out
    assert "11 host syncs at 3 sites" in printed
    assert "model.bias.tolist()" in printed


def test_json_alone_on_standard_output(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT + "print('of its own')\n", encoding="utf-8")
    assert audit.main([str(script), "--backend", "virtual", "--json", "-", "--", "--its", "own"]) == 0
    out, err = capsys.readouterr()
    assert sum(site["waits"] for site in json.loads(out)["sites"]) == 11 and "of its own" in err


def test_after_warm_up_steps(script: Path) -> None:
    assert sum(row["waits"] for row in sites(script, "--warm-up", "2")) == 6  # type: ignore[misc]


def test_a_region_after_warm_up(script: Path) -> None:
    rows = sites(script, "--region", "step", "--warm-up", "1")
    assert [row["waits"] for row in rows] == [4, 2]


def test_the_timeline_without_a_gpu_is_the_order_of_the_waits(script: Path) -> None:
    sites(script, "--region", "step", "--warm-up", "2")
    timeline = json.loads(script.with_suffix(".json").read_text(encoding="utf-8"))["timeline"]
    assert timeline["unit"] == "events"
    assert [span[:2] for span in timeline["spans"]] == [["wait", 0], ["wait", 1], ["wait", 2]]
    assert timeline["spans"][2][3] == "train.py:11 aten::_to_copy"


def test_a_script_that_fails_is_exit_1(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    assert audit.main([str(script), "--backend", "virtual"]) == 1


def test_no_such_script_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([str(tmp_path / "no.py")]) == 2
    assert "no such script" in capsys.readouterr().err
