"""How long `apply` takes for a long series, against plain `git am` of the same patches (not a test: run by hand).

    PYTHONPATH=scripts:tests/tool build/env/check/bin/python tests/tool/bench_apply.py [--patches 1000] [--rounds 5]

A synthetic upstream with 50 files of 400 lines; each patch changes two lines of one file. Both start from nothing:
`apply` makes both trees from the git source; `git am` clones, checks the base out and applies. Rounds are
interleaved, and each begins with the other of the two. Wall time, and processor time of all processes (which other
work on the machine disturbs less), in seconds: smallest, median, largest, and the ratio of the medians (goal: at most
1.2).

Nothing is removed before the end: for each file that it makes, ext4 looks through the inodes freed in the last five
seconds, so that a removal slows down whatever comes next, by more than the difference sought. `--folder` of a file
system in memory (/dev/shm) leaves the disk out altogether.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from synthetic import BaseEntry, Files, World, commit, git, make_patches_quickly, new_repo

FILES, LINES = 50, 400
SETTLE = 6.0  # seconds before a run, in which what was freed before comes of age


def content(name: int, changed: int = 0) -> str:
    """The file's text after this many changes to it."""
    lines = [f"file {name} line {number}\n" for number in range(LINES)]
    for number in range(changed):
        place = (number * 37) % (LINES - 1)
        lines[place] = f"file {name} changed {number}\n"
        lines[place + 1] = f"file {name} changed {number} too\n"
    return "".join(lines)


def make_world(folder: Path, n_patches: int) -> tuple[World, list[Path]]:
    """A checkout with one series of that many patches, and the patch files."""
    repo = new_repo(folder / "upstream")
    first = commit(repo, {f"src/demo/f{name}.py": content(name) for name in range(FILES)}, "1.0")
    steps: list[tuple[Files, str]] = []
    for number in range(n_patches):
        name, changed = number % FILES, number // FILES + 1
        steps.append(({f"src/demo/f{name}.py": content(name, changed)}, f"f{name}: change {changed}\n\nWhy.\n"))
    world = World(folder / "checkout", repo, f"file://{repo}", [BaseEntry("1.0", first, pinned=True)], paths=("src",))
    world.root.mkdir()
    world.save()
    series = world.add_series("long")
    world.add_patches("long", "1.0", make_patches_quickly(repo, first, steps))
    return world, sorted((series / "1.0").glob("*.patch"))


def seconds(run: Callable[[], object]) -> dict[str, float]:
    wall, before = time.perf_counter(), os.times()
    run()
    after = os.times()
    return {"wall": time.perf_counter() - wall, "processor": sum(after[:4]) - sum(before[:4])}


def plain_git(world: World, patches: list[Path], folder: Path) -> None:
    git(folder.parent, "clone", "-q", "--no-checkout", world.url, str(folder))
    git(folder, "checkout", "-q", "--detach", world.bases[0].commit)
    git(folder, "am", "-q", *map(str, patches))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--patches", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make it all (else the folder for temporary files)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"git am": [], "apply": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        world, patches = make_world(Path(name), options.patches)
        world.apply()  # clones the submodule
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            os.rename(world.root / "build", Path(name, f"build-{number}"))
            plain = Path(name, f"plain-{number}")
            pair = [("apply", world.apply), ("git am", partial(plain_git, world, patches, plain))]
            for what, run in pair if number % 2 else reversed(pair):
                time.sleep(SETTLE)
                runs[what].append(seconds(run))
    report(runs, options)
    return 0


def report(runs: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    ratios = {}
    for kind in ("wall", "processor"):
        times = {what: [run[kind] for run in each] for what, each in runs.items()}
        ratios[kind] = statistics.median(times["apply"]) / statistics.median(times["git am"])
        if not options.json:
            for what, each in times.items():
                print(f"{kind:9} {what:8} {min(each):7.2f} {statistics.median(each):7.2f} {max(each):7.2f} s")
    if options.json:
        print(json.dumps({"patches": options.patches, "runs": runs, "ratios": ratios}))
    else:
        shown = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items())
        print(f"ratio of the medians: {shown} ({options.patches} patches, {options.rounds} rounds)")


if __name__ == "__main__":
    sys.exit(main())
