"""A pull request's text, the checks that every one needs, and the commands that send it."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

from nosync import figures, rewriting, scratch, trees
from nosync.branches import Branch
from nosync.checklist import BY_HAND, HOLDS, NOTHING, OLD, WRONG, Line
from nosync.errors import NosyncError
from nosync.figures import Filled
from nosync.git import GitFailure, Repo
from nosync.layout import Layout
from nosync.patchfile import parse
from nosync.projects import Project
from nosync.running import test_results
from nosync.series import Series

_ONLY = re.compile(r"<!-- only: ([^>]*?) *-->\s*$")
_OURS = re.compile(rb"nosync|build/patched|build/base", re.IGNORECASE)


# ---- the text ----


def text(layout: Layout, project: Project, series: Series, branch: Branch, lines: list[Line]) -> Filled:
    """``PR.md``: title, the cover with its figures, what else the branch holds, upstream's own checklist.

    A line of the cover that ends in ``<!-- only: 0.8.5 -->`` is for that base (or those: more ids, with spaces).

    Raises:
        NosyncError: the series has no cover.md.
    """
    try:
        cover = (series.folder / "cover.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NosyncError(
            f"{series.project}/{series.name} has no cover.md", "the pull request's text is not written yet"
        ) from None
    filled = figures.fill(layout, project, branch.cells, for_base(cover, branch.source.base.id).strip("\n"))
    parts = [f"# {series.title}", filled.text]
    if below := [cell.series for cell in branch.cells[:-1]]:
        parts.append("Stands on:\n\n" + "\n".join(f"- {each.pull_request or each.title}" for each in below))
    if ticks := [line for line in lines if line.pull_request]:
        parts.append("## Checklist\n\n" + "\n".join(f"- [{_mark(line)}] {line.text}" for line in ticks))
    return replace(filled, text="\n\n".join(parts) + "\n")


def for_base(cover: str, base: str) -> str:
    """The cover without the lines of other bases, and without the marks that say so."""
    kept = []
    for line in cover.splitlines(keepends=True):
        mark = _ONLY.search(line)
        if mark is None:
            kept.append(line)
        elif base in mark[1].split():
            kept.append(line[: mark.start()].rstrip() + "\n")
    return "".join(kept)


def _mark(line: Line) -> str:
    return "x" if line.word in (HOLDS, NOTHING, OLD) else " "


# ---- checks that every upstream needs ----


def own_lines(layout: Layout, project: Project, series: Series, branch: Branch, mailbox: list[Path]) -> list[Line]:
    """What must hold wherever it goes."""
    lines = [_applies(layout, branch, mailbox), _foreign_words(branch), _authors(branch)]
    if series.sign_off:
        lines.append(_signed(branch))
    lines += [
        _tested(layout, project, branch, what, key)
        for what, key in (("Upstream's own tests", "own"), ("Our tests", "ours"))
    ]
    if branch.left_out:
        said = "The mailbox patches hold them; the bundle does not:\n" + "\n".join(branch.left_out)
        lines.append(Line("Every file of the patches is on the branch", BY_HAND, "", said))
    return lines


def _applies(layout: Layout, branch: Branch, mailbox: list[Path]) -> Line:
    """``git am`` of the mailbox on the base gives the branch's files."""
    said, command = (
        "The mailbox patches apply to the base with plain git",
        "git am patches/*.patch && git rev-parse HEAD^{tree}",
    )
    if branch.left_out:
        return Line(said, BY_HAND, "", "some of their files are not in the source; see below")
    repo = Repo.create(scratch.fresh(layout, f"am-{branch.source.project.name}"))
    try:
        trees.fetch(repo, branch.repo.path, branch.root, trees.BASE)
        repo.git("reset", "-q", "--hard", trees.BASE)
        repo.git("am", "-q", "--keep-cr", *map(str, mailbox), env=trees.IDENTITY)
        got, wanted = (
            each.git("rev-parse", f"{tip}^{{tree}}").strip()
            for each, tip in ((repo, "HEAD"), (branch.repo, branch.tip))
        )
        return Line(said, HOLDS if got == wanted else WRONG, command, got if got == wanted else f"{got}, not {wanted}")
    except GitFailure as failure:
        return Line(said, WRONG, command, failure.err or failure.out)
    finally:
        shutil.rmtree(repo.path, ignore_errors=True)


def _foreign_words(branch: Branch) -> Line:
    log = branch.repo.raw("log", "-p", "--full-index", "--format=%an %ae %cn %ce%n%B", f"{branch.root}..{branch.tip}")
    found = sorted({match.group().decode() for match in _OURS.finditer(log)})
    return Line(
        "The commits hold nothing of the repository that they were kept in", WRONG if found else HOLDS,
        "git log -p $BASE..$HEAD | grep -i -c nosync", ", ".join(found) or "0",
    )  # fmt: skip


def _authors(branch: Branch) -> Line:
    out = branch.repo.git("log", "--format=%an <%ae>", f"{branch.root}..{branch.tip}")
    who = sorted(set(out.splitlines()))
    bad = [name for name in who if "@localhost" in name or "<>" in name]
    return Line(
        "Every commit has an author who can be written to",
        WRONG if bad else HOLDS,
        "git log --format='%an <%ae>' $BASE..$HEAD | sort -u",
        "\n".join(who),
    )


def _signed(branch: Branch) -> Line:
    unsigned = []
    for commit in trees.commits(branch.repo, branch.root, branch.tip):
        author, body = branch.repo.git("log", "-1", "--format=%an <%ae>%x00%B", commit).split("\0", 1)
        _, trailers = rewriting.split_trailers(body.encode("utf-8", "surrogateescape"))
        if f"Signed-off-by: {author}".encode("utf-8", "surrogateescape") not in trailers:
            unsigned.append(commit[:12])
    command = "git log --format='%h %an <%ae> %(trailers:key=Signed-off-by)' $BASE..$HEAD"
    return Line(
        "Every commit is signed off by its author",
        WRONG if unsigned else HOLDS,
        command,
        f"missing: {', '.join(unsigned)}" if unsigned else "all are",
    )


def _tested(layout: Layout, project: Project, branch: Branch, what: str, key: str) -> Line:
    """The last ``make test-<project>`` on this base, if it saw these patches."""
    base = branch.source.base
    command = f"make test-{project.name}" + ("" if base.pinned else f" BASE={base.id}")
    said = f"{what} pass on {base.id}"
    result = test_results(layout, project.name, base.id).get(key)
    if result is None:
        return Line(said, BY_HAND, "", f"not run yet: {command}")
    newest = max(patch.file.stat().st_mtime for cell in branch.cells for patch in cell.patches)
    if layout.test_results(project.name, base.id).stat().st_mtime < newest:
        return Line(said, BY_HAND, "", f"the patches have changed since the last run: {command}")
    return Line(said, WRONG if "FAILED" in result else HOLDS, command, result)


# ---- sending ----


def commands(project: Project, series: Series, branch: Branch, bundle: str) -> str:
    """``send.sh``: pushes the branch to $FORK and opens the pull request; nothing runs it but a person or SEND=1."""
    table = project.extra.get("upstreaming", {})
    owner = "/".join(project.url.removesuffix(".git").rstrip("/").split("/")[-2:])
    title, into = shlex.quote(series.title), table.get("branch", "main")
    labels = "".join(f" --label {shlex.quote(label)}" for label in table.get("labels", ()))
    name = shlex.quote(branch.name)
    head = f'"${{FORK_OWNER:+$FORK_OWNER:}}{branch.name}"'
    body = "tail -n +3 PR.md"
    if series.pull_request:
        send = [f"{body} | gh pr edit {shlex.quote(series.pull_request)} --title {title} --body-file -"]
    else:
        send = [
            f"{body} | gh pr create --repo {shlex.quote(owner)} --base {shlex.quote(into)} --head {head}"
            f" --title {title}{labels} --body-file -"
        ]
    lines = [
        "#!/bin/sh",
        f"# Pushes {branch.name} to your fork and {'updates' if series.pull_request else 'opens'} the pull request.",
        "# FORK: the address to push to; FORK_OWNER: the account whose fork it is.",
        "set -eu",
        'cd "$(dirname "$0")"',
        ': "${FORK:?the address of your fork of ' + owner + '}"',
        f"UPSTREAM=${{UPSTREAM:-{shlex.quote(project.url)}}}",
        "work=$(mktemp -d)",
        "trap 'rm -rf \"$work\"' EXIT",
        'git clone -q --filter=blob:none --no-checkout "$UPSTREAM" "$work"',
        f'git -C "$work" fetch -q "$PWD/{bundle}" {name}:{name}',
        # the address has no tracking ref, so the lease must name the commit itself; none: the branch must be new
        f'was=$(git -C "$work" ls-remote "$FORK" {shlex.quote(f"refs/heads/{branch.name}")})',
        "was=${was%%[!0-9a-f]*}",
        f"printf '%s on the fork: %s\\n' {name} \"${{was:-not there yet}}\"",
        f'git -C "$work" push --force-with-lease={name}:"$was" "$FORK" {name}',
        "if ! command -v gh >/dev/null; then",
        f"    echo 'gh is not installed: open the pull request by hand, with PR.md, from '{name}",
        "    exit 0",
        "fi",
        *send,
    ]
    return "\n".join(lines) + "\n"


def without_commit(project: Project, branch: Branch) -> str:
    """``send.sh`` where upstream's commit is out of reach: says why, and what else can be done."""
    return (
        "#!/bin/sh\n"
        f"# The files of {project.name} {branch.source.base.id} come from its source archive, so the branch stands on\n"
        "# a root of its own and cannot be pushed to a fork. Export again when upstream's commit can be reached, or\n"
        "# apply the patches to a clone of upstream:\n"
        "#   git am patches/*.patch\n"
        f"echo {shlex.quote(why_no_commit(branch) + '; see this file')} >&2\n"
        "exit 2\n"
    )


def why_no_commit(branch: Branch) -> str:
    """Why the branch does not stand on upstream's own commit."""
    base = branch.source.base
    if base.commit:
        return f"upstream's commit {base.commit[:12]} cannot be reached"
    return f"upstream's commit of {base.id} is not known"


def same_but_trailers(ours: Path, committed: Path) -> bool:
    """Is an exported patch the committed one, trailers apart?"""
    one, other = parse(ours.read_bytes()), parse(committed.read_bytes())
    if [diff.text for diff in one.diffs] != [diff.text for diff in other.diffs]:
        return False
    return _plain(one.head) == _plain(other.head)


def _plain(head: bytes) -> bytes:
    return rewriting.split_trailers(head.rstrip(b"\n"))[0].replace(b"\n\n", b"\n").strip()
