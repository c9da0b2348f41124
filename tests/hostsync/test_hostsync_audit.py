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


def audited(folder: Path, code: str, *options: str) -> int:
    script = folder / "script.py"
    script.write_text("import torch\nfrom torch.profiler import record_function\n" + code, encoding="utf-8")
    return audit.main([str(script), "--backend", "virtual", *options])


@pytest.mark.parametrize(
    ("error", "last"), [("RuntimeError('boom')", "RuntimeError: boom"), ("KeyboardInterrupt", "KeyboardInterrupt")]
)
def test_what_was_recorded_before_an_error_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, last: str
) -> None:
    code = f"torch.ones(3, device='cuda').sum().item()\nraise {error}\n"
    assert audited(tmp_path, code, "--json", str(tmp_path / "out.json")) == 1
    printed = capsys.readouterr()
    assert "1 host syncs at 1 sites" in printed.out
    assert len(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["sites"]) == 1
    assert printed.err.splitlines()[-1] == last
    assert 'script.py", line 4' in printed.err
    assert "hostsync" not in printed.err.replace(str(tmp_path), "")


def test_an_error_of_an_operator_has_none_of_the_tools_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audited(tmp_path, "torch.ones(3, device='cuda').view(7)\n") == 1
    printed = capsys.readouterr().err
    assert "script.py" in printed
    assert "torch_dispatch" not in printed


def test_the_message_of_sys_exit_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, "raise SystemExit('no such config')\n") == 1
    assert capsys.readouterr().err == "no such config\n"


NESTED = """
x = torch.ones(3, device="cuda")
def region(depth):
    with record_function("step"):
        if depth:
            region(depth - 1)
        x.sum().item()
region(1)
"""


def test_nested_regions_of_one_name_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, NESTED, "--region", "step") == 0
    assert "2 host syncs at 1 sites, in 1 recorded blocks" in capsys.readouterr().out


def test_an_unknown_region_is_exit_2_and_names_those_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, NESTED, "--region", "stpe") == 2
    assert "no region named 'stpe' was entered; regions seen: step" in capsys.readouterr().err


def test_a_warm_up_that_does_not_end_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, NESTED, "--region", "step", "--warm-up", "3") == 2
    assert "the warm-up was not over after 1 regions" in capsys.readouterr().err
    assert audited(tmp_path, "torch.ones(3)\n", "--warm-up", "3") == 2
    assert "the warm-up was not over after 0 optimizer steps" in capsys.readouterr().err


def test_a_missing_folder_for_json_is_said_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, "print('ran')\n", "--json", str(tmp_path / "no" / "out.json")) == 2
    printed = capsys.readouterr()
    assert "no such folder" in printed.err
    assert "ran" not in printed.out


def test_files_of_one_name_and_kinds_of_one_operator_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "triton"):  # a user's folder may have the name of a package that is looked through
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "loss.py").write_text("def f(x):\n    return x.sum().item()\n", encoding="utf-8")
    code = """
import importlib.util, pathlib
x = torch.ones(3, 3, device="cuda")
for folder in ("a", "triton"):
    spec = importlib.util.spec_from_file_location("loss", pathlib.Path(__file__).parent / folder / "loss.py")
    loss = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loss)
    loss.f(x)
torch.linalg.eigh(x)
"""
    assert audited(tmp_path, code) == 0
    printed = capsys.readouterr().out
    for row in ("a/loss.py:2  aten::_local", "triton/loss.py:2  aten::_local", "eigh [check]", "eigh [library]"):
        assert row in printed


def test_no_such_script_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([str(tmp_path / "no.py")]) == 2
    assert "no such script" in capsys.readouterr().err
