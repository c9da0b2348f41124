"""Small upstreams, archives and monorepo checkouts for the tests of the tool; nothing here reaches the network."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nosync import cli
from nosync import git as nosync_git

AUTHOR = ("Ada Łovelace", "ada@example.org", "2024-03-01T12:34:56+0530")
# Written out here and not taken from the tool: the tests compare the tool's bytes with plain git's.
FORMAT_PATCH = (  # noqa: SIM905
    "-c core.quotePath=true -c diff.noprefix=false -c diff.mnemonicPrefix=false format-patch -q --zero-commit "
    "--no-signature --full-index --no-stat --no-renames --diff-algorithm=myers -U3 --src-prefix=a/ --dst-prefix=b/ "
    "--no-numbered --no-attach --no-thread --no-cover-letter --no-base --no-notes --no-ext-diff --no-textconv "
    "--binary --subject-prefix=PATCH --encode-email-headers"
).split()
LINES = "".join(f"line {number}\n" for number in range(1, 41))


@dataclass(frozen=True)
class Link:
    """A symbolic link in a set of files."""

    to: str


@dataclass(frozen=True)
class Script:
    """An executable file."""

    data: bytes


Content = bytes | str | Link | Script | None  # None: the file is deleted
Files = dict[str, Content]

BASE_FILES: Files = {
    "src/demo/core.py": LINES,
    "src/demo/loss.py": LINES.replace("line", "loss"),
    "src/demo/win.txt": b"one\r\ntwo\r\nthree\r\n",
    "src/demo/noeol.txt": b"first\nlast",
    "src/demo/run.sh": Script(b"#!/bin/sh\necho $Id$\n"),
    "src/demo/link.py": Link("core.py"),
    "src/demo/gr\u00fc\u00df e.txt": "na\u00efve\n",
    "src/demo/old.py": "to be deleted\n",
    # upstream's own attributes must not change a byte of what we bring
    "src/demo/.gitattributes": "*.txt text eol=crlf\n*.py ident diff=python\n*.sh text eol=crlf ident\n",
    "tests/test_core.py": "def test_one():\n    assert True\n",
    "README.md": "demo\n",
    "docs/far.md": "not among the paths\n",
}
NEXT_FILES: Files = {
    "src/demo/core.py": LINES.replace("line 30\n", "line thirty\n"),
    "src/demo/loss.py": "# a new first line\n" + LINES.replace("line", "loss"),
}


def git(cwd: Path, *argv: str, env: dict[str, str] | None = None, data: bytes | None = None) -> str:
    """Plain git with an identity and no configuration but the repository's own."""
    full = clean_environment() | {
        "GIT_AUTHOR_NAME": "T",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "T",
        "GIT_COMMITTER_EMAIL": "t@example.org",
        "GIT_CEILING_DIRECTORIES": str(cwd.resolve().parent),
    }
    done = subprocess.run(["git", *argv], cwd=cwd, env=full | (env or {}), input=data, capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"git {argv}: {done.returncode}\n{done.stderr.decode()}{done.stdout.decode()}")
    return done.stdout.decode("utf-8", "surrogateescape")


def clean_environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return env | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C.UTF-8"}


def write(folder: Path, files: Files) -> None:
    """Bring files into a folder, as they are."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and content is None):
            path.unlink()
        if isinstance(content, Link):
            path.symlink_to(content.to)
        elif isinstance(content, Script):
            path.write_bytes(content.data)
            path.chmod(0o755)
        elif isinstance(content, str):
            path.write_bytes(content.encode())
        elif content is not None:
            path.write_bytes(content)


def new_repo(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", ".")
    git(folder, "config", "core.autocrlf", "false")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* -text -ident !diff !eol -filter\n")
    # as on the hosts of real upstreams: thin clones, and fetches of any commit
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


def author(name: str = AUTHOR[0], mail: str = AUTHOR[1], date: str = AUTHOR[2]) -> dict[str, str]:
    return {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": date}


def commit(repo: Path, files: Files, message: str = "change", env: dict[str, str] | None = None) -> str:
    """Commit these files and return the id; the message is taken byte for byte."""
    write(repo, files)
    git(repo, "add", "-A", "-f", ".")
    git(
        repo,
        "commit",
        "-q",
        "--allow-empty",
        "--cleanup=verbatim",
        "-F",
        "-",
        env=env or author(),
        data=message.encode(),
    )
    return git(repo, "rev-parse", "HEAD").strip()


def archive(file: Path, top: str, files: Files, extra: Callable[[tarfile.TarFile], None] | None = None) -> str:
    """A source archive ``top/…``; returns its sha256. ``extra`` may add members."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            data = b""
            if isinstance(content, Link):
                member.type, member.linkname = tarfile.SYMTYPE, content.to
            elif isinstance(content, Script):
                member.mode, data = 0o755, content.data
            elif content is not None:
                data = content.encode() if isinstance(content, str) else content
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        if extra:
            extra(tar)
    return sha256(file)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def in_archive(files: Files) -> Files:
    return {name: body for name, body in files.items() if not name.startswith("tests/")} | {"PKG-INFO": "Name: demo\n"}


@dataclass
class Result:
    """One run of a verb."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.out)
        return body

    @property
    def text(self) -> str:
        return self.out + self.err

    def row(self, **wanted: object) -> dict[str, Any]:
        """The only row with these values."""
        rows = [row for row in self.json["rows"] if all(row.get(key) == value for key, value in wanted.items())]
        assert len(rows) == 1, (wanted, self.json["rows"])
        return rows[0]


@dataclass
class BaseEntry:
    """A base of projects.toml."""

    id: str
    commit: str = ""
    sha256: str = ""
    pinned: bool = False


@dataclass
class World:
    """A monorepo checkout under test, with one project ``demo``.

    Args:
        root: The checkout.
        upstream: The git repository that stands for the project's.
        url: Its address as projects.toml has it.
    """

    root: Path
    upstream: Path
    url: str
    bases: list[BaseEntry]
    not_in_archive: tuple[str, ...] = ("tests/",)
    paths: tuple[str, ...] = ("src", "tests", "README.md")
    more_projects: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    # ---- set-up

    def save(self) -> None:
        """Write projects.toml and .gitmodules and record the gitlink."""
        lines = [
            "[demo]",
            f'url = "{self.url}"',
            'licence = "MIT"',
            'import = "demo"',
            'source_root = "src"',
            f"paths = {json.dumps(self.paths)}",
            f"not_in_archive = {json.dumps(self.not_in_archive)}",
        ]
        for base in self.bases:
            lines += ["[[demo.bases]]", f'id = "{base.id}"', f"pinned = {str(base.pinned).lower()}"]
            if base.commit:
                lines.append(f'commit = "{base.commit}"')
            if base.sha256:
                lines.append(f'archive = {{ package = "demo", version = "{base.id}", sha256 = "{base.sha256}" }}')
        write(self.root, {"upstream/projects.toml": "\n".join(lines) + "\n" + self.more_projects})
        modules = f'[submodule "upstream/demo"]\n\tpath = upstream/demo\n\turl = {self.url}\n'
        write(self.root, {".gitmodules": modules, ".gitignore": "/build/\n", ".gitattributes": "* -text\n"})
        if not (self.root / ".git").exists():
            git(self.root, "init", "-q", "-b", "main", ".")
        self.record_gitlink(next(base.commit for base in self.bases if base.pinned))
        (self.root / "upstream" / "demo").mkdir(exist_ok=True)

    def record_gitlink(self, commit_id: str, name: str = "demo") -> None:
        git(self.root, "update-index", "--add", "--cacheinfo", f"160000,{commit_id},upstream/{name}")

    def add_series(self, name: str, order: int = 10, **more: object) -> Path:
        """``patches/demo/<name>`` with a series.toml."""
        values: dict[str, object] = {"title": name, "status": "draft", "order": order} | more
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        write(self.root, {f"patches/demo/{name}/series.toml": text, f"patches/demo/{name}/cover.md": f"{name}\n"})
        return self.root / "patches" / "demo" / name

    def add_patches(self, series: str, base: str, patches: dict[str, bytes]) -> None:
        folder = self.root / "patches" / "demo" / series / base
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in patches.items():
            (folder / name).write_bytes(data)

    def cut_off(self) -> None:
        """From now on the repository cannot be reached."""
        self.url = f"file://{self.root}/no-such-repository"
        self.save()

    # ---- running

    def run(self, *argv: str, env: dict[str, str] | None = None) -> Result:
        """Run a verb in this process."""
        out, err = io.StringIO(), io.StringIO()
        values = self.environment | {"NOSYNC_ROOT": str(self.root)} | (env or {})
        with patched_environment(values), redirect_stdout(out), redirect_stderr(err):
            code = cli.main(list(argv))
        return Result(code, out.getvalue(), err.getvalue())

    def apply(self, *more: str, code: int = 0) -> Result:
        """``apply`` as JSON, with the exit code asserted."""
        result = self.run("apply", "demo", "--json", *more)
        assert result.code == code, result.text
        return result

    def refresh(self, *more: str, code: int = 0) -> Result:
        result = self.run("refresh", "demo", "--json", *more)
        assert result.code == code, result.text
        return result

    # ---- looking

    def tree(self, kind: str = "patched", base: str = "1.0") -> Path:
        return self.root / "build" / kind / f"demo@{base}"

    def log(self, base: str = "1.0", form: str = "%s") -> list[str]:
        """One entry a commit of the patched tree above its base, oldest first."""
        return git(
            self.tree("patched", base), "log", "--reverse", f"--format={form}", "refs/nosync/base..HEAD"
        ).splitlines()

    def commits(self, base: str = "1.0") -> list[str]:
        return self.log(base, "%H")

    def patch_files(self) -> dict[str, bytes]:
        """Every file under patches/, by its path."""
        found = sorted(path for path in (self.root / "patches").rglob("*") if path.is_file())
        return {path.relative_to(self.root / "patches").as_posix(): path.read_bytes() for path in found}

    def amend(self, files: Files, base: str = "1.0") -> str:
        """Amend the topmost commit of the patched tree, as a user would."""
        tree = self.tree("patched", base)
        write(tree, files)
        git(tree, "add", "-A", ".")
        git(tree, "commit", "-q", "--amend", "--no-edit")
        return git(tree, "rev-parse", "HEAD").strip()

    def edit_commit(self, position: int, files: Files, message: str = "", base: str = "1.0") -> None:
        """Rewrite the commit at a position (0 is the lowest) and put the others on top again."""
        tree, ids = self.tree("patched", base), self.commits(base)
        git(tree, "reset", "-q", "--hard", ids[position])
        write(tree, files)
        git(tree, "add", "-A", ".")
        git(tree, "commit", "-q", "--amend", "--allow-empty", *(["-m", message] if message else ["--no-edit"]))
        for later in ids[position + 1 :]:
            git(
                tree,
                "cherry-pick",
                "--allow-empty",
                "--keep-redundant-commits",
                later,
                env=_author_of(tree, later),
            )

    def leftovers(self) -> list[str]:
        """What lies in the scratch folder."""
        scratch = self.root / "build" / "scratch"
        return sorted(path.name for path in scratch.iterdir()) if scratch.is_dir() else []

    def copy(self, to: Path) -> World:
        """The same checkout elsewhere; trees, clone and all."""
        shutil.copytree(self.root, to, symlinks=True)
        return World(to, self.upstream, self.url, list(self.bases), self.not_in_archive, self.paths, self.more_projects)


def _author_of(tree: Path, commit_id: str) -> dict[str, str]:
    name, mail, date = git(tree, "log", "-1", "--format=%an%n%ae%n%aI", commit_id).splitlines()
    return author(name, mail, date)


@contextmanager
def patched_environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def recorded_git() -> Iterator[list[list[str]]]:
    """Every git command that the tool runs in the block, without its settings."""
    seen: list[list[str]] = []
    inner, inner_within = nosync_git._run, nosync_git._run_within

    def words(argv: list[str]) -> list[str]:
        while argv[:1] == ["-c"]:
            argv = argv[2:]
        return argv

    def record(argv: list[str], *rest: Any) -> Any:
        seen.append(words(argv))
        return inner(argv, *rest)

    def record_within(seconds: float, argv: list[str], *rest: Any) -> Any:
        seen.append(words(argv))
        return inner_within(seconds, argv, *rest)

    nosync_git._run, nosync_git._run_within = record, record_within
    try:
        yield seen
    finally:
        nosync_git._run, nosync_git._run_within = inner, inner_within


def make_patches(
    repo: Path, start: str, steps: list[tuple[Files, str]], env: dict[str, str] | None = None
) -> dict[str, bytes]:
    """Commit the steps on ``start`` in a clone and return plain git's patch files."""
    work = repo.parent / f"{repo.name}-work"
    if not work.exists():
        git(repo.parent, "clone", "-q", "--no-checkout", str(repo), str(work))
        shutil.copy(repo / ".git" / "info" / "attributes", work / ".git" / "info" / "attributes")
    git(work, "checkout", "-q", "--detach", "-f", start)
    for files, message in steps:
        commit(work, files, message, env)
    return export(work, start, "HEAD")


def make_patches_quickly(repo: Path, start: str, steps: list[tuple[Files, str]]) -> dict[str, bytes]:
    """As ``make_patches``, for many commits that add files: one git process makes them all."""
    work = new_repo(repo.parent / f"many-{len(steps)}-{os.getpid()}")
    git(work, "fetch", "-q", str(repo), start)
    stream = b"reset refs/heads/main\nfrom " + start.encode() + b"\n"
    for number, (files, message) in enumerate(steps):
        who = f"{AUTHOR[0]} <{AUTHOR[1]}> {1_700_000_000 + number} +0100".encode()
        stream += b"commit refs/heads/main\nauthor %b\ncommitter %b\ndata %d\n%b\n" % (
            who, who, len(message.encode()), message.encode(),
        )  # fmt: skip
        for name, body in files.items():
            assert isinstance(body, str)
            stream += b"M 100644 inline %b\ndata %d\n%b\n" % (name.encode(), len(body.encode()), body.encode())
    git(work, "fast-import", "--quiet", "--force", data=stream)
    patches = export(work, start, "main")
    shutil.rmtree(work)
    return patches


def export(repo: Path, start: str, tip: str) -> dict[str, bytes]:
    """Plain git's patch files of a range, by name."""
    folder = repo / ".git" / "patches-out"
    shutil.rmtree(folder, ignore_errors=True)
    git(repo, *FORMAT_PATCH, "--always", "-o", str(folder), f"{start}..{tip}")
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def replaced(text: str, number: int, by: str, word: str = "line") -> str:
    """The text with one of its numbered lines replaced."""
    assert f"{word} {number}\n" in text
    return text.replace(f"{word} {number}\n", by)
