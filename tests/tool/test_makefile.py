"""The Makefile: what reaches the interpreters, whatever the checkout's folder is called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SHOW = '#!/bin/sh\nprintf \'<%s>\' "$NOSYNC_PYTHON" "$@"\n'


@pytest.fixture(params=["plain", "a b", "it's", 'a "b" c'])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the Makefile, a bootstrap that does nothing and interpreters that show what they are given."""
    folder = tmp_path / request.param
    folder.mkdir()
    shutil.copy(TOP / "Makefile", folder)
    script(folder / "scripts" / "bootstrap", "#!/bin/sh\n")
    for name in ("tool", "export", "wheels", "libs", "bench-torch-sim"):
        script(folder / "build" / "env" / name / "bin" / "python", SHOW.replace("'<", f"'{name}:<"))
    return folder


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def make(folder: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON", "NOSYNC"))}
    done = subprocess.run(["make", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_any_name_of_the_checkouts_folder_will_do(checkout: Path) -> None:
    libs = f"{checkout}/build/env/libs/bin/python"
    assert make(checkout, "apply").startswith(f"tool:<{libs}>tool:<-m>tool:<nosync>tool:<apply>")
    assert make(checkout, "export-demo").startswith(f"export:<{libs}>export:<-m>export:<nosync>export:<export>")
    assert make(checkout, "wheels").startswith(f"wheels:<{libs}>")
    assert make(checkout, "bench-torch-sim").startswith(f"tool:<{checkout}/build/env/bench-torch-sim/bin/python>")


def test_an_interpreter_of_the_users_may_lie_anywhere(checkout: Path) -> None:
    own = script(checkout / "of my own" / "python", SHOW)
    assert make(checkout, "apply", f"PYTHON={own}").startswith(f"<{own}><-m><nosync>")
    assert make(checkout, "apply", "PYTHON=of my own/python").startswith(f"<{checkout}/of my own/python>")


def test_json_of_all_tests_stands_alone(checkout: Path) -> None:
    script(checkout / "build" / "env" / "check" / "bin" / "python", SHOW)
    assert "tests/tool" in make(checkout, "test") and "tests/tool" not in make(checkout, "test", "JSON=1")


def test_bootstrap_needs_no_home(tmp_path: Path) -> None:
    """It stops at the stub for uv, and not before."""
    script(tmp_path / "scripts" / "bootstrap", (TOP / "scripts" / "bootstrap").read_text())
    script(tmp_path / "bin" / "uv", '#!/bin/sh\n[ "$1" = --version ]\n')
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "tool.txt").write_text("")
    script(tmp_path / "bin" / "python3.12", "#!/bin/sh\n")  # good enough for it
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["scripts/bootstrap", "tool"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "build/env/tool could not be made" in done.stderr


def test_a_path_that_no_search_path_can_hold_is_refused_at_once(tmp_path: Path) -> None:
    script(tmp_path / "a:b" / "scripts" / "bootstrap", (TOP / "scripts" / "bootstrap").read_text())
    done = subprocess.run(
        ["scripts/bootstrap", "tool"], cwd=tmp_path / "a:b", capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "path holds ':'" in done.stderr


def test_a_script_to_audit_is_one_word(checkout: Path) -> None:
    assert "libs:<my script.py>libs:<-->libs:<1>libs:<2>" in make(checkout, "audit", "SCRIPT=my script.py", "ARGS=1 2")
    assert "<nosync.hostsync.audit>libs:<--json>libs:<->libs:<x.py>" in make(checkout, "audit", "SCRIPT=x.py", "JSON=1")
