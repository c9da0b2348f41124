"""Crystals of mixed size from real prototypes, made by ASE: displaced, strained supercells of measured lattices.

Needs ASE and numpy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.spacegroup import crystal

# structure: {formula: a, or (a, c), in Angstrom}
CONSTANTS: dict[str, dict[str, float | tuple[float, float]]] = {
    "fcc": {"Cu": 3.61, "Al": 4.05, "Ni": 3.52, "Ag": 4.09, "Pd": 3.89, "Pt": 3.92},
    "bcc": {"Fe": 2.87, "W": 3.16, "Mo": 3.15, "V": 3.03, "Na": 4.29},
    "hcp": {"Mg": (3.21, 5.21), "Ti": (2.95, 4.68), "Zn": (2.66, 4.95), "Co": (2.51, 4.07)},
    "diamond": {"Si": 5.43, "C": 3.57, "Ge": 5.66},
    "rocksalt": {"NaCl": 5.64, "MgO": 4.21, "LiF": 4.03, "CaO": 4.81, "KBr": 6.60},
    "zincblende": {"GaAs": 5.65, "ZnS": 5.41, "SiC": 4.36, "InP": 5.87},
    "wurtzite": {"ZnO": (3.25, 5.21), "GaN": (3.19, 5.19), "AlN": (3.11, 4.98)},
    "cesiumchloride": {"CsCl": 4.12, "CsI": 4.57, "NiAl": 2.89},
    "fluorite": {"CaF2": 5.46, "CeO2": 5.41},
    "perovskite": {"SrTiO3": 3.905, "BaTiO3": 4.00, "KMgF3": 3.99, "LaAlO3": 3.79},
    "rutile": {"TiO2": (4.59, 2.96), "SnO2": (4.74, 3.19)},
}
HEXAGONAL = ("hcp", "wurtzite")
TARGETS = (4, 6, 8, 10, 12, 16, 24, 32, 40)
DISPLACEMENT = 0.05  # Angstrom, standard deviation
STRAIN = 0.03  # of each of the six components, at most


def mixed_crystals(number: int) -> list[Atoms]:
    """The same crystals at each call; about 16 atoms each, 4 to 48."""
    rng = np.random.default_rng(0)
    kinds = [(structure, formula) for structure, of in CONSTANTS.items() for formula in of]
    picked = rng.permutation(len(kinds))
    made = []
    for i in range(number):
        unit = unit_cell(*kinds[picked[i % len(kinds)]])
        atoms = _near(unit, TARGETS[(i + i // len(TARGETS)) % len(TARGETS)])
        upper = rng.uniform(-STRAIN, STRAIN, (3, 3))
        atoms.set_cell(atoms.cell[:] @ (np.eye(3) + (upper + upper.T) / 2), scale_atoms=True)
        atoms.positions += rng.normal(scale=DISPLACEMENT, size=atoms.positions.shape)
        made.append(atoms)
    return made


def unit_cell(structure: str, formula: str) -> Atoms:
    """The conventional cell, or the primitive one of a hexagonal lattice."""
    size = CONSTANTS[structure][formula]
    if structure == "perovskite":
        symbols = Atoms(formula).get_chemical_symbols()
        places = [(0, 0, 0), (0.5, 0.5, 0.5), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)]
        return Atoms(symbols, scaled_positions=places, cell=[size] * 3, pbc=True)
    if structure == "rutile":
        a, c = size  # type: ignore[misc]
        metal, oxygen = Atoms(formula).get_chemical_symbols()[:2]
        return crystal([metal, oxygen], [(0, 0, 0), (0.305, 0.305, 0)], spacegroup=136, cellpar=[a, a, c, 90, 90, 90])
    if structure in HEXAGONAL:
        a, c = size  # type: ignore[misc]
        return bulk(formula, structure, a=a, c=c)
    return bulk(formula, structure, a=size, cubic=True)


def _near(unit: Any, target: int) -> Atoms:
    """The supercell of up to 3 cells a side whose number of atoms is nearest to the target, the most cubic of those."""
    repeats = itertools.combinations_with_replacement((3, 2, 1), 3)
    best = min(repeats, key=lambda each: (abs(len(unit) * int(np.prod(each)) - target), max(each)))
    return unit.repeat(best)
