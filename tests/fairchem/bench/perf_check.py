"""Upstream's perf_check training on one tree, by ``perf_check_step.py``: step times and waits, or recordings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosync.measure import writing

STEPS, COUNTED, RECORDED = 250, 1, 5


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--name", default="perf_check", help="of the quantity")
    parser.add_argument("--configs", type=Path, help="the configs folder; default: beside the tree's source root")
    options, overrides = parser.parse_known_args()
    with writing.Lines(options.out) as lines, tempfile.TemporaryDirectory() as folder:
        configs = find_configs(lines, options.configs, options.tree)
        if configs is None:
            return 0
        if options.mode == "record":
            record(options, overrides, configs, Path(folder), lines)
        else:
            time(options, overrides, configs, Path(folder), lines)
    return 0


def find_configs(lines: writing.Lines, given: Path | None, *roots: Path) -> Path | None:
    """The configs folder: that given, or the first beside a source root; None, and a line that says why, without."""
    for folder in [given] if given else [root.parent / "configs" for root in roots]:
        if (folder / "uma").is_dir():
            return folder
    lines.write(unavailable="this base comes from an archive, which has no configs")
    return None


def on_gpus(name: str, ranks: int) -> str:
    """A quantity's name, with the number of GPUs if there are several."""
    return name + (f"_{ranks}_gpus" if ranks > 1 else "")


def time(options: Any, overrides: list[str], configs: Path, folder: Path, lines: writing.Lines) -> None:
    """Step times of the whole run (the suite drops the warm-up); after them one more step's waits and collectives."""
    steps = 4 if options.smoke else STEPS
    report = train(options, overrides, configs, folder, [0, steps, COUNTED])
    tell(lines, report)
    name = on_gpus(f"{options.name}.step", options.ranks)
    for ms in report["step_ms"]:
        lines.time(name, ms)


def record(options: Any, overrides: list[str], configs: Path, folder: Path, lines: writing.Lines) -> None:
    """What upstream's recorder wrote, rank by rank and step by step."""
    sums = folder / "checksums"
    recorder = f"+runner.train_eval_unit.debug_checksums_save_path={sums}"
    tell(lines, train(options, [*overrides, recorder], configs, folder, [0, RECORDED, 0]))
    recorded: dict[str, np.ndarray] = {}
    for file in sorted(sums.glob("*.txt")):
        found = re.fullmatch(r"ddp\d+\.(\d+)_gp.*_step(\d+)", file.stem)
        if found and int(found[2]) < RECORDED:
            recorded |= read(file, *map(int, found.groups()))
    np.savez(options.recording, **recorded)


def read(file: Path, rank: int, step: int) -> dict[str, np.ndarray]:
    """One file of the recorder: the loss, and by tensor the mean magnitudes of parameters and gradients."""
    rows = [line.split(",") for line in file.read_text().splitlines()]
    of_kind = {kind: {row[2]: float(row[3]) for row in rows if row[0] == kind} for kind in ("Param", "Grad")}
    loss = next(float(row[1]) for row in rows if row[0] == "Loss")
    return {
        f"{step}/loss/rank{rank}": np.array([loss]),
        f"{step}/parameters/rank{rank}": np.array(list(of_kind["Param"].values())),
        f"{step}/gradients/rank{rank}": np.array(list(of_kind["Grad"].values())),
        f"{step}/names/rank{rank}": np.array([*of_kind["Param"], *of_kind["Grad"]]),
    }


def train(options: Any, overrides: list[str], configs: Path, folder: Path, steps: list[int]) -> dict[str, Any]:
    """Run the job; warm-up, timed and counted steps. Its report."""
    script, out = Path(__file__).resolve().parents[1] / "perf_check_step.py", folder / "report.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    argv = [sys.executable, str(script), "--base", str(options.tree), "--configs", str(configs), "--json", str(out)]
    argv += ["--device", device, "--ranks", str(options.ranks), "--corpus", str(folder / "corpus")]
    argv += [f"--{name}={number}" for name, number in zip(("warmup", "timed", "counted"), steps, strict=True)]
    if options.smoke:
        overrides = [*overrides, "num_experts=4"]
    subprocess.run([*argv, *overrides], check=True)
    return json.loads(out.read_text())["base"][0]


def tell(lines: writing.Lines, report: dict[str, Any]) -> None:
    """What ran, how much memory it took, and what its counted steps waited for and sent."""
    lines.write(versions={"torch": report["torch"], "device": report["device"]})
    if report.get("peak_memory_mb"):
        lines.write(memory=report["peak_memory_mb"] * 2**20)
    for step in report["waits"]:
        lines.write(waits=step["count"])
    for number in report["collectives"]:
        lines.write(collectives=number)


if __name__ == "__main__":
    sys.exit(main())
