"""``nosync audit script.py -- args``: the host syncs of any script, by call site, largest first.

By default the whole run is recorded, after ``--warm-up`` optimizer steps. With ``--region NAME`` only what runs
inside ``torch.profiler.record_function(NAME)`` is recorded, after ``--warm-up`` entries; the script needs nothing of
this tool for that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .api import host_syncs, use_backend
from .backends import CUDA, default_backend
from .events import Event
from .recorder import Recorder
from .sites import Site, short_names


class Audit:
    """Opens a recorded block around each region of a running script, and gathers what it saw.

    Args:
        backend: ``"virtual"`` or ``"cuda"``.
        warm_up: Regions (or optimizer steps) to pass before recording begins.
    """

    def __init__(self, backend: str, warm_up: int) -> None:
        self.recorders: list[Recorder] = []
        self.passed = 0
        self.seen: set[str] = set()
        self._backend, self._warm_up = backend, warm_up
        self._open: host_syncs | None = None

    def begin(self) -> None:
        """Start a block, unless one is open or the warm-up is not over."""
        if self._open is None and self.passed >= self._warm_up:
            self._open = host_syncs(self._backend, profile=self._backend == CUDA)
            recorder = self._open.__enter__()
            if recorder is not None:
                self.recorders.append(recorder)

    def end(self) -> None:
        """Close the open block and count the region."""
        self.passed += 1
        self.close()

    def close(self) -> None:
        """Close the open block, if any."""
        if self._open is not None:
            block, self._open = self._open, None
            block.__exit__(None, None, None)

    @contextlib.contextmanager
    def whole_run(self) -> Iterator[None]:
        """Record everything after the warm-up optimizer steps."""
        hook = register_optimizer_step_post_hook(self._after_step)
        self.begin()
        try:
            yield
        finally:
            hook.remove()
            self.close()

    def _after_step(self, *args: Any) -> None:
        self.passed += 1
        self.begin()

    @contextlib.contextmanager
    def regions(self, name: str) -> Iterator[None]:
        """Record inside every outermost ``record_function(name)``."""
        kind = torch.autograd.profiler.record_function
        enter, leave = kind.__enter__, kind.__exit__
        inside: list[Any] = []

        def enter_region(self_: Any) -> Any:
            self.seen.add(self_.name)
            if self_.name == name:
                inside.append(self_)
                self.begin()
            return enter(self_)

        def leave_region(self_: Any, *exc: Any) -> Any:
            out = leave(self_, *exc)
            if self_.name == name:
                inside.pop()
                if not inside:
                    self.end()
            return out

        kind.__enter__, kind.__exit__ = enter_region, leave_region  # type: ignore[method-assign]
        try:
            yield
        finally:
            kind.__enter__, kind.__exit__ = enter, leave  # type: ignore[method-assign]
            self.close()


def run_script(script: Path, arguments: list[str]) -> int:
    """Run the script as ``__main__``; returns 0, or 1 where it failed. Its error is printed, not raised."""
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return 0 if stop.code in (None, 0) else 1
    except BaseException as error:  # what was recorded before a KeyboardInterrupt counts too
        _print_error(error)
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def _print_error(error: BaseException) -> None:
    """The traceback without the frames of this tool."""
    report = traceback.TracebackException.from_exception(error)
    tool = ("<frozen runpy>", str(Path(__file__).parent))
    report.stack = traceback.StackSummary.from_list([f for f in report.stack if not f.filename.startswith(tool)])
    report.print()


def sites(recorders: list[Recorder]) -> list[dict[str, Any]]:
    """One row per call site and operator: file, line, operator, kind, waits, blocked milliseconds; largest first."""
    rows: dict[tuple[str, int, str, str, str], dict[str, Any]] = {}
    for recorder in recorders:
        for event in recorder.counted:
            row = rows.setdefault(_key(event), _row(event))
            row["waits"] += event.count
    for row in rows.values():
        site = Site(row["file"], row["line"], row["function"])
        row["blocked_ms"] = round(sum(recorder.blocked_ms.get(site, 0.0) for recorder in recorders), 3)
        row["profiler"] = sum(recorder.profiled.get(site, 0) for recorder in recorders)
    return sorted(rows.values(), key=lambda row: (-row["blocked_ms"], -row["waits"]))


def _key(event: Event) -> tuple[str, int, str, str, str]:
    return event.file, event.line, event.operator, event.kind, event.phase


def _row(event: Event) -> dict[str, Any]:
    names = ("file", "line", "function", "operator", "kind", "phase", "why", "instead")
    return {name: getattr(event, name) for name in names} | {"waits": 0, "source": event.source}


def timeline(recorders: list[Recorder]) -> dict[str, Any]:
    """The last block: ``spans`` (kind, start, length, name) in ``unit``: ms on a GPU, else the waits in their order."""
    if not recorders:
        return {"unit": "events", "spans": []}
    last = recorders[-1]
    if last.backend == CUDA:
        return {"unit": "ms", "spans": last.spans}
    waits = [event for event in last.counted for _ in range(event.count)]
    names = [f"{Path(event.file).name}:{event.line} {event.operator}" for event in waits]
    return {"unit": "events", "spans": [("wait", i, 0.5, name) for i, name in enumerate(names)]}


def counters(recorders: list[Recorder]) -> dict[str, int]:
    """What the other counters saw on a GPU, over all blocks."""
    sums: dict[str, int] = {}
    for recorder in recorders:
        for name, number in recorder.cross_checks.items():
            sums[name] = sums.get(name, 0) + number
    return sums


def print_report(audit: Audit, backend: str, write: Callable[[str], object] = print) -> None:
    """The table a person reads."""
    rows = sites(audit.recorders)
    names = short_names(row["file"] for row in rows)
    total = sum(row["waits"] for row in rows)
    write(f"{total} host syncs at {len(rows)} sites, in {len(audit.recorders)} recorded blocks ({backend})")
    for row in rows:
        time = f"  {row['blocked_ms']:9.3f} ms" if backend == CUDA else ""
        where = f"{names[row['file']]}:{row['line']}"
        write(f"{row['waits']:6d}{time}  {where}  {row['operator']} [{row['kind']}] {row['phase']}")
        write(f"          {row['source']}")
    for event in {str(event): event for r in audit.recorders for event in r.events if not event.counted}.values():
        write(f"     -    {event}")


def _data(audit: Audit, backend: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "blocks": len(audit.recorders),
        "counters": counters(audit.recorders),
        "sites": sites(audit.recorders),
        "timeline": timeline(audit.recorders),
    }


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is before ``--``, and the script's own arguments after it."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def _nothing_recorded(audit: Audit, region: str | None) -> str:
    """Why no block was opened; empty where one was."""
    if audit.recorders:
        return ""
    if region and not audit.passed:
        seen = ", ".join(sorted(audit.seen)) or "none"
        return f"no region named {region!r} was entered; regions seen: {seen}"
    return f"the warm-up was not over after {audit.passed} {'regions' if region else 'optimizer steps'}"


def _refusal(options: argparse.Namespace) -> str:
    """What is wrong with the command; empty if nothing."""
    if not options.script.is_file():
        return f"no such script: {options.script}"
    if options.json and not options.json.resolve().parent.is_dir():
        return f"no such folder for --json: {options.json.parent}"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nosync audit",
        usage="%(prog)s [options] script.py [-- the script's arguments]",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("--backend", choices=["virtual", "cuda"], help="default: the GPU where there is one")
    parser.add_argument("--region", metavar="NAME", help="record only inside record_function(NAME)")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="regions or optimizer steps to pass first")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the rows as JSON; - for no table but JSON on "
        "standard output, the script's own words on standard error",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command. Exit 0: the audit ran; 1: the script failed; 2: it could not run, or nothing was recorded."""
    own, arguments = _split(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(own)
    refusal = _refusal(options)
    if refusal:
        print(f"nosync audit: {refusal}", file=sys.stderr)
        return 2
    backend = options.backend or default_backend()
    audit = Audit(backend, options.warm_up)
    alone = options.json == Path("-")
    with (
        contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext(),
        use_backend(backend),
        audit.regions(options.region) if options.region else audit.whole_run(),
    ):
        code = run_script(options.script, arguments)
    if not alone:
        print_report(audit, backend)
    if options.json:
        text = json.dumps(_data(audit, backend), indent=1)
        print(text) if alone else options.json.write_text(text + "\n", encoding="utf-8")
    nothing = _nothing_recorded(audit, options.region)
    if nothing:
        print(f"nosync audit: {nothing}", file=sys.stderr)
    return code or (2 if nothing else 0)


if __name__ == "__main__":
    sys.exit(main())
