"""Reading a TOML file, and the fields of its tables, each of the type that it must have."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from nosync.errors import NosyncError

_WORDS = {str: "a string", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}


class FieldError(ValueError):
    """A field that is missing or of another type."""


def load(file: Path, way_out: str = "") -> dict[str, Any]:
    """The file's table.

    Raises:
        FileNotFoundError: there is none.
        NosyncError: it is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # a slip, or bytes that are not UTF-8
        raise NosyncError(f"{file} is not valid TOML: {error}", "a slip while editing", way_out) from None


def field[T: (str, int, bool, list, dict)](
    body: dict[str, Any], key: str, kind: type[T], default: T | None = None
) -> T:
    """The value of a key; without a default it must be there.

    Raises:
        FieldError: it is missing or of another type.
    """
    if key not in body and default is not None:
        return default
    if key not in body:
        raise FieldError(f"{key!r} is missing")
    value = body[key]
    if type(value) is not kind:  # a bool is an int for Python, not for TOML
        raise FieldError(f"{key} = {value!r} is not {_WORDS[kind]}")
    return value


def strings(body: dict[str, Any], key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A list of strings."""
    found = field(body, key, list, None if default is None else list(default))
    if not all(isinstance(entry, str) for entry in found):
        raise FieldError(f"{key} = {found!r} is not a list of strings")
    return tuple(found)


def table_of_strings(body: dict[str, Any], key: str) -> dict[str, str]:
    """A table whose values are strings; an empty one where it is missing."""
    table = field(body, key, dict, {})
    return {name: field(table, name, str) for name in table}


def tables(body: dict[str, Any], key: str, default: list[Any] | None = None) -> list[dict[str, Any]]:
    """A list of tables."""
    found = body.get(key, default)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise FieldError(f"{key!r} is missing" if found is None else f"{key} = {found!r} is no list of tables")
    return found
