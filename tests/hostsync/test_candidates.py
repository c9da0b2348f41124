"""The candidate finder: from exported names to operators, and what the table already has."""

from __future__ import annotations

import torch

from nosync.hostsync.candidates import _direct_calls, in_table, main, operators


def test_names_become_operators() -> None:
    entries, kernels = operators(
        [
            "at::cuda::nonzero(at::Tensor const&)",
            "at::cuda::nonzero_out(at::Tensor&, at::Tensor const&)",
            "at::native::nonzero_cuda(at::Tensor const&)",
            "at::native::(anonymous namespace)::helper(int)",
            "c10::cuda::something()",
        ]
    )
    assert (entries, kernels) == (["nonzero"], ["nonzero_cuda"])


def test_the_tables_names() -> None:
    assert in_table("nonzero")
    assert in_table("index_put_")
    assert not in_table("add")


def test_calls_and_jumps_are_found() -> None:
    code = bytearray(b"\x90\xe8\xfa\x00\x00\x00\x90\xe9\xf4\xff\xff\xff\x90\x90\x90\x90\x90")
    # call at 1001h: 1006h + 0FAh = 1100h; jmp at 1007h: 100Ch - 12 = 1000h
    assert _direct_calls(code, 0x1000, torch.tensor([0x1000, 0x1100])) == [(0x1001, 0x1100), (0x1007, 0x1000)]


def test_without_the_library(tmp_path: object, capsys: object) -> None:
    assert main(["--library", f"{tmp_path}/none.so"]) == 2
