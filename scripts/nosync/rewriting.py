"""Rewriting a series' commits for its upstream, with git-filter-repo.

``git_filter_repo`` works on the current folder and on this process' environment, so it runs as a process of its own:
``python -m nosync.rewriting``, with what to do as JSON on standard input.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nosync.errors import NosyncError
from nosync.git import HERMETIC, Repo, hermetic_environment

_TRAILER = re.compile(rb"^[A-Za-z][A-Za-z0-9-]*: \S")


@dataclass(frozen=True)
class Rules:
    """What the commits of a branch are changed by.

    Args:
        trailers: Regular expressions of trailer names that go.
        mailmap: A file in git's mailmap form that maps author and committer, or empty.
        sign_off: Add the author's Signed-off-by where it is missing.
        drop: Path prefixes that are ours and go, with commits that hold nothing else.
        moves: (from, to) path prefixes: our layout and upstream's.
    """

    trailers: tuple[str, ...] = ()
    mailmap: str = ""
    sign_off: bool = False
    drop: tuple[str, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()


def rewrite(repo: Repo, branch: str, rules: Rules) -> None:
    """Rewrite the branch in place, its root included; committers become the authors, dates stay."""
    _run(repo, {"what": "rewrite", "branch": branch} | asdict(rules), replacements=False)


def graft(repo: Repo, branch: str, root: str, real: str) -> None:
    """Put the commits above ``root`` on the commit ``real`` instead, for good, keeping all of its other files.

    ``root`` may hold a part of ``real``'s files; the caller has checked that they agree where the branch changes them.
    The repository must be bare: ``real``'s files are not here.
    """
    first = repo.git("rev-list", "--reverse", "--topo-order", f"{root}..{branch}").split()[0]
    touched = repo.git("diff-tree", "-r", "-z", "--name-only", "--no-commit-id", "--no-renames", root, first).split(
        "\0"
    )
    repo.git("replace", "--graft", first, real)
    _run(
        repo,
        {"what": "graft", "branch": branch, "from": real, "touched": [path for path in touched if path]},
        replacements=True,
    )


def _run(repo: Repo, what: dict[str, Any], replacements: bool) -> None:
    env = hermetic_environment(repo.path.parent)
    if replacements:
        env.pop("GIT_NO_REPLACE_OBJECTS", None)
    settings = [setting.partition("=") for setting in (*HERMETIC, "pack.threads=1")]
    env |= {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, _, value) in enumerate(settings):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    scripts = str(Path(__file__).resolve().parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (scripts, env.get("PYTHONPATH", ""))))
    argv = [sys.executable, "-m", "nosync.rewriting"]
    done = subprocess.run(
        argv, cwd=repo.path, env=env, input=json.dumps(what), capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing = "No module named 'git_filter_repo'" in done.stderr
        raise NosyncError(
            "the commits could not be rewritten",
            "git-filter-repo is not installed for this Python" if missing else "git-filter-repo refused, see its words",
            "make export-<project>, which installs requirements/export.txt" if missing else "",
            done.stderr[-1500:],
        )


# ---- in the process of its own ----


def main() -> None:
    """Do what standard input says to the repository in the current folder."""
    import git_filter_repo as fr  # in the environment of `make export` alone

    what = json.load(sys.stdin)
    common = [
        "--force",
        "--quiet",
        "--no-gc",
        "--preserve-commit-hashes",
        "--preserve-commit-encoding",
        "--prune-degenerate",
        "never",
    ]
    if what["what"] == "graft":
        refs = ["--refs", f"{what['from']}..refs/heads/{what['branch']}"]
        options = fr.FilteringOptions.parse_args([*common, "--prune-empty", "never", *refs])
        callback = _keep_touched({os.fsencode(path) for path in what["touched"]}, os.fsencode(what["from"]))
    else:
        refs = ["--refs", f"refs/heads/{what['branch']}"]
        options = fr.FilteringOptions.parse_args([*common, *_path_options(what), *refs])
        callback = _edit(what)
    fr.RepoFilter(options, commit_callback=callback).run()


def _path_options(what: dict[str, Any]) -> list[str]:
    options = ["--mailmap", what["mailmap"]] if what["mailmap"] else []
    for prefix in what["drop"]:
        options += ["--path", prefix]
    options += ["--invert-paths"] if what["drop"] else []
    for old, new in what["moves"]:
        options += ["--path-rename", f"{old}:{new}"]
    return options


def _edit(what: dict[str, Any]):  # type: ignore[no-untyped-def]
    unwanted = (
        re.compile(rb"(?:" + b"|".join(name.encode() for name in what["trailers"]) + rb"):", re.IGNORECASE)
        if what["trailers"]
        else None
    )

    def callback(commit: Any, _: Any) -> None:
        commit.committer_name, commit.committer_email, commit.committer_date = (
            commit.author_name, commit.author_email, commit.author_date,
        )  # fmt: skip
        commit.message = edited(
            commit.message, unwanted, _signature(commit) if what["sign_off"] and commit.parents else b""
        )

    return callback


def _signature(commit: Any) -> bytes:
    return b"Signed-off-by: " + commit.author_name + b" <" + commit.author_email + b">"


def edited(message: bytes, unwanted: re.Pattern[bytes] | None, sign_off: bytes) -> bytes:
    """The message without unwanted trailers and with the sign-off, if it is not there."""
    body, trailers = split_trailers(message)
    trailers = [line for line in trailers if not (unwanted and unwanted.match(line))]
    if sign_off and sign_off not in trailers:
        trailers.append(sign_off)
    return body + (b"\n\n" + b"\n".join(trailers) if trailers else b"") + b"\n"


def split_trailers(message: bytes) -> tuple[bytes, list[bytes]]:
    """The message less its last paragraph, if that is trailers and nothing else, and the trailers."""
    text = message.rstrip(b"\n")
    body, gap, last = text.rpartition(b"\n\n")
    lines = last.split(b"\n")
    if gap and all(_TRAILER.match(line) for line in lines):
        return body.rstrip(b"\n"), lines
    return text, []


def _keep_touched(touched: set[bytes], real: bytes):  # type: ignore[no-untyped-def]
    """Files of ``real`` that the synthetic root never had look deleted by the first commit; they are not."""

    def callback(commit: Any, _: Any) -> None:
        if real in commit.parents:
            commit.file_changes = [change for change in commit.file_changes if change.filename in touched]

    return callback


if __name__ == "__main__":
    main()
