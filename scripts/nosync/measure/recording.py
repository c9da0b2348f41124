"""Recordings of named tensors: ``numpy.savez`` files, read and compared without numpy.

An entry ``<step>/<quantity>/<tensor>`` is one tensor. Integers and booleans are compared exactly; so are names, shapes
and dtypes. Floats are compared by the largest difference over the largest element.
"""

from __future__ import annotations

import ast
import math
import operator
import struct
import zipfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FLOATS = {"<f8": "d", "<f4": "f"}
_HALF = "<f2"

Difference = dict[tuple[int, str], float]
"""Per (step, quantity): the largest over its tensors of max |a - b| / max |a|; infinite where nothing can be said."""


@dataclass(frozen=True)
class Tensor:
    """One array: shape, numpy's name of its dtype, and its bytes in C order."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes

    @property
    def exact(self) -> bool:
        """Is it compared for equality (integers, booleans)?"""
        return self.dtype not in (*_FLOATS, _HALF)

    def floats(self) -> array[float]:
        """The elements of a float tensor."""
        if self.dtype == _HALF:
            return array("d", struct.unpack(f"<{len(self.data) // 2}e", self.data))
        return array(_FLOATS[self.dtype], self.data)


def read(file: Path) -> dict[str, Tensor]:
    """The tensors of a recording by name.

    Raises:
        ValueError: it is not a recording, or an array is of a kind that is not supported.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _array(raw: bytes) -> Tensor:
    if raw[:6] != b"\x93NUMPY":
        raise ValueError("an entry is no array")
    size = "<H" if raw[6] == 1 else "<I"
    (length,) = struct.unpack_from(size, raw, 8)
    start = 8 + struct.calcsize(size)
    header = ast.literal_eval(raw[start : start + length].decode("latin-1"))
    if header["fortran_order"] and len(header["shape"]) > 1:
        raise ValueError("an array is in Fortran order; record contiguous ones")
    if header["descr"][0] == ">" or "O" in header["descr"]:
        raise ValueError(f"an array has dtype {header['descr']}")
    return Tensor(tuple(header["shape"]), header["descr"], raw[start + length :])


def split(name: str) -> tuple[int, str, str]:
    """Step, quantity and tensor of an entry's name."""
    step, quantity, tensor = name.split("/", 2)
    return int(step), quantity, tensor


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[Difference, list[str]]:
    """Compare two recordings: differences of the float quantities, and what is not exactly as it must be."""
    wrong = [f"{name}: only in one" for name in sorted(a.keys() ^ b.keys())]
    found: Difference = {}
    for name in sorted(a.keys() & b.keys()):
        one, other = a[name], b[name]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            wrong.append(f"{name}: {one.dtype} {one.shape} and {other.dtype} {other.shape}")
        elif one.exact:
            wrong += [f"{name}: not equal"] if one.data != other.data else []
        else:
            step, quantity, _ = split(name)
            here = relative_difference(one, other)
            found[step, quantity] = max(found.get((step, quantity), 0.0), here)
    return found, wrong


def relative_difference(one: Tensor, other: Tensor) -> float:
    """max |a - b| / max |a| of two float tensors of one shape; NaN equals NaN, an infinity only itself."""
    if one.data == other.data:
        return 0.0
    a, b = one.floats(), other.floats()
    apart = list(map(abs, map(operator.sub, a, b)))
    if not math.isfinite(math.fsum(apart) if len(apart) < 4096 else sum(apart)):
        pairs = list(_finite(a, b))
        if any(math.isinf(difference) for difference, _ in pairs):
            return math.inf
        apart, size = [difference for difference, _ in pairs], max((value for _, value in pairs), default=0.0)
    else:
        size = max(map(abs, a))
    worst = max(apart, default=0.0)
    return worst / size if size else (0.0 if worst == 0.0 else math.inf)


def _finite(a: array[float], b: array[float]) -> Iterator[tuple[float, float]]:
    """(difference, |a|) by element; equal infinities and pairs of NaN differ by zero and count for no size."""
    for x, y in zip(a, b, strict=True):
        if x == y or (x != x and y != y):
            yield 0.0, abs(x) if math.isfinite(x) else 0.0
        elif math.isfinite(x) and math.isfinite(y):
            yield abs(x - y), abs(x)
        else:
            yield math.inf, 0.0
