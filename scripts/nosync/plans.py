"""What a rebase takes where, and the repository that it works in."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from nosync import applying, building, replaying, targets, trees
from nosync.applying import Item
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.series import Cell, Series, cell, digest, load_series
from nosync.sources import Source
from nosync.targets import Target


@dataclass(frozen=True)
class Plan:
    """What is taken where.

    Args:
        ground: Series that lie below and stay as they are on the target.
        moved: The series to take along, as their patches of an earlier base.
        without: Series that have no earlier patches.
    """

    target: Target
    source: Source
    ground: list[Cell]
    moved: list[Cell]
    without: list[Series]

    @property
    def digest(self) -> str:
        return digest([*self.ground, *self.moved])

    @functools.cached_property
    def items(self) -> list[tuple[Item, str]]:
        """Every patch to take along, with the id of the base that it was written for."""
        return [
            (replace(item, inherited=True), each.written_for.id if each.written_for else "")
            for each in self.moved
            for item in applying.items([each], self.source)
        ]


def make(layout: Layout, target: Target, source: Source, only: str) -> Plan:
    everything = load_series(layout.patches, target.project)
    names = [series.name for series in everything]
    if only and only not in names:
        raise NosyncError(f"{target.project.name} has no series {only!r}", "", "one of: " + ", ".join(names))
    chosen = [series for series in everything if only in ("", series.name)]
    below = everything[: names.index(only)] if only else []
    ground = [cell(target.project, series, target.base) for series in below]
    moved = [(series, targets.earlier_cell(target, series)) for series in chosen]
    plan = Plan(
        target, source, ground, [each for _, each in moved if each], [series for series, each in moved if not each]
    )
    if not plan.moved:
        raise NosyncError(
            f"no series of {target.project.name} has patches of a base before {target.base.id}",
            "it is the oldest base that patches are written for",
            f"make apply P={target.project.name} BASE={target.base.id}",
        )
    return plan


def prepare(layout: Layout, plan: Plan) -> Repo:
    """A scratch repository: the target's files, the ground on it, and every blob that a three-way merge may need."""
    building.ensure_base(layout, plan.source)
    _make_stacks(layout, plan)
    repo, states = building.make_patched(layout, plan.source, plan.ground, kind="rebase")
    if bad := [state for state in states if state.word in applying.STOPPING]:
        raise NosyncError(
            f"{bad[0].series}/{bad[0].file}, which lies below, does not fit {plan.target.base.id}: {bad[0].detail}",
            "that series has to be taken there first",
            f"make rebase-{plan.target.project.name} TO={plan.target.to} S={bad[0].series}",
        )
    for base in {each.written_for.id for each in plan.moved if each.written_for}:
        trees.fetch(repo, layout.tree("base", plan.target.project.name, base), trees.BASE, f"{replaying.BASES}/{base}")
        stack = layout.tree("patched", plan.target.project.name, base)
        if Repo(stack).exists():
            trees.fetch(repo, stack, trees.APPLIED, f"{replaying.STACKS}/{base}")
    return repo


def _make_stacks(layout: Layout, plan: Plan) -> None:
    """Both trees of every base that patches come from; a second patch of a file needs the first one's result."""
    for base in {each.written_for.id: each.written_for for each in plan.moved if each.written_for}.values():
        building.build(layout, plan.target.project, base, leave=True)
