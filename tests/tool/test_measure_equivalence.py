"""The equivalence protocol: tolerances from the base alone, fixed before the patched runs; wrong patches are caught."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from measuring import npy, recording, runner, workload

from nosync.measure import equivalence
from nosync.measure.recording import Tensor, differences, read, relative_difference

# a loss that differs between runs by 1e-4 of itself, whose tree's "speed" is a factor on it; and an exact batch
RECORDING = """
sys.path.insert(0, {tests!r})
from measuring import recording
wobble = [0.0, 1e-4, -1e-4, 0.5e-4, -0.5e-4][number % 5]
tensors = {{}}
for step in range(2):
    tensors[f"{{step}}/loss/total"] = ((2,), "<f8", [speed * (1 + wobble), 0.5])
    tensors[f"{{step}}/gradients/w"] = ((1,), "<f4", [3.0])
    tensors[f"{{step}}/batch/natoms"] = ((2,), "<i8", [3, 5])
{more}
recording(options.recording, tensors)
"""


def recorder(folder: Path, more: str = "", **fields: object):  # type: ignore[no-untyped-def]
    body = RECORDING.format(tests=str(Path(__file__).parent), more=more)
    return workload(folder, body, kind="record", **fields)


def test_an_equal_patch_is_equivalent(tmp_path: Path) -> None:
    measured = equivalence.measure(runner(tmp_path, 1.0, 1.0), recorder(tmp_path), tmp_path / "out")
    assert measured.state == "measured", measured.reason
    outcome = measured.equivalence
    assert outcome["equivalent"]
    kinds = [pair["kind"] for pair in outcome["pairs"]]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    assert counts == {"base vs patched": 6, "base vs base": 3, "patched vs patched": 1}


def test_tolerances_are_three_times_the_bases_spread_and_written_before_the_patched_runs(tmp_path: Path) -> None:
    """The patched run looks for the file, and finds it whole."""
    file = tmp_path / "out" / "tolerances.json"
    looks = f"if speed == 1.0 + 1e-9:\n    assert json.loads(Path({str(file)!r}).read_text())['tolerances']"
    measured = equivalence.measure(runner(tmp_path, 1.0, 1.0 + 1e-9), recorder(tmp_path, looks), tmp_path / "out")
    assert measured.good, measured.reason
    tolerances = json.loads(file.read_text())["tolerances"]
    assert tolerances["0/loss"] == pytest.approx(3 * 2e-4, rel=1e-3)
    assert tolerances["0/gradients"] == 1e-5  # the floor: the base repeats it bit by bit
    assert [run.arm for run in measured.runs[:3]] == ["base"] * 3
    assert [run.arm for run in measured.runs[3:]] == ["base", "patched", "base", "patched", "base"]


def test_a_wrong_patch_is_caught_with_both_budgets(tmp_path: Path) -> None:
    """One per cent off, where the base is within 0.02 per cent of itself: every cross pair, no control pair."""
    measured = equivalence.measure(runner(tmp_path, 1.0, 1.01), recorder(tmp_path), tmp_path / "out")
    outcome = measured.equivalence
    assert not outcome["equivalent"]
    over = {pair["kind"] for pair in outcome["pairs"] if pair["exceedances"]}
    assert over == {"base vs patched"}
    assert {each["quantity"] for each in outcome["exceedances"]} == {"loss"}
    first = outcome["exceedances"][0]
    assert first["difference"] > first["declared"] == pytest.approx(6e-4, rel=1e-3)
    assert first["fresh"] > 0
    assert outcome["quantities"]["loss"]["base vs patched"]["difference"] == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("if speed == 2.0: tensors['0/batch/natoms'] = ((2,), '<i8', [3, 6])", "not equal"),
        ("if speed == 2.0: tensors['0/batch/natoms'] = ((1,), '<i8', [3])", "(2,)"),
        ("if speed == 2.0: del tensors['1/gradients/w']", "only in one"),
        ("if speed == 2.0: tensors['0/gradients/w'] = ((1,), '<f8', [3.0])", "<f8"),
    ],
)
def test_shapes_names_and_integers_are_exact(tmp_path: Path, more: str, said: str) -> None:
    """Whatever the tolerances say."""
    given = recorder(tmp_path, more, factor=1e9)
    outcome = equivalence.measure(runner(tmp_path, 1.0, 2.0), given, tmp_path / "out").equivalence
    assert not outcome["equivalent"]
    assert any(said in line for pair in outcome["pairs"] for line in pair["not_exact"])


def test_bitwise_allows_nothing(tmp_path: Path) -> None:
    """Not even what the base differs from itself by."""
    given = recorder(tmp_path, "", bitwise=True)
    assert not equivalence.measure(runner(tmp_path, 1.0, 1.0), given, tmp_path / "out").equivalence["equivalent"]
    steady = recorder(tmp_path, "for s in range(2): tensors[f'{s}/loss/total'] = ((1,), '<f8', [speed])", bitwise=True)
    assert equivalence.measure(runner(tmp_path, 1.0, 1.0), steady, tmp_path / "out").equivalence["equivalent"]


def test_a_nan_in_the_patched_tree_exceeds(tmp_path: Path) -> None:
    more = "if speed == 2.0: tensors['0/gradients/w'] = ((1,), '<f4', [float('nan')])"
    outcome = equivalence.measure(
        runner(tmp_path, 1.0, 2.0), recorder(tmp_path, more, factor=1e9), tmp_path
    ).equivalence
    assert [each["difference"] for each in outcome["exceedances"] if each["quantity"] == "gradients"]


def test_a_recording_that_fails_gives_no_verdict(tmp_path: Path) -> None:
    crashing = recorder(tmp_path, "if speed == 2.0: raise SystemExit(1)")
    measured = equivalence.measure(runner(tmp_path, 1.0, 2.0), crashing, tmp_path / "out")
    assert (measured.state, measured.equivalence) == ("failed", {})
    assert "patched, recording 1" in measured.reason


def test_a_base_that_is_not_exact_where_it_must_be_cannot_be_a_measure(tmp_path: Path) -> None:
    changing = recorder(tmp_path, "tensors['0/batch/natoms'] = ((2,), '<i8', [number, 5])")
    measured = equivalence.measure(runner(tmp_path, 1.0, 1.0), changing, tmp_path / "out")
    assert measured.state == "failed"
    assert "natoms" in measured.reason


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([math.nan, 2.0], [math.nan, 2.5], 0.25),
        ([math.nan, 2.0], [1.0, 2.0], math.inf),
        ([math.inf, 2.0], [math.inf, 2.0 + 2**-20], 2**-21),
        ([math.inf, 2.0], [-math.inf, 2.0], math.inf),
        ([0.0, 0.0], [0.0, -0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-9], math.inf),
    ],
)
@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_relative_difference(a: list[float], b: list[float], difference: float, dtype: str) -> None:
    """The largest |a - b| over the largest |a|; NaN equals NaN, an infinity itself."""
    one, other = (_tensor(dtype, elements) for elements in (a, b))
    assert relative_difference(one, other) == pytest.approx(difference)


def test_half_precision_and_flags(tmp_path: Path) -> None:
    recording(tmp_path / "a.npz", {"0/x/t": ((2,), "<f2", [1.0, 2.0]), "0/mask/t": ((2,), "|b1", [0, 1])})
    recording(tmp_path / "b.npz", {"0/x/t": ((2,), "<f2", [1.0, 2.5]), "0/mask/t": ((2,), "|b1", [0, 0])})
    found, wrong = differences(read(tmp_path / "a.npz"), read(tmp_path / "b.npz"))
    assert found == {(0, "x"): 0.25}
    assert wrong == ["0/mask/t: not equal"]


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"a\.npz"):
        read(tmp_path / "a.npz")


def _tensor(dtype: str, elements: list[float]) -> Tensor:
    raw = npy((len(elements),), dtype, elements)
    return Tensor((len(elements),), dtype, raw[raw.index(b"\n") + 1 :])
