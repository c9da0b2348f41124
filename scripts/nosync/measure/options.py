"""The options that both ways in take."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is run, and how often."""
    parser.add_argument("--only", nargs="*", default=[], metavar="WORKLOAD", help="these alone")
    parser.add_argument("--runs", type=int, default=0, help="runs of each arm, in place of the suite's number")
    parser.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="the workloads that run as one process a GPU, on N GPUs"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="start no workload after so many seconds, and no round of runs that would not end by then",
    )
    parser.add_argument("--smoke", action="store_true", help="a dry run: small sizes, numbers without meaning")


def typed(argv: Sequence[str], folders: Mapping[str, Path]) -> str:
    """A command line for a result file: folders, as typed, are named by what they hold, as in ``--out <out>``."""
    words = {folder: f"<{what}>" for what, folder in folders.items()}

    def named(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        word = words.get(Path(value)) if value else None
        return f"{option}{equals}{word}" if word else shlex.quote(argument)

    return " ".join(named(argument) for argument in argv)
