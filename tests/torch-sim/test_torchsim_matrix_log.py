"""The logarithm and the exponential of 3x3 matrices: precision against mpmath and SciPy, gradients, NaN, no wait."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
import torch_sim.math as tsm

from nosync.hostsync import forbid_host_syncs, value

EPS = torch.finfo(torch.float64).eps
SCALES = (1e-12, 1e-6, 1e-3, 0.1, 0.5, 2.0)


def logs(generator: torch.Generator, number: int, kind: str) -> torch.Tensor:
    """Real matrices below the clamp, (number, 3, 3), whose eigenvalues lie well inside of +-pi i.

    Args:
        generator: Where the randomness comes from.
        number: How many, before those with a large angle are dropped.
        kind: ``"random"``, ``"symmetric"``, ``"repeated"`` (two or three equal eigenvalues, defective or nearly so).
    """
    scale = torch.tensor(SCALES, dtype=torch.float64)[torch.arange(number) % len(SCALES)][:, None, None]
    found = torch.rand(number, 3, 3, generator=generator, dtype=torch.float64) * 2 - 1
    if kind == "symmetric":
        found = (found + found.mT) / 2
    if kind == "repeated":
        upper = found.triu(1) * (torch.rand(number, 1, 1, generator=generator) < 0.7)
        gap = 10.0 ** -torch.randint(2, 18, (number, 1), generator=generator).double()
        diagonal = found[:, 0, :1] + gap * torch.randint(0, 2, (number, 3), generator=generator)
        basis = torch.linalg.qr(torch.randn(number, 3, 3, generator=generator, dtype=torch.float64))[0]
        found = basis @ (upper + torch.diag_embed(diagonal)) @ basis.mT
    found = scale * found
    return found[torch.linalg.eigvals(found).imag.abs().amax(dim=1) < 2.8]


def condition(log: torch.Tensor) -> torch.Tensor:
    """By how much an error of exp(log) relative to its norm enters the logarithm, (n,), absolutely."""
    columns = []
    for index in range(9):
        direction = torch.zeros_like(log)
        direction[:, index // 3, index % 3] = 1.0
        block = torch.cat((torch.cat((log, direction), -1), torch.cat((torch.zeros_like(log), log), -1)), -2)
        columns.append(torch.matrix_exp(block)[:, :3, 3:].flatten(1))
    inverse = torch.linalg.inv(torch.stack(columns, dim=-1))
    return torch.linalg.matrix_norm(inverse, 2) * torch.linalg.matrix_norm(torch.matrix_exp(log))


@pytest.mark.parametrize("kind", ["random", "symmetric", "repeated"])
def test_ten_thousand_matrices(generator: torch.Generator, kind: str) -> None:
    """A third each of 10,000: as near to what was exponentiated as the rounding of the exponential allows."""
    log = logs(generator, 3400, kind)
    error = torch.linalg.matrix_norm(tsm.matrix_log_33(torch.matrix_exp(log)) - log)
    allowed = 16 * EPS * (1 + torch.linalg.matrix_norm(log)) * condition(log)
    assert (error <= allowed).all(), (error / allowed).max()


@pytest.mark.parametrize("kind", ["random", "symmetric", "repeated"])
def test_against_scipy(generator: torch.Generator, kind: str) -> None:
    log = logs(generator, 100, kind)
    matrices = torch.matrix_exp(log)
    expected = torch.from_numpy(np.stack([scipy.linalg.logm(each).real for each in matrices.numpy()]))
    error = torch.linalg.matrix_norm(tsm.matrix_log_33(matrices) - expected)
    assert (error <= 100 * EPS * condition(log)).all()


@pytest.mark.parametrize("kind", ["random", "symmetric", "repeated"])
def test_against_mpmath(generator: torch.Generator, kind: str) -> None:
    """In units of the last place of the result times its condition."""
    matrices = torch.matrix_exp(logs(generator, 12, kind))
    found = tsm.matrix_log_33(matrices)
    for matrix, ours in zip(matrices, found, strict=True):
        exact = exact_log(matrix)
        size, error = norm(exact), norm(mpmath.matrix(ours.tolist()) - exact)
        deviation = torch.linalg.matrix_norm(matrix - torch.eye(3, dtype=torch.float64)).item()
        relative_condition = condition(ours[None]).item() / torch.linalg.matrix_norm(matrix).item() * deviation / size
        assert error <= 16 * EPS * size * max(1.0, relative_condition), (error / size, relative_condition)


@pytest.mark.fails_on_base
def test_small_deformations_keep_their_digits(generator: torch.Generator) -> None:
    """The base divides by differences of eigenvalues, and keeps four digits of a deformation of 1e-12."""
    deviation = 1e-12 * torch.randn(100, 3, 3, generator=generator, dtype=torch.float64)
    matrices = torch.eye(3, dtype=torch.float64) + deviation
    deviation = matrices - torch.eye(3, dtype=torch.float64)
    found = tsm.matrix_log_33(matrices)
    assert (found - deviation + deviation @ deviation / 2).abs().max() <= 8 * EPS * deviation.abs().max()


@pytest.mark.parametrize(("distance", "digits"), [(0.5, 13), (0.1, 12), (1e-2, 10), (1e-3, 8), (1e-4, 6)])
def test_near_a_rotation_by_pi(generator: torch.Generator, distance: float, digits: int) -> None:
    basis = torch.linalg.qr(torch.randn(20, 3, 3, generator=generator, dtype=torch.float64))[0]
    log = torch.zeros(3, 3, dtype=torch.float64)
    log[0, 1], log[1, 0], log[2, 2] = distance - math.pi, math.pi - distance, 0.5
    log = basis @ log @ basis.mT
    torch.testing.assert_close(tsm.matrix_log_33(torch.matrix_exp(log)), log, rtol=0, atol=10.0**-digits)


@pytest.mark.parametrize("condition", [1e1, 1e3, 4e3, 1e4, 1e6])
def test_a_rotation_by_pi_is_nan_in_ill_conditioned_bases_too(generator: torch.Generator, condition: float) -> None:
    """What the rounding of such a matrix makes of its invariants must not pass for a logarithm."""
    both = torch.randn(2, 5000, 3, 3, generator=generator, dtype=torch.float64)
    left, right = torch.linalg.qr(both)[0]
    middle = condition ** -torch.rand(5000, generator=generator, dtype=torch.float64)
    singular = torch.stack((torch.ones_like(middle), middle, torch.full_like(middle, 1 / condition)), dim=-1)
    basis = left * singular.unsqueeze(-2) @ right
    third = torch.randn(5000, generator=generator, dtype=torch.float64).exp()
    eigenvalues = torch.stack((-torch.ones_like(third), -torch.ones_like(third), third), dim=-1)
    matrices = basis * eigenvalues.unsqueeze(-2) @ torch.linalg.inv(basis)
    assert tsm.matrix_log_33(matrices).isnan().any(dim=(1, 2)).all()


@pytest.mark.parametrize(
    "eigenvalues",
    [(-1, 1, 1), (-1, -1, 1), (-2, -1, 3), (-1, -1, -1), (0, 1, 1), (0, 0, 0), (math.nan, 1, 1), (math.inf, 1, 1)],
    ids=str,
)
def test_no_logarithm_is_nan_in_its_place_only(generator: torch.Generator, eigenvalues: tuple[float, ...]) -> None:
    basis = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    diagonal = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    other = torch.matrix_exp(torch.randn(3, 3, generator=generator, dtype=torch.float64) * 0.3)
    for matrix in (diagonal, basis @ diagonal @ basis.mT):
        found = tsm.matrix_log_33(torch.stack((other, matrix, other)))
        # in another basis a rounding error may make 0 a small number, which has a logarithm
        assert found[1].isnan().any() or torch.allclose(torch.matrix_exp(found[1]), matrix, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.matrix_exp(found[[0, 2]]), torch.stack((other, other)))


@pytest.mark.fails_on_base
def test_gradients_where_eigenvalues_coincide() -> None:
    identity = torch.eye(3, dtype=torch.float64)
    defective = identity + torch.diag(torch.tensor([0.5, 0.5], dtype=torch.float64), 1)
    for matrix in (identity, defective, torch.diag(torch.tensor([2.0, 2.0, 0.5], dtype=torch.float64))):
        matrix.requires_grad_()
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            try:
                right = check(tsm.matrix_log_33, matrix, raise_exception=False)
            except RuntimeError:  # an eigenvector without a derivative
                right = False
            assert right


@pytest.mark.fails_on_base
def test_logarithm_and_derivative_have_no_wait(device: torch.device, generator: torch.Generator) -> None:
    from torch_sim.optimizers.cell_filters import _frechet_cell_forces

    for log in (logs(generator, 6, "random"), logs(generator, 6, "symmetric")):
        matrices = torch.matrix_exp(log)
        on_device, log_on_device = matrices.to(device), log.to(device)
        with forbid_host_syncs():
            found = tsm.matrix_log_33(on_device)
            _frechet_cell_forces(log_on_device, found)
        torch.testing.assert_close(value(found), tsm.matrix_log_33(matrices))


@pytest.mark.parametrize("scale", SCALES)
def test_exponential_against_mpmath(generator: torch.Generator, scale: float) -> None:
    """exp - I keeps its relative precision for small matrices too."""
    log = scale * (torch.rand(12, 3, 3, generator=generator, dtype=torch.float64) * 2 - 1)
    for matrix, found in zip(log, tsm.expm1(log), strict=True):
        with mpmath.workdps(45):
            exact = mpmath.expm(mpmath.matrix(matrix.tolist()), method="taylor") - mpmath.eye(3)
            error = norm(mpmath.matrix(found.tolist()) - exact)
        size = torch.linalg.matrix_norm(matrix).item()
        assert error <= 8 * EPS * size * math.exp(size)
    both = tsm.matrix_exp_small(log), torch.matrix_exp(log)
    torch.testing.assert_close(*both, rtol=1e-11, atol=1e-13)


def exact_log(matrix: torch.Tensor) -> Any:
    """The logarithm of one matrix to 30 digits and more, by square roots and a series."""
    with mpmath.workdps(45):
        root, squarings = mpmath.matrix(matrix.tolist()), 0
        while norm(root - mpmath.eye(3)) > 0.05:
            root, squarings = _square_root(root), squarings + 1
        deviation = root - mpmath.eye(3)
        result, power = mpmath.zeros(3), mpmath.eye(3)
        for order in range(1, 36):
            power = power * deviation
            result += power * ((-1) ** (order + 1)) / order
        return result * 2**squarings


def _square_root(matrix: Any) -> Any:
    """The Denman-Beavers iteration."""
    root, inverse = matrix, mpmath.eye(3)
    while True:
        root, inverse, before = (root + inverse**-1) / 2, (inverse + root**-1) / 2, root
        if norm(root - before) < mpmath.mpf(10) ** -40 * norm(root):
            return root


def norm(matrix: Any) -> float:
    """The Frobenius norm."""
    return float(mpmath.sqrt(sum(abs(entry) ** 2 for entry in matrix)))
