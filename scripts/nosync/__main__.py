"""``python -m nosync``."""

from nosync.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
