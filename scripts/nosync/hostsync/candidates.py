"""Maintenance: which operators of the installed torch may wait, read off its CUDA library.

    python -m nosync.hostsync.candidates            # needs a CUDA build of torch, no GPU

Each CUDA operator has an exported entry ``at::cuda::<name>``. An operator is a candidate if, from that entry, direct
calls lead to torch's check for synchronizing operations, to a read of a value (``item``), or to a synchronize call of
the CUDA runtime. Calls through function pointers are not followed, so kernels behind dispatch stubs are listed by
their own names. The command prints the candidates that the rule table does not name.
"""

from __future__ import annotations

import argparse
import bisect
import mmap
import re
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

from .rules import TABLE

SEEDS = (
    "warn_or_error_on_sync",
    "at::_ops::item::call",
    "at::Tensor::item<",
    "at::_ops::_local_scalar_dense::call",
    "at::_ops::nonzero::call",
    "at::_ops::is_nonzero::call",
    "at::_ops::equal::call",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
)
"""Functions whose call makes the host wait, by a part of the demangled name."""

_CUDNN = "waits only while it tries algorithms (torch.backends.cudnn.benchmark)"
REVIEWED: dict[str, str] = {
    "_foreach_mul": "recorded on an H200: no wait",
    "_foreach_div": "recorded on an H200: no wait",
    "_fused_adam": "recorded on an H200: no wait (the read is of a learning rate on the host)",
    "_fused_adamw": "recorded on an H200: no wait (the read is of a learning rate on the host)",
    "_fused_sgd": "recorded on an H200: no wait (the read is of a learning rate on the host)",
    "cudnn_convolution": _CUDNN,
    "cudnn_convolution_relu": _CUDNN,
    "cudnn_convolution_add_relu": _CUDNN,
    "cudnn_convolution_transpose": _CUDNN,
}
"""Candidates that need no row, and why; by base name."""

_DEPTH = 12
_CHUNK = 1 << 26
_ENTRY = re.compile(r"^at::cuda::(\w+?)(_out|_outf)?\(")
_NATIVE = re.compile(r"^at::native::(?:\w+::)*(\w+)[<(]")


class Section(NamedTuple):
    """Where a section of the file lies, and where it is loaded."""

    address: int
    offset: int
    size: int
    link: int
    entry_size: int


class Library:
    """The parts of a 64-bit ELF library that call graphs need."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self.sections = self._sections()
        self.symbols = self._symbols()
        self.starts = self._function_starts()

    def _sections(self) -> dict[str, Section]:
        (table,) = struct.unpack_from("<Q", self._bytes, 0x28)
        size, count, names = struct.unpack_from("<HHH", self._bytes, 0x3A)
        rows = [struct.unpack_from("<IIQQQQIIQQ", self._bytes, table + i * size) for i in range(count)]
        strings = rows[names][4]
        return {self._text(strings + row[0]): Section(row[3], row[4], row[5], row[6], row[9]) for row in rows}

    def _text(self, offset: int) -> str:
        return self._bytes[offset : self._bytes.find(b"\0", offset)].decode()

    def _symbols(self) -> list[tuple[int, str]]:
        """(address, mangled name) of every dynamic symbol, in the order of the symbol table."""
        table, strings = self.sections[".dynsym"], self.sections[".dynstr"]
        found = []
        for offset in range(table.offset, table.offset + table.size, 24):
            name, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", self._bytes, offset)
            found.append((address, self._text(strings.offset + name)))
        return found

    def _function_starts(self) -> list[int]:
        """Where functions begin, from the exception tables."""
        section = self.sections[".eh_frame_hdr"]
        (count,) = struct.unpack_from("<I", self._bytes, section.offset + 8)
        rows = struct.iter_unpack("<ii", self._bytes[section.offset + 12 : section.offset + 12 + 8 * count])
        return [section.address + start for start, _ in rows]

    def stubs(self) -> dict[int, str]:
        """Address of each procedure linkage stub → mangled name."""
        relocations = self.sections[".rela.plt"]
        slots = {}
        for slot, info, _ in struct.iter_unpack(
            "<QQq", self._bytes[relocations.offset : relocations.offset + relocations.size]
        ):
            slots[slot] = self.symbols[info >> 32][1]
        found = {}
        for name in (".plt", ".plt.sec"):
            if name in self.sections:
                found.update(self._stubs_of(self.sections[name], slots))
        return found

    def _stubs_of(self, section: Section, slots: dict[int, str]) -> dict[int, str]:
        code = self._bytes[section.offset : section.offset + section.size]
        found = {}
        for start in range(0, len(code) - 15, 16):
            jump = code.find(b"\xff\x25", start, start + 12)
            if jump >= 0:
                (offset,) = struct.unpack_from("<i", code, jump + 2)
                slot = section.address + jump + 6 + offset
                if slot in slots:
                    found[section.address + start] = slots[slot]
        return found

    def calls_to(self, targets: set[int]) -> dict[int, set[int]]:
        """Start of each function that calls or jumps to a target directly → the targets."""
        section = self.sections[".text"]
        wanted = torch.tensor(sorted(targets))
        found: dict[int, set[int]] = defaultdict(set)
        for begin in range(0, section.size, _CHUNK):
            length = min(_CHUNK + 5, section.size - begin)
            raw = bytearray(self._bytes[section.offset + begin : section.offset + begin + length])
            for place, target in _direct_calls(raw, section.address + begin, wanted):
                found[self._start_of(place)].add(target)
        return found

    def _start_of(self, address: int) -> int:
        return self.starts[max(bisect.bisect_right(self.starts, address) - 1, 0)]


def _direct_calls(code: bytearray, base: int, wanted: torch.Tensor) -> list[tuple[int, int]]:
    """(place, target) of the ``call`` and ``jmp`` instructions in the code that go to one of the addresses."""
    data = torch.frombuffer(code, dtype=torch.uint8)
    places = ((data[:-4] == 0xE8) | (data[:-4] == 0xE9)).nonzero().squeeze(1)
    parts = [data[places + k].to(torch.int64) << (8 * (k - 1)) for k in range(1, 5)]
    relative = sum(parts[1:], parts[0])
    relative = torch.where(relative >= 1 << 31, relative - (1 << 32), relative)
    targets = places + 5 + relative + base
    hits = torch.isin(targets, wanted)
    return list(zip((places[hits] + base).tolist(), targets[hits].tolist(), strict=True))


def demangle(names: list[str]) -> list[str]:
    """C++ names in readable form (needs ``c++filt``)."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def waiting_functions(library: Library) -> list[str]:
    """Readable names of the exported functions from which direct calls lead to a wait."""
    stubs = library.stubs()
    readable = dict(zip(stubs, demangle(list(stubs.values())), strict=True))
    frontier = {address for address, name in readable.items() if any(seed in name for seed in SEEDS)}
    exported = defaultdict(list)
    for address, name in library.symbols:
        if address:
            exported[address].append(name)
    by_name = {name: address for address, name in stubs.items()}
    seen: set[int] = set()
    names: set[str] = set()
    for _ in range(_DEPTH):
        callers = set(library.calls_to(frontier)) - seen if frontier else set()
        seen |= callers
        frontier = set(callers)
        for start in callers:
            names.update(exported.get(start, ()))
            frontier.update(by_name[name] for name in exported.get(start, ()) if name in by_name)
    return sorted(set(demangle(sorted(names))))


def operators(functions: list[str]) -> tuple[list[str], list[str]]:
    """(operators with an entry of their own, kernels that have none), by base name."""
    entries = {match[1].removesuffix("_symint") for name in functions if (match := _ENTRY.match(name))}
    kernels = {match[1] for name in functions if (match := _NATIVE.match(name))}
    return sorted(entries), sorted(kernels)


def in_table(name: str) -> bool:
    """Whether a row names the operator, its in-place form or its functional form."""
    bases = {rule.operator.partition("::")[2].partition(".")[0] for rule in TABLE}
    return bool({name, name.rstrip("_"), name + "_"} & bases)


def main(argv: list[str] | None = None) -> int:
    """Print the candidates that the table does not name."""
    parser = argparse.ArgumentParser(prog="nosync.hostsync.candidates", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="also those in the table")
    parser.add_argument(
        "--library",
        type=Path,
        default=Path(torch.__file__).parent / "lib" / "libtorch_cuda.so",
        help="the library to read (default: the installed torch's)",
    )
    options = parser.parse_args(argv)
    if not options.library.exists():
        print(f"no such library: {options.library}; this needs a CUDA build of torch", file=sys.stderr)
        return 2
    entries, kernels = operators(waiting_functions(Library(options.library)))
    print(f"torch {torch.__version__}: {len(entries)} operators lead to a wait by direct calls")
    for name in entries:
        known = "in the table" if in_table(name) else REVIEWED.get(name.rstrip("_"), "")
        if options.all or not known:
            print(f"  aten::{name}" + (f"  ({known})" if known else ""))
    print(f"and {len(kernels)} kernels, by their own names")
    for name in kernels:
        print(f"  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
