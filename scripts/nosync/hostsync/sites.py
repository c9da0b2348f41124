"""The call site of an event: the innermost frame of the user's code."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SKIPPED: list[str] = [
    os.path.dirname(torch.__file__) + os.sep,
    _HERE,
    os.sep + "contextlib.py",
    os.sep + "triton" + os.sep,
    os.sep + "numpy" + os.sep,
]


class Site(NamedTuple):
    """A place in a source file."""

    file: str
    line: int
    function: str


UNKNOWN = Site("<no Python frame>", 0, "?")


@contextlib.contextmanager
def skipping(*fragments: str) -> Iterator[None]:
    """Look through files whose path holds one of the fragments (``"/tensordict/"``): name their caller instead."""
    _SKIPPED.extend(fragments)
    _is_skipped.cache_clear()
    try:
        yield
    finally:
        for fragment in fragments:
            _SKIPPED.remove(fragment)
        _is_skipped.cache_clear()


@functools.cache
def _is_skipped(file: str) -> bool:
    return any(part in file for part in _SKIPPED)


def user_site() -> Site:
    """The innermost frame that is neither torch's, triton's nor the detector's.

    Generated code (``<string>``) is named only when nothing else is on the stack.
    """
    generated = None
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<"):
            if generated is None and not name.startswith(("<frozen", "<eval_with_key")):
                generated = Site(name, frame.f_lineno, frame.f_code.co_name)
        elif not _is_skipped(name):
            return Site(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return generated or UNKNOWN
