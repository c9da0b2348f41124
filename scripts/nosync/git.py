"""Running git, in one of two ways.

``Repo`` works on repositories that are ours (trees, scratch) and never sees the user's configuration, so that
what it writes is the same bytes for everyone. ``user_git`` is for the network: there the user's mirrors,
proxies and credentials must count.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nosync.errors import NosyncError

MINIMUM_VERSION = (2, 35)

# Each line overrides a setting of the repository's own configuration, which we do not control either.
HERMETIC = (
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",  # no hook of a template or the user's may veto or edit a commit
    "core.autocrlf=false",
    "core.eol=lf",
    "core.safecrlf=false",
    "core.quotePath=true",
    "core.fsmonitor=false",
    "core.abbrev=40",
    "core.bigFileThreshold=512m",  # above it git calls a file binary
    "transfer.fsckObjects=false",
    "fetch.fsckObjects=false",
    "apply.whitespace=nowarn",  # 'fix' would change bytes
    "apply.ignoreWhitespace=no",
    "am.threeWay=false",
    "am.keepcr=true",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "diff.suppressBlankEmpty=false",
    "diff.orderFile=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.renames=false",
    "log.showSignature=false",
    "log.mailmap=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "format.mboxrd=false",
    "protocol.file.allow=always",  # fetches between our own trees
)
# The global configuration of our repositories. A fetch asks git in the other tree too, and no -c setting gets there.
GLOBAL = Path(__file__).with_name("gitconfig")

# What must not depend on the user, in the user's own configuration.
OURS = (
    "core.hooksPath=/dev/null",  # a hook that fails is no broken network
    "safe.directory=*",  # as in `gitconfig`
)

# Highest precedence of all attribute files: bytes in, bytes out, whatever upstream's .gitattributes says. '!diff'
# also keeps hunk headings equal between a git source and an archive, which lacks that file.
BYTE_EXACT = "* -text -ident -filter -working-tree-encoding !eol !diff !merge !whitespace\n"

# What running a tree's code leaves in it; upstream's own .gitignore is not always among the files that we bring.
IGNORED = "__pycache__/\n*.py[co]\n.pytest_cache/\n.ruff_cache/\n.mypy_cache/\n*.egg-info/\n"

# The variables of `git rev-parse --local-env-vars` that would redirect a command to another repository.
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
                "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_GRAFT_FILE",
                "GIT_SHALLOW_FILE", "GIT_REPLACE_REF_BASE", "GIT_IMPLICIT_WORK_TREE",
                "GIT_CEILING_DIRECTORIES")  # fmt: skip


# What git says of a repository that it cannot read (a cut-off write, a damaged disk, a hand in .git).
_DAMAGE = re.compile(
    r"not a git repository|index file (corrupt|smaller)|bad (index file|signature|config|tree object|object)"
    r"|bad config line|(object file|loose object|packed object) .*(is empty|corrupt)|broken (ref|link)"
    r"|inflate: data stream|unable to (read|parse|unpack) |fatal: unknown index entry"
)


class GitFailure(NosyncError):
    """A git command that exited non-zero: ``argv``, ``code``, ``out`` and ``err`` as text.

    Callers that know what a failure means catch it; one that nobody expected ends the run like any other error.

    Args:
        tree: The tree that it ran in, where that is one of ours.
    """

    def __init__(self, argv: Sequence[str], code: int, out: str, err: str, tree: Path | None = None) -> None:
        cause = way_out = ""
        self.damaged = bool(tree and _DAMAGE.search(err))
        if self.damaged:
            cause = f"the git repository of {tree} is damaged; its files are still there"
            names = shlex.join((str(tree), f"{tree}.damaged"))
            way_out = f"mv {names}      # and look there for what you need\nmake apply"
        elif re.search("dubious ownership|unsafe repository", err):
            cause = "the checkout is another user's; git before 2.38 takes a permission from its global settings alone"
            way_out = "git config --global --add safe.directory '*'"
        super().__init__(f"git {' '.join(argv)[:200]}: exit {code}", cause, way_out, err or out)
        self.argv, self.code, self.out, self.err = list(argv), code, out, err

    @property
    def reason(self) -> str:
        """The line of git's words that says most."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal: ", "error: "))]
        return (fatal or lines or [f"exit {self.code}"])[-1]

    @property
    def full_disk(self) -> bool:
        return os.strerror(errno.ENOSPC) in self.err


def _run(argv: list[str], cwd: Path, env: Mapping[str, str], data: bytes | None) -> tuple[int, bytes, bytes]:
    try:
        done = subprocess.run(["git", *argv], cwd=cwd, env=dict(env), input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise _no_git(cwd) from None
    return done.returncode, done.stdout, done.stderr


def _run_within(seconds: float, argv: list[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """As ``_run``, but git and its helpers are ended after so many seconds (a host that swallows every packet)."""
    pipe = subprocess.PIPE
    try:
        # a process group of its own: git's transport helper would outlive git and keep our pipes open
        child = subprocess.Popen(
            ["git", *argv], cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, process_group=0
        )
    except FileNotFoundError:
        raise _no_git(cwd) from None
    try:
        out, err = child.communicate(timeout=seconds)
        return child.returncode, out, err
    except BaseException as reason:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if isinstance(reason, subprocess.TimeoutExpired):
            return 124, b"", f"no answer within {seconds:.0f} seconds".encode()
        raise


def _no_git(cwd: Path) -> NosyncError:
    if not cwd.is_dir():
        return NosyncError(f"{cwd} is not there", "another program removed it meanwhile", "run the same command again")
    return NosyncError("git is not on the PATH", "git is not installed", "install git 2.35 or newer")


def hermetic_environment(ceiling: Path) -> dict[str, str]:
    """The process environment without anything that steers git, looking no higher than ``ceiling``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(GLOBAL),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(ceiling),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",  # looking at a tree must not get in the way of the user's own git there
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_EDITOR": "true",
        "LC_ALL": "C.UTF-8",
    }
    return env


class Repo:
    """A repository of ours, by the folder of its work tree."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).resolve()

    @classmethod
    def create(cls, path: Path) -> Repo:
        """``git init`` with no template, byte-exact attributes and a branch called ``main``."""
        path.mkdir(parents=True, exist_ok=True)
        repo = cls(path)
        repo._call(["init", "-q", "--template=", "-b", "main", "."], None, None, assert_own=False)
        (repo.path / ".git" / "info").mkdir(exist_ok=True)
        (repo.path / ".git" / "info" / "attributes").write_text(BYTE_EXACT)
        (repo.path / ".git" / "info" / "exclude").write_text(IGNORED)
        return repo

    def exists(self) -> bool:
        """Is this folder the top of a repository of its own (not merely inside one)?"""
        return (self.path / ".git").exists()

    def git(self, *argv: str, data: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run git here and return its output as text, undecodable bytes kept as surrogates.

        Raises:
            GitFailure: git exited non-zero.
            NosyncError: this folder is no repository of its own; git would act on a parent.
        """
        return self.raw(*argv, data=data, env=env).decode("utf-8", "surrogateescape")

    def raw(self, *argv: str, data: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """As ``git``, but bytes."""
        return self._call(list(argv), data, env)

    def ok(self, *argv: str) -> bool:
        """Did git exit 0?"""
        try:
            self.raw(*argv)
        except GitFailure:
            return False
        return True

    def _call(
        self, argv: list[str], data: bytes | None, env: Mapping[str, str] | None, assert_own: bool = True
    ) -> bytes:
        if assert_own and not self.exists():
            raise NosyncError(
                f"{self.path} is not a git repository of its own, so 'git {argv[0]}' would act on a parent",
                "the submodule is not initialised, or the tree was removed half-way",
                "make apply",
            )
        settings = [part for setting in HERMETIC for part in ("-c", setting)]
        full_env = hermetic_environment(self.path.parent) | dict(env or {})
        code, out, err = _run(settings + argv, self.path, full_env, data)
        if code:
            words = (out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
            raise GitFailure(argv, code, *words, self.path)
        return out


def user_git(
    cwd: Path,
    *argv: str,
    timeout_settings: bool = False,
    data: bytes | None = None,
    anywhere: bool = False,
    within: float = 0,
) -> str:
    """Run git with the user's own configuration (mirrors, proxies, credentials), never asking questions.

    Args:
        cwd: The top of a repository; asserted, so that no command reaches a parent repository.
        timeout_settings: Give up on a silent network within seconds.
        anywhere: ``cwd`` is no repository and none is needed (``clone``, ``ls-remote``).
        within: Seconds after which the command counts as failed; 0 for no limit.
    """
    if not anywhere and not (cwd / ".git").exists():
        raise NosyncError(f"{cwd} is not a git repository of its own", "its submodule is not initialised", "make apply")
    env = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "GIT_CEILING_DIRECTORIES": str(cwd.resolve().parent)}
    settings = [part for setting in OURS for part in ("-c", setting)]
    settings += ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=10"] if timeout_settings else []
    if timeout_settings:
        env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=10")
    words = settings + list(argv)
    code, out, err = _run_within(within, words, cwd, env) if within else _run(words, cwd, env, data)
    if code:
        raise GitFailure(argv, code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    return out.decode("utf-8", "surrogateescape")


def check_version() -> None:
    """Raise NosyncError when git is older than what ``git am --empty`` needs."""
    code, out, _ = _run(["--version"], Path.cwd(), os.environ, None)
    words = out.decode().split()
    version = tuple(int(part) for part in words[2].split(".")[:2]) if code == 0 and len(words) > 2 else (0, 0)
    if version < MINIMUM_VERSION:
        raise NosyncError(
            f"git {'.'.join(map(str, version))} is too old",
            "the tool uses 'git am --empty'",
            "install git 2.35 or newer",
        )
