"""Two-dimensional crystals: charged atoms on the sites of a rectangular cell, their symmetry, energy and stiffness.

A structure is written `group pmm, near 4 4, stiff 96 | K 0 0, F 2 2`: what is thought of it, then element and
coordinates of each atom in its cell. Distances are in steps of the grid, energies per atom.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CHARGES = {"K": 1, "M": 2, "F": -1, "O": -2}
GROUPS = ("p1", "p2", "pm", "pmm", "p4m")
"""Plane groups from the smallest to the largest."""
RADIUS = 1.5
"""Distance of two unlike charges with the lowest energy."""
SPACING = 1.2
"""Least distance of two atoms."""
BOND = 1.7
"""Largest distance of unlike charges that are neighbours."""
LARGEST = 12
"""Most steps of a side of a cell, and most atoms."""
LONGEST = 400
"""Most characters of a structure with its thoughts."""
IMAGES = np.arange(-4, 5)
"""Cells whose atoms add to the energy, from the atom's own."""
BESIDE = np.arange(-1, 2)
"""Cells that atoms can be neighbours in."""
OVERLAP = 1e6
"""Energy of two atoms on one site."""
RESTARTS = 6
"""Random starts of the search for the structure with the lowest energy."""
SITE = re.compile(r"([A-Z][a-z]?) (\d{1,2}) (\d{1,2})")
STATED = re.compile(r"\bgroup (\w{1,8})\b")

Cell = tuple[int, int]
Composition = tuple[tuple[str, int], ...]
"""Elements with their numbers, in the order of CHARGES."""


@dataclass(frozen=True)
class Structure:
    """Atoms in a cell: element, and place on the grid."""

    cell: Cell
    sites: tuple[tuple[str, int, int], ...]

    @property
    def composition(self) -> Composition:
        """Return how many atoms of each element there are."""
        names = [element for element, _, _ in self.sites]
        return tuple((element, names.count(element)) for element in CHARGES if element in names)

    @property
    def charges(self) -> NDArray[np.int64]:
        """Return the charges of the atoms."""
        return np.array([CHARGES[element] for element, _, _ in self.sites])


def read_structure(text: str, cell: Cell) -> Structure | None:
    """Return the structure after the one `|` of a text.

    None for a text of another form, an unknown element, a place outside of the cell, too many atoms or characters.
    """
    parts = text.split("|")
    if len(parts) != 2 or len(text) > LONGEST:
        return None
    found = [SITE.fullmatch(part.strip()) for part in parts[1].split(",")]
    sites = tuple((match[1], int(match[2]), int(match[3])) for match in found if match is not None)
    known = all(element in CHARGES and x < cell[0] and y < cell[1] for element, x, y in sites)
    return Structure(cell, sites) if known and len(sites) == len(found) <= LARGEST else None


def read_stated_group(text: str) -> str | None:
    """Return the plane group that is stated before the coordinates; None if none or several are."""
    stated = STATED.findall(text[:LONGEST].partition("|")[0])
    return stated[0] if len(stated) == 1 else None


def describe(structure: Structure) -> str:
    """Return the physical priors of a structure: its group, the neighbours of each atom, its stiffness."""
    near = " ".join(str(number) for number in count_neighbours(structure))
    return f"group {detect_group(structure)}, near {near}, stiff {round(measure_stiffness(structure))}"


def write_structure(structure: Structure) -> str:
    """Return the coordinates as text."""
    return ", ".join(f"{element} {x} {y}" for element, x, y in structure.sites)


def detect_group(structure: Structure) -> str:
    """Return the largest of five plane groups whose operations map the atoms of the cell onto atoms of their kind.

    `p2` has a twofold rotation, `pm` a mirror parallel to a side, `pmm` mirrors parallel to both, `p4m` in addition a
    fourfold rotation, in a square cell. Glides do not count. The cell is the one that is written, primitive or not.
    """
    (width, height), atoms = structure.cell, frozenset(structure.sites)
    sideways = any(frozenset((e, (t - x) % width, y) for e, x, y in atoms) == atoms for t in range(width))
    upright = any(frozenset((e, x, (t - y) % height) for e, x, y in atoms) == atoms for t in range(height))
    shifts = [(t, u) for t in range(width) for u in range(height)]
    if sideways and upright:
        turned = width == height and any(
            frozenset((e, (t - y) % width, (u + x) % height) for e, x, y in atoms) == atoms for t, u in shifts
        )
        return "p4m" if turned else "pmm"
    if sideways or upright:
        return "pm"
    half = any(frozenset((e, (t - x) % width, (u - y) % height) for e, x, y in atoms) == atoms for t, u in shifts)
    return "p2" if half else "p1"


def is_neutral(structure: Structure) -> bool:
    """Return whether the charges of the cell add up to 0."""
    return int(structure.charges.sum()) == 0


def is_spaced(structure: Structure) -> bool:
    """Return whether all atoms and their images in other cells are at least SPACING apart."""
    return float(_measure_distances(structure).min()) >= SPACING


def count_neighbours(structure: Structure) -> list[int]:
    """Return the number of unlike charges within BOND of each atom."""
    unlike = np.multiply.outer(structure.charges, structure.charges) < 0
    near = (_measure_distances(structure) <= BOND).sum(axis=(2, 3))
    return (near * unlike).sum(axis=1).tolist()


def measure_energy(structure: Structure) -> float:
    """Return the energy per atom: (R/r)^12 − 2(R/r)^6 for each pair of unlike charges, (R/r)^12 for like ones.

    Lennard-Jones, of which like charges have the repulsion alone.
    """
    return _add_pairs(structure, *_tabulate(structure.cell, 1.0, 2.0))


def measure_stiffness(structure: Structure) -> float:
    """Return the second derivative of the energy per atom by the scale of the whole plane, at scale 1."""
    return _add_pairs(structure, *_tabulate(structure.cell, 12.0 * 13.0, 2.0 * 6.0 * 7.0))


@lru_cache(maxsize=4096)
def find_lowest(composition: Composition, cell: Cell) -> float:
    """Return the lowest energy per atom that descents from RESTARTS random structures find."""
    rng = np.random.default_rng([*cell, *(number for _, number in composition)])
    return min(measure_energy(descend(composition, cell, rng, sweeps=50)) for _ in range(RESTARTS))


def descend(composition: Composition, cell: Cell, rng: np.random.Generator, *, sweeps: int) -> Structure:
    """Return a structure from random sites, each of whose atoms moved to its best site in turn, `sweeps` times at most.

    There must be at least as many sites as atoms.
    """
    elements = [element for element, number in composition for _ in range(number)]
    places = rng.permutation(cell[0] * cell[1])[: len(elements)]
    sites = [(element, int(p) // cell[1], int(p) % cell[1]) for element, p in zip(elements, places, strict=True)]
    unlike, like = _tabulate(cell, 1.0, 2.0)
    xs, ys = np.meshgrid(np.arange(cell[0]), np.arange(cell[1]), indexing="ij")
    for _ in range(sweeps):
        before = list(sites)
        for i, (element, _, _) in enumerate(sites):
            field = np.zeros(cell)
            for other, x, y in (*sites[:i], *sites[i + 1 :]):
                table = unlike if CHARGES[other] * CHARGES[element] < 0 else like
                field += table[(xs - x) % cell[0], (ys - y) % cell[1]]
                field[x, y] = OVERLAP
            x, y = np.unravel_index(int(field.argmin()), cell)
            sites[i] = (element, int(x), int(y))
        if sites == before:
            break
    return Structure(cell, tuple(sites))


def _measure_distances(structure: Structure) -> NDArray[np.float64]:
    """Return the distances of all atoms to those of this cell and of the cells around it (n, n, 3, 3).

    That of an atom to itself is infinite.
    """
    places = np.array([(x, y) for _, x, y in structure.sites])
    x, y = (places[:, axis, None] - places[None, :, axis] for axis in (0, 1))
    wide, high = BESIDE * structure.cell[0], BESIDE * structure.cell[1]
    distances = np.hypot((x[..., None] + wide)[..., None], (y[..., None] + high)[..., None, :])
    own = range(len(places))
    distances[own, own, 1, 1] = np.inf
    return distances


@lru_cache(maxsize=256)
def _tabulate(cell: Cell, twelfth: float, sixth: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, for each displacement in the cell (width, height), the sum over all images of a power law.

    For unlike charges twelfth·(R/r)^12 − sixth·(R/r)^6, for like ones the first term. An atom has none with
    itself.
    """
    x = np.arange(cell[0])[:, None, None, None] + (IMAGES * cell[0])[:, None]
    y = np.arange(cell[1])[None, :, None, None] + IMAGES * cell[1]
    distances = np.hypot(x, y)
    distances[distances == 0] = np.inf
    sixths = (RADIUS / distances) ** 6
    like = (twelfth * sixths**2).sum(axis=(2, 3))
    return like - (sixth * sixths).sum(axis=(2, 3)), like


def _add_pairs(structure: Structure, unlike: NDArray[np.float64], like: NDArray[np.float64]) -> float:
    """Return half the sum of a table over all pairs, per atom; OVERLAP is added for two atoms on one site."""
    places, charges = np.array([(x, y) for _, x, y in structure.sites]), structure.charges
    x, y = ((places[:, axis, None] - places[None, :, axis]) % structure.cell[axis] for axis in (0, 1))
    opposite = np.multiply.outer(charges, charges) < 0
    pairs = np.where(opposite, unlike[x, y], like[x, y])
    twice = len(places) ** 2 - len(places) - int(((x != 0) | (y != 0)).sum())
    return float(pairs.sum() / 2 + OVERLAP * twice / 2) / len(places)
