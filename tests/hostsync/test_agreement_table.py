"""docs/hostsync.md holds the agreement table of the recorded counts."""

from __future__ import annotations

import json

import agreement


def test_the_docs_are_up_to_date() -> None:
    text = agreement.DOCS.read_text(encoding="utf-8")
    data = json.loads(agreement.DATA.read_text(encoding="utf-8"))
    assert text == agreement.with_table(text, agreement.table(data)), "run tests/hostsync/agreement.py"
