"""The Hessian of a UMA-style model, by ``torch.vmap`` and by a loop: that of the base.

It differentiates the forces once more, under vmap by default, so every gradient of a series has to allow both.
"""

from __future__ import annotations

import pytest
import torch
from uma import DATASETS
from whole_step import collate, device_type, load_step, make_unit, predict, samples, step_tasks

pytestmark = [pytest.mark.needs_series("moe-routing"), pytest.mark.needs_series("step-rest")]
SYSTEM = 3  # of `samples`: four atoms


def hessian(which: str, vmap: bool, training: bool, frozen: bool) -> torch.Tensor:
    """[1, 12, 12], for one system of four atoms.

    Args:
        which: Tree, base or patched.
        vmap: As upstream's ``hessian_vmap``.
        training: Also record the graph of the Hessian.
        frozen: The weights need no gradient, as for predictions.
    """
    tree, cpu = load_step(which), torch.device("cpu")
    with device_type(cpu):
        tasks = step_tasks(tree)
        unit = make_unit(tree, tasks, regress_hessian=True, hessian_vmap=vmap)
        unit.model.train(training).requires_grad_(not frozen)
        sample = samples(tree, 3, (DATASETS[0],) * (SYSTEM + 1))[SYSTEM:]
        return predict(tree, unit, collate(tree, tasks, sample), cpu)[f"{DATASETS[0]}_hessian"]["hessian"]


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trained"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("vmap", [True, False], ids=["vmap", "loop"])
def test_hessian_is_that_of_the_base(vmap: bool, training: bool, frozen: bool) -> None:
    old, new = (hessian(which, vmap, training, frozen).detach() for which in ("base", "patched"))
    assert old.shape == (1, 12, 12)
    assert old.abs().max() > 0
    torch.testing.assert_close(new, old, rtol=0, atol=1e-5 * float(old.abs().max()))
