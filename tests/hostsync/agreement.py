"""The agreement table of docs/hostsync.md, from the recorded counts.

PYTHONPATH=scripts python tests/hostsync/agreement.py            # write it
PYTHONPATH=scripts python tests/hostsync/agreement.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from idioms import IDIOMS, Idiom

DATA = Path(__file__).parent / "h200.json"
DOCS = Path(__file__).parents[2] / "docs" / "hostsync.md"
BEGIN, END = "<!-- agreement: begin -->", "<!-- agreement: end -->"


def verdict(idiom: Idiom, row: dict[str, Any] | None) -> str:
    """How the virtual backend compares: one of the row names of the table."""
    if row is None:
        return "not recorded yet"
    if "error" in row:
        return "does not run on the GPU"
    if idiom.only:
        return "not on the virtual backend"
    if idiom.differs:
        return "waits on both, by another number" if row["profiler"] else "agrees, sync-free"
    return "agrees, waits" if row["profiler"] else "agrees, sync-free"


def table(data: dict[str, Any]) -> str:
    """The summary and the idioms that are not plain agreement, in Markdown."""
    rows = data["idioms"]
    verdicts = {idiom.name: verdict(idiom, rows.get(idiom.name)) for idiom in IDIOMS}
    lines = [f"Recorded on one {data['card']} with torch {data['torch']}, {len(IDIOMS)} idioms.", ""]
    lines += ["| virtual backend against the GPU | idioms |", "| --- | ---: |"]
    names = list(verdicts.values())
    lines += [
        f"| {name} | {names.count(name)} |" for name in sorted(set(names), key=lambda name: (-names.count(name), name))
    ]
    lines += ["", "| idiom | sync-debug | profiler | why it is listed |", "| --- | ---: | ---: | --- |"]
    for idiom in IDIOMS:
        row = rows.get(idiom.name, {})
        reason = idiom.differs or idiom.only or row.get("error", "")
        if not reason and row and row["sync_debug"] != row["profiler"]:
            reason = "sync-debug does not see it"
        if reason:
            counts = [str(row.get(key, "–")) for key in ("sync_debug", "profiler")]
            lines.append(f"| `{idiom.name}` | {counts[0]} | {counts[1]} | {reason.replace('|', '/')} |")
    return "\n".join(lines)


def with_table(text: str, new: str) -> str:
    """The document with the table between its markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> int:
    """Write the table into the docs, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = DOCS.read_text(encoding="utf-8")
    wanted = with_table(text, table(json.loads(DATA.read_text(encoding="utf-8"))))
    if options.check:
        return int(text != wanted)
    DOCS.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
