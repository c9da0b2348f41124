"""The call site of an event: the innermost frame of the user's code."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch


def _folders(package: str) -> list[str]:
    """Where a package is installed, if it is; does not import it."""
    spec = importlib.util.find_spec(package)
    return [folder + os.sep for folder in (spec and spec.submodule_search_locations) or ()]


_SKIPPED: tuple[str, ...] = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    contextlib.__file__,
    *_folders("triton"),
    *_folders("numpy"),
)
_FRAGMENTS: list[str] = []


class Site(NamedTuple):
    """A place in a source file."""

    file: str
    line: int
    function: str


UNKNOWN = Site("<no Python frame>", 0, "?")


@contextlib.contextmanager
def skipping(*fragments: str) -> Iterator[None]:
    """Look through files whose path holds one of the fragments (``"/tensordict/"``): name their caller instead."""
    _FRAGMENTS.extend(fragments)
    _is_skipped.cache_clear()
    try:
        yield
    finally:
        for fragment in fragments:
            _FRAGMENTS.remove(fragment)
        _is_skipped.cache_clear()


@functools.cache
def _is_skipped(file: str) -> bool:
    return file.startswith(_SKIPPED) or any(fragment in file for fragment in _FRAGMENTS)


def short_names(files: Iterable[str]) -> dict[str, str]:
    """For each file its name, with as many of its folders as tell it from the others."""
    names = {file: os.path.basename(file) for file in files}
    for file in names:
        namesakes = [other for other in names if other != file and os.path.basename(other) == os.path.basename(file)]
        parts = file.split(os.sep)
        length = 1
        while length < len(parts) and any(other.split(os.sep)[-length:] == parts[-length:] for other in namesakes):
            length += 1
        names[file] = os.sep.join(parts[-length:])
    return names


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
