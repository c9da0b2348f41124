"""One model of the recipe, both loops in one process, by ``recipe_ab.py``: time per step and host waits."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nosync.measure import writing

SMOKE = [
    "--points=400", "--faces=200", "--samples=4", "--steps=6", "--skip=2", "--data=memory", "--no-compile",
    "--precision=float32", "--override", "model.n_layers=1", "model.n_hidden=32", "model.n_head=2", "model.slice_num=4",
]  # fmt: skip


def main() -> int:
    parser = writing.parser(__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--measured", type=Path, help="a report of recipe_ab.py, in place of a run")
    options = parser.parse_args()
    with writing.Lines(options.out) as lines:
        report = json.loads(options.measured.read_text()) if options.measured else run(options)
        tell(lines, report, options.model)
    return 0


def run(options: Any) -> dict[str, Any]:
    """Start ``recipe_ab.py`` and take its report; it also writes one where it finds a wait or a difference."""
    script = Path(__file__).resolve().parents[1] / "recipe_ab.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report.json")
        argv = [sys.executable, str(script), "--base", str(options.tree), "--patched", str(options.patched_tree)]
        argv += ["--out", str(out), "--models", options.model, "--rounds", str(options.rounds), "--budget", "400"]
        subprocess.run(argv + (SMOKE if options.smoke else ["--steps", "40"]), check=False)
        return json.loads(out.read_text())


def tell(lines: writing.Lines, report: dict[str, Any], model: str) -> None:
    """The report's runs and waits as lines."""
    (of_model,) = (each for each in report["models"] if each["model"] == model)
    lines.write(versions={"torch": report["torch"], "device": report["device"]})
    if not of_model["bitwise_equal"]:
        lines.write(wrong="losses or metrics of the runs are not bitwise equal, or a step was not logged")
    done = dict.fromkeys(("base", "patched"), 0)
    for row in of_model["runs"]:
        quantity = f"unified-aero-readback.{model}_step"
        lines.time(quantity, row["wall_ms_per_step"], arm=row["loop"], run=done[row["loop"]])
        logged = f"unified-aero-readback.{model}_logged_step_time"
        lines.time(logged, 1e3 * row["step_time_s_mean"], arm=row["loop"], run=done[row["loop"]])
        done[row["loop"]] += 1
    for row in of_model.get("waits", []):
        if row["error"]:
            lines.write(wrong=f"the {row['loop']} loop under sync-debug {row['sync_debug_mode']}: {row['error']}")
        for step in row["per_step"] if row["sync_debug_mode"] == "warn" else ():
            lines.count(f"unified-aero-readback.{model}_waits", sum(step.values()), arm=row["loop"])


if __name__ == "__main__":
    sys.exit(main())
