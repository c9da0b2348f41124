"""What an upstream asks of a pull request, line by line, each checked by a command whose output is kept.

The lines stand in ``upstream/projects.toml``:

    [[<project>.upstreaming.checks]]
    line = "what is asked, for a reader"
    command = "ruff format --check \"$@\""   # sh; without one the line is for a person to tick
    files = ["*.py"]                          # the changed files that the command gets; none of them: nothing to check
    needs = ["ruff.toml"]                     # files without which the command would judge by other rules
    pull_request = true                       # the line is part of upstream's own template

A command runs in a checkout of the branch, with ``$BASE`` and ``$HEAD``; exit 0 means that the line holds. Where it
does not, it is run on the base as well: only what is new there is ours.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nosync.branches import Branch
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import Project

_BROKEN = (2, 126, 127)  # the command itself did not work; it says nothing of the files
HOLDS, WRONG, BY_HAND, NOTHING, OLD = "holds", "wrong", "by hand", "nothing to check", "as on the base"


@dataclass(frozen=True)
class Line:
    """One line of the checklist, checked.

    Args:
        text: What is asked.
        word: holds, wrong, by hand, nothing to check, or as on the base.
        command: What was run, for a reader; empty for a line that a person ticks.
        output: What it said, without paths of this machine.
        pull_request: Is it part of upstream's template?
    """

    text: str
    word: str
    command: str = ""
    output: str = ""
    pull_request: bool = False

    @property
    def sound(self) -> bool:
        return self.word != WRONG


@dataclass(frozen=True)
class _Check:
    line: str
    command: str = ""
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    pull_request: bool = False


def check(layout: Layout, project: Project, branch: Branch) -> list[Line]:
    """Run every check of the project on the branch's checkout, which is left as it was."""
    table = project.extra.get("upstreaming", {})
    env = _environment(layout, table.get("tools", ""), branch)
    changed = [
        path
        for path in branch.repo.git("diff", "--name-only", "-z", "--diff-filter=d", branch.root, branch.tip).split("\0")
        if path
    ]
    return [_run(branch, _read(project, entry), changed, env) for entry in table.get("checks", ())]


def _read(project: Project, entry: dict[str, Any]) -> _Check:
    try:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        return _Check(**fields)
    except TypeError as error:
        raise NosyncError(
            f"projects.toml: [[{project.name}.upstreaming.checks]]: {error}", "a slip while editing"
        ) from None


def _environment(layout: Layout, tools: str, branch: Branch) -> dict[str, str]:
    """This process' environment with upstream's own versions of its tools first on the path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "RUFF_"))}
    env |= {"BASE": branch.root, "HEAD": branch.tip, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "RUFF_NO_CACHE": "true"}
    if tools:
        _bootstrap(layout, tools)
        env["PATH"] = os.pathsep.join((str(layout.build / "env" / tools / "bin"), env.get("PATH", "")))
    return env


def _bootstrap(layout: Layout, tools: str) -> None:
    done = subprocess.run([layout.root / "scripts" / "bootstrap", tools], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NosyncError(
            f"upstream's formatter and linter (requirements/{tools}.txt) could not be installed",
            "no network, or an index that lacks them",
            "the same command again",
            done.stderr[-800:],
        )


def _run(branch: Branch, wanted: _Check, changed: list[str], env: Mapping[str, str]) -> Line:
    files = [path for path in changed if any(fnmatch.fnmatch(path, pattern) for pattern in wanted.files)]
    shown = wanted.command.replace('"$@"', " ".join(files)) if files else wanted.command

    def line(word: str, output: str = "") -> Line:
        return Line(wanted.line, word, shown, output, wanted.pull_request)

    if not wanted.command:
        return line(BY_HAND)
    if wanted.files and not files:
        return line(NOTHING, f"no changed file is {' or '.join(wanted.files)}")
    if missing := [name for name in wanted.needs if not (branch.repo.path / name).exists()]:
        return line(BY_HAND, f"not run: {', '.join(missing)} is not among the files that we have of this base")
    code, output = _sh(branch.repo, wanted.command, files, env)
    _restore(branch.repo)
    if code == 0:
        return line(HOLDS, output)
    if wanted.files and code not in _BROKEN and not _new_findings(branch, wanted.command, files, env, output):
        return line(OLD, output)
    return line(WRONG, output or f"exit {code}")


def _new_findings(branch: Branch, command: str, files: list[str], env: Mapping[str, str], output: str) -> list[str]:
    """Lines that the command says of the branch but not of the base, line numbers apart."""
    branch.repo.git("checkout", "-q", "--detach", branch.root)
    try:
        there = [path for path in files if (branch.repo.path / path).exists()]
        before = _sh(branch.repo, command, there, env)[1] if there else ""
    finally:
        _restore(branch.repo)
        branch.repo.git("checkout", "-q", branch.name)
    return list((_findings(output) - _findings(before)).elements())


def _findings(output: str) -> Counter[str]:
    return Counter(re.sub(r"\d+", "#", line) for line in output.splitlines())


def _restore(repo: Repo) -> None:
    """Undo what a command that fixes in place did to the checkout."""
    repo.git("reset", "-q", "--hard")
    repo.git("clean", "-q", "-f", "-d", "-x")


def _sh(repo: Repo, command: str, files: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    shell = shutil.which("sh") or "/bin/sh"
    done = subprocess.run(
        [shell, "-c", command, "sh", *files], cwd=repo.path, env=dict(env), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return done.returncode, neutral(done.stdout, repo.path).strip()


def neutral(text: str, folder: Path) -> str:
    """The text without this machine's paths and without what differs from run to run."""
    text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    return re.sub(r"\b\d+(\.\d+)?m?s\b", "… s", text)


def markdown(title: str, lines: list[Line]) -> str:
    """The checklist as a file for a person."""
    parts = [f"# Checklist: {title}", ""]
    for line in lines:
        mark = {HOLDS: "x", NOTHING: "x", OLD: "x"}.get(line.word, " ")
        parts.append(f"- [{mark}] {line.text} ({line.word})")
        if line.command:
            parts += ["", "  ```console", f"  $ {line.command}"]
            parts += [f"  {row}".rstrip() for row in line.output.splitlines()[:60]]
            parts += ["  ```", ""]
        elif line.output:
            parts += ["", *(f"  {row}".rstrip() for row in line.output.splitlines()), ""]
    return "\n".join(parts).rstrip("\n") + "\n"
