"""``ts.optimize`` reads one vector a check and nothing between, and relaxes, swaps and orders as the base does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch_sim
from torchsim_relaxations import Counted, Systems, batcher, harmonic_model, random_systems, reporter, state_of
from two_trees import PackageCopy

from nosync.hostsync import forbid_host_syncs, host_syncs

Both = tuple[PackageCopy, PackageCopy]
CPU = torch.device("cpu")
ROUNDING = {"rtol": 1e-9, "atol": 1e-11}  # where steps are made: the series fire-operators sums in another order
pytestmark = pytest.mark.filterwarnings("ignore:All systems have reached the maximum number of steps")


# ---- waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.fails_on_base
@pytest.mark.parametrize("files", [False, True], ids=["no-files", "files"])
@pytest.mark.parametrize("max_atoms", [None, 6], ids=["all", "in-flight"])
def test_a_check_is_one_copy(
    device: torch.device, generator: torch.Generator, tmp_path: Path, max_atoms: int | None, files: bool
) -> None:
    """Of two runs that nothing converges in, the longer one waits for its further checks only. No file is due."""
    systems = random_systems(generator, 4, 6, torch.float64)
    (short, few), (long, many) = (
        waits(device, systems, max_atoms, tmp_path if files else None, False, max_steps=steps) for steps in (10, 35)
    )
    assert many > few
    assert long.count - short.count == many - few, long.table()


@pytest.mark.fails_on_base
@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
@pytest.mark.parametrize("files", [False, True], ids=["no-files", "files"])
@pytest.mark.parametrize("max_atoms", [None, 6], ids=["all", "in-flight"])
def test_no_wait_between_checks(
    device: torch.device, generator: torch.Generator, tmp_path: Path, max_atoms: int | None, files: bool, fixed: bool
) -> None:
    """Five steps between the checks or eleven: as many waits. (With fixed atoms a check builds the batch anew.)"""
    systems = random_systems(generator, 4, 6, torch.float64)
    (short, few), (long, many) = (
        waits(device, systems, max_atoms, tmp_path if files else None, fixed, max_steps=3 * each, between=each)
        for each in (5, 11)
    )
    assert many == few
    assert long.count == short.count, long.table()


@pytest.mark.fails_on_base
@pytest.mark.parametrize(
    ("act", "most"),
    [
        (lambda state: state.split(), 1),
        (lambda state: state[[2, 0]], 2),
        (lambda state: state[1:], 2),
        (lambda state: state.pop([1]), 5),
        (lambda state: state.pop([1, 2]), 5),
        (lambda state: torch_sim.concatenate_states([state, state]), 1),
        (lambda state: state.n_atoms_per_system, 0),
        (lambda state: setattr(state, "system_idx", state.system_idx + 0), 1),
    ],
    ids=["split", "list", "slice", "pop", "pop-two", "concatenate", "sizes", "system_idx"],
)
@pytest.mark.parametrize("n_systems", [3, 9])
def test_waits_of_a_swap(
    device: torch.device, generator: torch.Generator, n_systems: int, act: Callable[[Any], Any], most: int
) -> None:
    """As many for nine systems as for three."""
    systems = random_systems(generator, n_systems, 6, torch.float64)
    model = harmonic_model(torch_sim, device, torch.float64)
    state = torch_sim.fire_init(state_of(torch_sim, systems, device), model)
    with host_syncs() as syncs:
        act(state)
    assert syncs.count <= most, syncs.table()


@pytest.mark.fails_on_base
@pytest.mark.parametrize("cell", [False, True], ids=["atoms", "cell"])
def test_convergence_functions(device: torch.device, generator: torch.Generator, cell: bool) -> None:
    """Their values stay on the device. The base asked system_idx for the number of systems."""
    systems = random_systems(generator, 4, 6, torch.float64)
    model = harmonic_model(torch_sim, device, torch.float64)
    chosen = torch_sim.CellFilter.unit if cell else None
    state = torch_sim.fire_init(state_of(torch_sim, systems, device), model, cell_filter=chosen)
    with forbid_host_syncs():
        by_force = torch_sim.generate_force_convergence_fn(1e-3, include_cell_forces=cell)(state)
        by_energy = torch_sim.generate_energy_convergence_fn()(state, state.energy)
    assert by_force.shape == by_energy.shape == (4,)
    assert by_force.device == by_energy.device == device


# ---- values ---------------------------------------------------------------------------------------------------------

# name: (systems, most atoms in a batch, force tolerance, most steps)
RUNS = {
    "all-at-once": (6, None, 0.02, 500),
    "swaps": (9, 12, 0.02, 500),
    "one-by-one": (5, 6, 0.02, 500),
    "one-system": (1, None, 0.02, 500),
    "converged-at-start": (5, 8, 1e6, 500),
    "out-of-steps": (7, 12, 0.02, 23),
    "never": (4, None, 0.0, 12),
}


@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("flavor", ["vv_fire", "ase_fire"])
def test_relaxations_are_the_bases(
    both_trees: Both, generator: torch.Generator, flavor: str, name: str, fixed: bool
) -> None:
    """In float64, where the rounding of a step in another order cannot turn FIRE the other way."""
    n_systems, max_atoms, tol, max_steps = RUNS[name]
    systems = random_systems(generator, n_systems, 6, torch.float64)
    found = []
    for copy in both_trees:
        with copy.active() as package:
            order: list[int] = []
            state, counted = relax(
                package, systems, CPU, max_atoms, tol=tol, fixed=fixed, max_steps=max_steps, order=order, flavor=flavor
            )
            found.append((attributes(state), counted.steps, counted.checks, order))
    base, patched = found
    assert patched[1:] == base[1:]
    assert max_atoms is None or sorted(patched[3]) == list(range(n_systems))
    assert_same(patched[0], base[0], **ROUNDING)


@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
@pytest.mark.parametrize("every", [1, 3, 1000])
def test_files_are_the_bases(
    both_trees: Both, generator: torch.Generator, tmp_path: Path, every: int, fixed: bool
) -> None:
    """With FixAtoms and FixCom too, which the base applies once more at every step with a reporter."""
    systems = random_systems(generator, 4, 6, torch.float64)
    found = []
    for number, copy in enumerate(both_trees):
        folder = tmp_path / str(number)
        with copy.active() as package:
            relax(package, systems, CPU, 12, tol=0.02, fixed=fixed, written=reporter(folder, 4, every))
            found.append([contents(package, folder / f"{system}.h5") for system in range(4)])
    for ours, theirs in zip(*reversed(found), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], **ROUNDING)


@pytest.mark.parametrize("single", [False, True], ids=["per-system", "single"])
@pytest.mark.parametrize("max_atoms", [None, 12], ids=["all", "in-flight"])
def test_a_convergence_function_may_keep_the_state(
    both_trees: Both, generator: torch.Generator, max_atoms: int | None, single: bool
) -> None:
    """And compare it with the next one. Its verdict is one boolean for all, or one per system."""
    systems = random_systems(generator, 4, 3, torch.float64)
    found = []
    for copy in both_trees:
        with copy.active() as package:
            model = harmonic_model(package, CPU, torch.float64)
            moved: list[torch.Tensor] = []
            state = package.optimize(
                state_of(package, systems, CPU),
                model,
                optimizer=package.Optimizer.gradient_descent,
                convergence_fn=moves_less(moved, 1e-3, single),
                max_steps=200,
                autobatcher=batcher(package, model, max_atoms),
            )
            found.append((torch.cat(moved), attributes(state)))
    (their_moves, theirs), (our_moves, ours) = found
    torch.testing.assert_close(our_moves, their_moves, **ROUNDING)
    assert our_moves.min() > 0
    assert_same(ours, theirs, **ROUNDING)


@pytest.mark.parametrize("every", [None, 7, 1000], ids=["no-files", "seven", "never"])
@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
def test_a_step_of_ones_own(
    both_trees: Both, generator: torch.Generator, tmp_path: Path, fixed: bool, every: int | None
) -> None:
    """It keeps a note on the state, which a check drops, and leaves the forces of fixed atoms to checks and reports."""
    systems = random_systems(generator, 4, 3, torch.float64)
    found = []
    for number, copy in enumerate(both_trees):
        with copy.active() as package:
            model = harmonic_model(package, CPU, torch.float64)
            state = state_of(package, systems, CPU)
            if fixed:
                state.constraints = [package.constraints.FixAtoms(torch.arange(0, state.n_atoms, 4))]
            state = package.optimize(
                state,
                model,
                optimizer=(package.gradient_descent_init, noted_step),
                convergence_fn=package.generate_force_convergence_fn(force_tol=0.05),
                max_steps=60,
                autobatcher=batcher(package, model, 6),
                trajectory_reporter=None if every is None else reporter(tmp_path / str(number), 4, every),
            )
            found.append(attributes(state))
    assert_same(found[1], found[0], **ROUNDING)


@pytest.mark.parametrize("max_iterations", [None, 1, 3])
@pytest.mark.parametrize("density", [False, True], ids=["n_atoms", "n_atoms_x_density"])
def test_batches_are_the_bases(
    both_trees: Both, generator: torch.Generator, max_iterations: int | None, density: bool
) -> None:
    """The autobatcher alone, with random verdicts: which systems run together, which come out, in which order."""
    systems = random_systems(generator, 12, 6, torch.float64)
    verdicts = torch.rand(200, 12, generator=generator) < 0.3
    found = []
    for copy in both_trees:
        with copy.active() as package:
            model = harmonic_model(package, CPU, torch.float64)
            made = package.InFlightAutoBatcher(
                model=model,
                memory_scales_with="n_atoms_x_density" if density else "n_atoms",
                max_memory_scaler=1500 if density else 14,
                max_iterations=max_iterations,
            )
            made.load_states(state_of(package, systems, CPU))
            found.append(batches(made, verdicts))
    base, patched = found
    assert len(base) == len(patched)
    for (our_state, our_idx), (their_state, their_idx) in zip(patched, base, strict=True):
        assert our_idx == their_idx
        assert_same(our_state, their_state)


@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
def test_parts_of_states_are_the_bases(both_trees: Both, generator: torch.Generator, fixed: bool) -> None:
    systems = random_systems(generator, 6, 6, torch.float64)
    chosen = [[0], [5, 1], [-1, 2], [1, 2, 3], slice(1, 5, 2), slice(None), torch.tensor([4, 0]), torch.tensor([-2])]
    popped = [[0], [2, -1], [1, 2, 3], slice(1, 5, 2), slice(None), torch.tensor([0, 4]), []]
    found = []
    for copy in both_trees:
        with copy.active() as package:
            model = harmonic_model(package, CPU, torch.float64)
            state = package.fire_init(state_of(package, systems, CPU, fixed), model)
            parts = [state[each] for each in chosen] + state.split()
            for each in popped:
                left = state.clone()
                parts += [*left.pop(each), left]
            parts.append(package.concatenate_states([state, *parts[:4]]))
            found.append([attributes(part) for part in parts])
    for ours, theirs in zip(*reversed(found), strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("wrong", [[6], [-7], [0, 9]])
def test_systems_that_are_not_there(both_trees: Both, generator: torch.Generator, wrong: list[int]) -> None:
    systems = random_systems(generator, 6, 6, torch.float64)
    for copy in both_trees:
        with copy.active() as package:
            state = state_of(package, systems, CPU)
            with pytest.raises((IndexError, RuntimeError)):
                _ = state[wrong]
            with pytest.raises((IndexError, RuntimeError)):
                state.pop(wrong)
            assert state.n_systems == 6


def test_the_same_system_idx_are_accepted(both_trees: Both) -> None:
    """All of four atoms, numbers from -1 to 4."""
    base, patched = ({tuple(each) for each in accepted(copy, 4)} for copy in both_trees)
    assert base == patched
    assert (0, 0, 1, 2) in patched


# ---- what they share ------------------------------------------------------------------------------------------------


def waits(
    device: torch.device,
    systems: Systems,
    max_atoms: int | None,
    folder: Path | None,
    fixed: bool,
    *,
    max_steps: int,
    between: int = 5,
) -> tuple[Any, int]:
    """What a run that nothing converges in waits for, and the number of its checks."""
    written = None
    if folder is not None:
        written = reporter(folder / str(max_steps), 4, every=1000)
    with host_syncs() as syncs:
        _, counted = relax(
            torch_sim,
            systems,
            device,
            max_atoms,
            tol=0.0,
            fixed=fixed,
            max_steps=max_steps,
            written=written,
            between=between,
        )
    return syncs, counted.checks


def relax(
    package: ModuleType,
    systems: Systems,
    device: torch.device,
    max_atoms: int | None,
    *,
    tol: float,
    fixed: bool = False,
    max_steps: int = 500,
    written: dict[str, Any] | None = None,
    order: list[int] | None = None,
    flavor: str = "ase_fire",
    between: int = 5,
) -> tuple[Any, Counted]:
    """``optimize`` from one copy of torch_sim; ``order`` takes the systems as they come out."""
    dtype = systems["positions"].dtype
    model = harmonic_model(package, device, dtype)
    counted = Counted(package, tol, flavor)
    made = batcher(package, model, max_atoms)
    state = package.optimize(
        state_of(package, systems, device, fixed),
        model,
        optimizer=counted.optimizer,
        convergence_fn=counted.criterion,
        max_steps=max_steps,
        steps_between_swaps=between,
        autobatcher=made,
        trajectory_reporter=written,
    )
    if order is not None and made:
        order += made.completed_idx_og_order
    return state, counted


def noted_step(state: Any, model: Any, **_: Any) -> Any:
    """A step down the forces, longer as long as the state has a note of the steps before."""
    state.note = {"steps": getattr(state, "note", {"steps": 0})["steps"] + 1}
    moved = state.positions + 0.01 * min(state.note["steps"], 3) * state.forces
    state.set_constrained_positions(moved)
    output = model(state)
    state.forces, state.energy = output["forces"], output["energy"]
    return state


def moves_less(moved: list[torch.Tensor], tol: float, single: bool) -> Callable[[Any, torch.Tensor], Any]:
    """For ``optimize``: has an atom of a system moved further since the check before? Each check's moves are noted."""
    kept: list[Any] = []

    def criterion(state: Any, _last_energy: torch.Tensor) -> Any:
        before = kept[-1] if kept else None
        kept.append(state)
        if before is None or before.n_systems != state.n_systems or before.n_atoms != state.n_atoms:
            return False if single else torch.zeros(state.n_systems, dtype=torch.bool)
        lengths = (state.positions - before.positions).norm(dim=1)
        largest = lengths.new_zeros(state.n_systems).scatter_reduce(0, state.system_idx, lengths, "amax")
        moved.append(largest)
        return bool((largest < tol).all()) if single else largest < tol

    return criterion


def batches(made: Any, verdicts: torch.Tensor) -> list[tuple[dict[str, Any], list[int]]]:
    """Every batch and every state that comes out, with the systems in the batch or out so far."""
    state, seen = made.next_batch(None, None)[0], []
    for verdict in verdicts:
        seen.append((attributes(state), list(made.current_idx)))
        state, completed = made.next_batch(state, verdict[: state.n_systems].clone())
        seen += [(attributes(each), list(made.completed_idx_og_order)) for each in completed]
        if state is None:
            return seen
        state.positions = state.positions + 1
    raise AssertionError("the verdicts did not end it")


def attributes(state: Any) -> dict[str, Any]:
    """All tensors of a state, and those of its constraints by class."""
    found = {name: it.clone() for name, it in state.attributes.items() if isinstance(it, torch.Tensor)}
    for constraint in state.constraints:
        for name in ("atom_idx", "system_idx"):
            if hasattr(constraint, name):
                found[f"{type(constraint).__name__}.{name}"] = getattr(constraint, name)
    return found


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], rtol: float = 0, atol: float = 0) -> None:
    """Equal, bit by bit unless a tolerance is given, NaN with NaN."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        close = tensor.dtype == theirs[name].dtype and torch.allclose(
            tensor, theirs[name], rtol=rtol, atol=atol, equal_nan=True
        )
        assert close, f"{name}: {tensor} is not {theirs[name]}"


def contents(package: ModuleType, file: Path) -> dict[str, Any]:
    """Arrays and step numbers of a trajectory."""
    with package.TorchSimTrajectory(file, mode="r") as trajectory:
        names = sorted(trajectory.array_registry)
        arrays = {name: trajectory.get_array(name) for name in names}
        return arrays | {f"steps of {name}": trajectory.get_steps(name) for name in names}


def accepted(copy: PackageCopy, n_atoms: int) -> list[tuple[int, ...]]:
    """Which system_idx a state takes."""
    found = []
    with copy.active() as package:
        state = package.SimState(
            positions=torch.zeros(n_atoms, 3),
            masses=torch.ones(n_atoms),
            cell=torch.eye(3)[None],
            pbc=True,
            atomic_numbers=torch.ones(n_atoms, dtype=torch.int),
        )
        for system_idx in itertools.product(range(-1, n_atoms + 1), repeat=n_atoms):
            try:
                state.system_idx = torch.tensor(system_idx)
            except (ValueError, RuntimeError):
                continue
            found.append(system_idx)
    return found
