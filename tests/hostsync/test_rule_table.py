"""The table of rules: its rows name real operators, and a stranger can read where each comes from."""

from __future__ import annotations

import warnings

import pytest
import torch

from nosync.hostsync.events import KINDS
from nosync.hostsync.hints import sync_free_form
from nosync.hostsync.rules import CHECKED, TABLE, Rule, UncheckedTorchWarning, rules_for, warn_if_unchecked


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: f"{rule.operator} {rule.kind}")
def test_a_row_names_an_operator_and_its_source(rule: Rule) -> None:
    namespace, _, name = rule.operator.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0])
    if "." in name:
        assert name.partition(".")[2] in packet.overloads()
    assert rule.kind in KINDS
    assert rule.source
    assert rule.why


@pytest.mark.parametrize(
    "rule",
    [rule for rule in TABLE if not rule.soft and rule.weight != 0],
    ids=lambda rule: f"{rule.operator} {rule.kind}",
)
def test_the_message_has_a_form_that_does_not_wait(rule: Rule) -> None:
    assert sync_free_form(rule.operator, rule.kind)


def test_an_operator_without_a_row_waits_if_torch_says_so() -> None:
    assert [rule.operator for rule in rules_for(torch.ops.aten.add.Tensor)] == []
    library = torch.library.Library("hostsync_test", "DEF")
    library.define("sized(Tensor x) -> Tensor", tags=(torch.Tag.dynamic_output_shape,))
    assert [rule.weight for rule in rules_for(torch.ops.hostsync_test.sized.default)] == [1]


def test_an_unchecked_torch_gives_one_warning_that_names_it() -> None:
    warn_if_unchecked.cache_clear()
    with pytest.warns(UncheckedTorchWarning, match=r"torch 9\.9\.0") as caught:
        assert not warn_if_unchecked("9.9.0")
        assert not warn_if_unchecked("9.9.0")
    assert len(caught) == 1
    warn_if_unchecked.cache_clear()


@pytest.mark.parametrize("version", [f"{version}.0+cu130" for version in CHECKED])
def test_a_checked_torch_gives_none(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_if_unchecked(version)
