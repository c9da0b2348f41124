"""``clean``: remove a project's trees, unless they hold work of the user's."""

from __future__ import annotations

from nosync import lock, trees
from nosync.errors import NosyncError
from nosync.git import Repo
from nosync.layout import Layout
from nosync.projects import choose, load_projects
from nosync.report import Report

COLUMNS = ("project", "base", "tree", "change")


def clean(layout: Layout, name: str, base_word: str, force: bool) -> Report:
    """Remove both trees of a base of the project, or with ``all`` of each.

    Raises:
        NosyncError: a tree holds local work or kept refs, and ``force`` is not given; nothing was removed.
    """
    report = Report("clean", COLUMNS)
    (project,) = choose(load_projects(layout.projects_file), name)
    bases = project.bases if base_word == "all" else (project.base(base_word),)
    places = [(base, kind, layout.tree(kind, project.name, base.id)) for base in bases for kind in ("base", "patched")]
    with lock.exclusive(layout.build / "lock", f"clean {name}"):
        for _, _, path in places:
            trees.recover(path, layout)
        there = [place for place in places if place[2].exists()]
        held = {path: _held(Repo(path)) for _, _, path in there}
        full = {path: work for path, work in held.items() if work}
        if full and not force:
            word = "" if base_word == "all" else f" BASE={base_word}"
            going = ", ".join(str(path.relative_to(layout.root)) for _, _, path in there)
            raise NosyncError(
                "; ".join(f"{path} holds {', '.join(work)}" for path, work in full.items()),
                "commits, edits or kept refs that are in no patch",
                f"make refresh-{name}{word}\nmake clean-{name}{word} FORCE=1      # removes {going}",
            )
        for base, kind, path in there:
            trees.remove(path, layout)
            report.add(project=name, base=base.id, tree=kind, change="removed")
    return report


def _held(tree: Repo) -> list[str]:
    if not tree.exists():
        return trees.local_work(tree)
    kept = tree.git("for-each-ref", "--format=%(refname)", trees.KEPT).split()
    return trees.local_work(tree) + [ref for ref in kept if not ref.endswith(f"/{trees.DROPPED}")]
