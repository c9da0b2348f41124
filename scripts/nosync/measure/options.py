"""The options that both ways in take."""

from __future__ import annotations

import argparse


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
