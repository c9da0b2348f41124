"""A UMA-style model in the transforms of torch.func, in forward-mode AD and in batches of gradients, against the base.

An ``autograd.Function`` with a backward alone serves none of them, so each of a series has to step aside there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad
from uma import DATASETS
from whole_step import collate, device_type, load_step, make_unit, samples, step_tasks

pytestmark = [pytest.mark.needs_series("moe-routing"), pytest.mark.needs_series("escn-operators")]
FIRST = 3  # of `samples`: four atoms
Energy = Callable[[torch.Tensor], torch.Tensor]


def model_energy(which: str, systems: int, trained: bool) -> tuple[Energy, torch.Tensor]:
    """A sum over a backbone's node embeddings as a function of the positions [atoms, 3], and positions.

    Args:
        which: Tree, base or patched.
        systems: In the batch: with one, a MoLE layer has one weight.
        trained: The weights need gradients.
    """
    tree, cpu = load_step(which), torch.device("cpu")
    with device_type(cpu):
        tasks = step_tasks(tree)
        backbone = make_unit(tree, tasks).model.train(trained).requires_grad_(trained).backbone
    backbone.regress_config.forces = backbone.regress_config.stress = False
    datasets = tuple(DATASETS[i % len(DATASETS)] for i in range(FIRST + systems))
    batch = collate(tree, tasks, samples(tree, 3, datasets)[FIRST:])

    def energy(positions: torch.Tensor) -> torch.Tensor:
        given = copy.deepcopy(batch)
        given["pos"] = positions
        embedding = backbone(given)["node_embedding"]
        weights = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0))
        return (embedding * weights).sum()

    return energy, batch["pos"].clone()


def gradient(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(energy(positions), positions, create_graph=True)
    return found


def forward_mode(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(energy(forward_ad.make_dual(positions, positions.sin()))).tangent


def forward_over_reverse(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(positions.requires_grad_(), positions.detach().sin())
        return forward_ad.unpack_dual(gradient(energy, dual)).tangent


def batch_of_gradients(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    first = gradient(energy, positions.requires_grad_())
    eye = torch.eye(first.numel()).view(-1, *first.shape)
    return torch.autograd.grad(first, positions, eye, is_grads_batched=True)[0]


def vmap_of_gradients(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    first = gradient(energy, positions.requires_grad_())

    def row(weight: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(first, positions, weight, retain_graph=True)[0]

    return torch.vmap(row)(torch.eye(first.numel()).view(-1, *first.shape))


def hessian(energy: Energy, positions: torch.Tensor) -> torch.Tensor:
    # the rotation of the edges about their axis is drawn at random
    return torch.func.jacfwd(torch.func.jacrev(energy), randomness="same")(positions)


WAYS = (forward_mode, forward_over_reverse, batch_of_gradients, vmap_of_gradients, hessian)


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
@pytest.mark.parametrize("systems", [1, 2])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_derivatives_are_those_of_the_base(way: Callable[..., torch.Tensor], systems: int, trained: bool) -> None:
    old, new = (way(*model_energy(which, systems, trained)).detach() for which in ("base", "patched"))
    assert old.abs().max() > 0
    torch.testing.assert_close(new, old, rtol=0, atol=1e-5 * float(old.abs().max()))
