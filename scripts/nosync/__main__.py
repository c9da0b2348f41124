"""``python -m nosync``."""

import sys

if sys.version_info < (3, 12):  # noqa: UP036 - before any import of ours, which an older Python may not even read
    print(
        f"error: Python {sys.version.split()[0]} is too old ({sys.executable})\n"
        "likely cause: PYTHON names it, or no make was used\n"
        "way out:\n  PYTHON=<a Python 3.12 or 3.13>, or make without PYTHON",
        file=sys.stderr,
    )
    sys.exit(2)

from nosync.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
