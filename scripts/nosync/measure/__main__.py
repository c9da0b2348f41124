"""``python -m nosync.measure``: a suite on two trees, with the standard library alone (the workloads need theirs).

    python -m nosync.measure tests/liger-kernel/bench/bench.toml --base-id 0.8.5 \\
        --tree base=build/base/liger-kernel@0.8.5/src --tree patched=build/patched/liger-kernel@0.8.5/src --out DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nosync.measure.bench import Request, bench
from nosync.measure.options import add_options, typed
from nosync.measure.results import markdown
from nosync.measure.suite import SuiteError, load_suite


def main(argv: list[str] | None = None) -> int:
    """Exit 0: everything was measured (or is unavailable here); 1: something failed; 2: the request is wrong."""
    parser = argparse.ArgumentParser(prog="python -m nosync.measure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path, help="a bench.toml")
    parser.add_argument("--base-id", required=True)
    parser.add_argument("--tree", action="append", default=[], metavar="ARM=FOLDER", help="a tree's source root")
    parser.add_argument("--measured", action="append", default=[], metavar="SERIES@BASE=DIGEST")
    parser.add_argument("--out", type=Path, required=True)
    add_options(parser)
    options = parser.parse_args(argv)
    root = Path(__file__).resolve().parents[3]
    words = ["python", "-m", "nosync.measure", *(sys.argv[1:] if argv is None else argv)]
    try:
        trees = {arm: Path(folder) for arm, folder in (each.split("=", 1) for each in options.tree)}
        request = Request(
            suite=load_suite(options.suite),
            base=options.base_id,
            trees=trees,
            python=sys.executable,
            out=options.out,
            only=options.only,
            runs=options.runs,
            gpus=options.gpus,
            seconds=options.seconds,
            path=(root / "scripts", root / "tests"),
            smoke=options.smoke,
            measured=dict(each.rsplit("=", 1) for each in options.measured),
            command=typed(words, trees | {"out": options.out}),
        )
        file, body = bench(request)
    except (SuiteError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(body))
    print(f"written: {file} (.md, .svg)")
    return int(any(workload["state"] in ("failed", "busy") for workload in body["workloads"]))


if __name__ == "__main__":
    sys.exit(main())
