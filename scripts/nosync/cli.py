"""The command line; ``make help`` shows the same verbs by their make targets."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from nosync.errors import NosyncError
from nosync.git import check_version
from nosync.layout import Layout, find_layout
from nosync.measure.options import add_options as measure_options
from nosync.report import IMPOSSIBLE, Report


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns 0 (all holds), 1 (checked and wrong) or 2 (could not be carried out)."""
    _escape_what_a_stream_cannot_hold()
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["audit"]:
        # hands the rest to the script under audit, so its options are not ours to parse
        return int(import_module("nosync.hostsync.audit").main(words[1:]) or 0)
    options = _parser().parse_args(words)
    try:
        if not getattr(options, "base_tree", None):  # trees that were carried here need no git
            check_version()
        report: Report = options.verb(find_layout(), options)
        return _show(report, options.json)
    except NosyncError as error:
        return _refuse(error, options.json)
    except OSError as error:
        way = {28: "free some space", 30: "make the checkout writable", 13: "make the checkout writable"}
        return _refuse(NosyncError(str(error), "the file system refused", way.get(error.errno or 0, "")), options.json)
    except ModuleNotFoundError as error:
        if (error.name or "nosync").partition(".")[0] == "nosync":
            raise
        return _refuse(_no_package(error.name or ""), options.json)
    except KeyboardInterrupt:
        print("stopped; nothing is left half-way, run the same command again", file=sys.stderr)
        return 130


def _escape_what_a_stream_cannot_hold() -> None:
    """A terminal's encoding may lack a character of a report, and a file's name may be no text at all."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show(report: Report, as_json: bool) -> int:
    """The report, as far as anyone reads it: the verb has done its work when a pager ends early."""
    try:
        report.show(as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
    return report.code


def _no_package(name: str) -> NosyncError:
    return NosyncError(
        f"{sys.executable} has no package {name!r}",
        "PYTHON names an interpreter without what this verb needs",
        f"{sys.executable} -m pip install -r requirements/tool.txt\nor the same make command without PYTHON",
    )


def _refuse(error: NosyncError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.as_dict(), "exit": IMPOSSIBLE}))
    else:
        print(f"error: {error}", file=sys.stderr)
    return IMPOSSIBLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nosync", description="Patch series against host syncs, applied and proved.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    apply = _verb(verbs, "apply", _apply, "make the base and patched trees")
    apply.add_argument("project", nargs="?")
    _base_and_source(apply)
    apply.add_argument("--force", action="store_true", help="rebuild over local work, keeping it under a ref")

    status = _verb(verbs, "status", _status, "the matrix of series and bases")
    status.add_argument("project", nargs="?")

    refresh = _verb(verbs, "refresh", _refresh, "write a patched tree's commits into its patch files")
    refresh.add_argument("project")
    refresh.add_argument("--base", default="pinned")
    refresh.add_argument("--series", default="", help="the series of commits that are new")
    refresh.add_argument("--dry", action="store_true", help="only say what would change; exit 1 if anything")

    clean = _verb(verbs, "clean", _clean, "remove a project's trees")
    clean.add_argument("project")
    clean.add_argument("--base", default="all", help="all, pinned, latest, or a base's id")
    clean.add_argument("--force", action="store_true", help="even if they hold local work")

    test = _verb(verbs, "test", _test, "rebuild, check and test")
    test.add_argument("project", nargs="?")
    _base_and_source(test)
    test.add_argument("--strict", action="store_true", help="what could not run fails")

    drift = _verb(verbs, "drift", _drift, "every series against the newest release")
    drift.add_argument("project", nargs="?")

    rebase = _verb(verbs, "rebase", _rebase, "take series to another base")
    rebase.add_argument("project")
    rebase.add_argument("--to", default="", help="a base's id, a release, or a git ref of upstream")
    rebase.add_argument("--series", default="", help="this one alone")
    rebase.add_argument("--continue", dest="resume", action="store_true", help="go on after a conflict was resolved")
    rebase.add_argument("--abort", action="store_true", help="give a stopped rebase up")
    rebase.add_argument("--dry", action="store_true", help="only say what would become of each patch")
    rebase.add_argument("--force", action="store_true", help="believe that a merged patch left out by hand is there")

    export = _verb(verbs, "export", _export, "a pull request ready to send, per series")
    export.add_argument("project")
    export.add_argument("--series", default="", help="this one alone")
    _base_and_source(export)
    export.add_argument("--send", action="store_true", help="push the branch and open the pull request")

    wheels = _verb(verbs, "wheels", _wheels, "installable wheels of the patched trees")
    wheels.add_argument("project", nargs="?")
    _base_and_source(wheels)
    wheels.add_argument("--env", action="store_true", help="make an environment that holds them")

    _verb(verbs, "lint", _lint, "pins and patches, without building")
    audit = _verb(verbs, "audit-project", _audit_project, "host syncs of a project's sample step, base and patched")
    audit.add_argument("project")
    audit.add_argument("--base", default="pinned")
    _bench_verbs(verbs)
    verbs.add_parser("audit", help="host syncs of any script: nosync audit script.py -- args", add_help=False)
    return parser


def _verb(verbs, name: str, run: Callable[[Layout, argparse.Namespace], Report], text: str) -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.set_defaults(verb=run)
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    return parser


def _bench_verbs(verbs) -> None:  # type: ignore[no-untyped-def]
    bench = _verb(verbs, "bench", _bench, "a project's workloads, timed, counted and compared on both trees")
    bench.add_argument("project")
    bench.add_argument("--base", default="pinned")
    bench.add_argument("--base-tree", type=Path, help="take this folder as the base tree")
    bench.add_argument("--patched-tree", type=Path, help="and this one as the patched tree")
    bench.add_argument("--series-tree", action="append", default=[], metavar="SERIES=FOLDER", help="up to that series")
    bench.add_argument("--out", type=Path, help="the folder for the results")
    measure_options(bench)
    report = _verb(verbs, "bench-report", _bench_report, "docs/results.md and the README's table, from result files")
    report.add_argument("--dry", action="store_true", help="only say whether they would change; exit 1 if so")


def _base_and_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", default="pinned", help="pinned, latest, or a base's id (test: also all)")
    parser.add_argument("--source", default="", choices=("", "git", "archive"), help="take no other source")


# Verbs are imported when they run: a slip in one leaves the others usable, and `apply` stays quick.
def _apply(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.apply import apply

    return apply(layout, options.project or None, options.base, options.source, options.force)


def _status(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.status import status

    return status(layout, options.project or None)


def _refresh(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.refresh import refresh

    return refresh(layout, options.project, options.base, options.series, options.dry)


def _clean(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.clean import clean

    return clean(layout, options.project, options.base, options.force)


def _test(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.testing import test

    return test(layout, options.project or None, options.base, options.source, options.strict)


def _audit_project(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.auditing import audit_project

    return audit_project(layout, options.project, options.base)


def _bench(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.bench import Asked, bench

    given = (options.base_tree, options.patched_tree, options.series_tree, options.out)
    asked = Asked(options.only, options.runs, options.gpus, options.seconds, options.smoke, *given)
    return bench(layout, options.project, options.base, asked)


def _drift(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.drift import drift

    return drift(layout, options.project or None)


def _rebase(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.rebase import rebase

    given = (options.project, options.to, options.series, options.resume, options.abort, options.dry, options.force)
    return rebase(layout, *given)


def _export(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.export import export

    return export(layout, options.project, options.series, options.base, options.source, options.send)


def _wheels(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.wheels import wheels

    return wheels(layout, options.project or None, options.base, options.source, options.env)


def _lint(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.lint import lint

    return lint(layout)


def _bench_report(layout: Layout, options: argparse.Namespace) -> Report:
    from nosync.benchreport import bench_report

    return bench_report(layout, options.dry)
