"""perf_check's training step of two trees in turns in one process, by ``perf_check_ab.py``: waits, time, operators."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from perf_check import find_configs, on_gpus

from nosync.measure import writing


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("--configs", type=Path, help="the configs folder; default: beside a tree's source root")
    parser.add_argument("--name", required=True, help="of the quantities")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1)
    options, overrides = parser.parse_known_args()
    with writing.Lines(options.out) as lines, tempfile.TemporaryDirectory() as folder:
        configs = find_configs(lines, options.configs, options.tree, options.patched_tree)
        if configs is None:
            return 0
        report = run(options, configs, overrides, Path(folder, "report.json"))
        tell(lines, report, on_gpus(options.name, options.ranks))
    return 0


def run(options: Any, configs: Path, overrides: list[str], out: Path) -> dict[str, Any]:
    """Start ``perf_check_ab.py`` and take its report."""
    script = Path(__file__).resolve().parents[1] / "perf_check_ab.py"
    argv = [sys.executable, str(script), "--configs", str(configs), "--json", str(out), f"--rounds={options.rounds}"]
    argv += [f"--ranks={options.ranks}", "--first=5", "--steps=10", "--counted=1"]
    argv += ["--smoke"] if options.smoke else []
    subprocess.run([*argv, f"base={options.tree}", f"patched={options.patched_tree}", *overrides], check=True)
    return json.loads(out.read_text())


def tell(lines: writing.Lines, report: dict[str, Any], name: str) -> None:
    """The report as lines; a round is a run, since rounds of the trees take turns."""
    lines.write(versions={"torch": report["torch"], "device": report["device"]})
    for arm, tree in report["trees"].items():
        for number, ms in enumerate(tree["ms_per_step_of_rounds"]):
            lines.time(f"{name}.ms", ms, arm=arm, run=number)
        lines.count(f"{name}.operators", tree["operators_of_a_step"], arm=arm)
        if report["ranks"] > 1:
            lines.count(f"{name}.collectives", tree["collectives_of_a_step"], arm=arm)
        for step in tree["waits"]:
            lines.count(f"{name}.waits", step["count"], arm=arm)
        if torch.cuda.is_available():
            lines.count(f"{name}.peak_mib", round(tree["peak_memory_mb"]), arm=arm)


if __name__ == "__main__":
    sys.exit(main())
