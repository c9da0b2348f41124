"""Reading patch files: pure functions on bytes."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from nosync.patchfile import blob_id, parse

ZERO = "0" * 40


def test_the_parts_put_together_are_the_file(upstream: SimpleNamespace) -> None:
    for data in upstream.alpha.values():
        assert parse(data).data == data


def test_paths_and_blobs_are_read(upstream: SimpleNamespace) -> None:
    second = parse(upstream.alpha["0002-core-say-twenty-and-test-it.patch"])
    assert [diff.path for diff in second.diffs] == ["src/demo/core.py", "tests/test_core.py"]
    assert all(len(diff.old) == len(diff.new) == 40 for diff in second.diffs)
    third = parse(upstream.alpha["0003-tests-one-more.patch"])
    assert third.diffs[0].is_new and third.diffs[0].old == ZERO


def test_subjects_are_unfolded_and_decoded(upstream: SimpleNamespace) -> None:
    assert parse(upstream.alpha["0001-core-say-ten.patch"]).subject() == "core: say ten"
    assert parse(b"Subject: [PATCH] a\n b\n\n").subject() == "a b"
    assert parse(b"Subject: [PATCH] =?UTF-8?q?gr=C3=B6=C3=9Fer?=\n\n").subject() == "größer"
    assert parse(b"Subject: [PATCH] [core] x\n\n").subject() == "[core] x"
    assert parse(b"").subject() == ""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n", "x y"),
        (b'diff --git "a/\\303\\274 x" "b/\\303\\274 x"\nold mode 100644\nnew mode 100755\n', "ü x"),
        (b"diff --git a/x b/x\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-+++ b/y\n", "x"),
        (b"diff --git a/a b/a b/a b/a\nnew file mode 100644\nindex %b..%b\n" % (b"0" * 40, b"1" * 40), "a b/a"),
        (b"diff --git a/x y b/x y\nindex 1..2 100644\n--- a/x y\t\n+++ b/x y\t\n@@ -1 +1 @@\n-a\n+b\n", "x y"),
        (b'diff --git "a/t\\tq\\"b" "b/t\\tq\\"b"\nindex 1..2\n--- "a/t\\tq\\"b"\n+++ "b/t\\tq\\"b"\n', 't\tq"b'),
    ],
    ids=["mode of a name with a space", "quoted mode", "deletion", "name with b/", "tab after the name", "escapes"],
)  # fmt: skip
def test_path_of_a_diff(text: bytes, path: str) -> None:
    (diff,) = parse(b"From x\nSubject: y\n\n" + text).diffs
    assert diff.path == path


def test_removed_dashes_do_not_end_the_message() -> None:
    data = b"Subject: x\n\nbody\n\ndiff --git a/x b/x\n@@ -1 +0 @@\n---\ndiff --git a/y b/y\n@@ -1 +1 @@\n-a\n+b\n"
    assert [diff.path for diff in parse(data).diffs] == ["x", "y"]


def test_what_is_left_out_comes_back_at_its_place(upstream: SimpleNamespace) -> None:
    for data in upstream.alpha.values():
        whole = parse(data)
        rest, left_out = whole.without(("tests/",))
        assert all(not diff.path.startswith("tests/") for diff in rest.diffs)
        head = rest if rest.diffs else type(rest)(rest.head[:-1], ())  # git writes no empty line where no diff follows
        assert head.with_diffs_of(whole, left_out).data == data
    assert parse(data).without(())[1] == []


def test_blob_ids_are_gits() -> None:
    for data in (b"", b"x\n", b"\r\n\0" * 50):
        done = subprocess.run(["git", "hash-object", "--stdin"], input=data, capture_output=True, check=True)
        assert blob_id(data) == done.stdout.decode().strip()
