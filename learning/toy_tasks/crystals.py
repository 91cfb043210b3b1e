"""Requests for crystals, `K2 O1 in 4x5, group pm`, and an author who thinks of the structure and then writes it.

The metadata of a request have the `composition`, the `cell`, what is wanted of the structure, and the text of one that
is known (`sites`). Structures are those of `learning.data.lattices`.
"""

from itertools import product
from typing import Any, Literal

import numpy as np

from learning.data.lattices import (
    CHARGES,
    GROUPS,
    Cell,
    Composition,
    Structure,
    descend,
    describe,
    detect_group,
    find_lowest,
    is_spaced,
    measure_stiffness,
    read_structure,
    write_structure,
)
from learning.data.rows import Row
from learning.rewards.crystals import read_request
from learning.toy_tasks.rows import (
    Rate,
    Size,
    Split,
    TestShare,
    draw_rows,
    hash_text,
    is_in_split,
    make_row,
    read_metadata,
)
from schemas.errors import StepError

MOST_ATOMS = 6
SIDES = (3, 4, 5, 6)
MARGIN = 25.0
"""What a stiffness may be away from the middle of the range that is asked for."""
DRAWS = 400
"""Draws per requested problem after which the space counts as exhausted."""


def list_compositions() -> list[Composition]:
    """Return the compositions whose charges add up to 0, of at most MOST_ATOMS atoms."""
    numbers = [numbers for numbers in product(range(MOST_ATOMS), repeat=4) if 2 <= sum(numbers) <= MOST_ATOMS]
    neutral = [one for one in numbers if sum(n * q for n, q in zip(one, CHARGES.values(), strict=True)) == 0]
    return [tuple((e, n) for e, n in zip(CHARGES, one, strict=True) if n) for one in neutral]


def crystals(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    want: Literal["any", "group", "stiffness"] = "any",
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` requests for structures with a composition in a cell, and with a plane group or a stiffness.

    There is a bound structure with spaced atoms for every request; one that has what is wanted, found by a descent from
    random sites, is in the metadata. The group p1, which any structure has, is not asked for. Requests are split by
    composition and cell. Raise StepError if there are fewer than `size`.
    """
    rng, compositions = np.random.default_rng([seed, split == "test"]), list_compositions()

    def draw(rows: dict[str, Row]) -> Row | None:
        composition = compositions[int(rng.integers(len(compositions)))]
        cell: Cell = (int(rng.choice(SIDES)), int(rng.choice(SIDES)))
        text = f"{' '.join(f'{element}{number}' for element, number in composition)} in {cell[0]}x{cell[1]}"
        if not is_in_split(hash_text(f"crystal {text}"), split, test_share) or find_lowest(composition, cell) > 0:
            return None
        structure = place(descend(composition, cell, rng, sweeps=1))
        if not is_spaced(structure):
            return None
        about: dict[str, Any] = {"composition": dict(composition), "cell": cell}
        if want == "group":
            about["group"] = detect_group(structure)
            text += f", group {about['group']}"
            if about["group"] == GROUPS[0]:
                return None
        elif want == "stiffness":
            middle = round(measure_stiffness(structure))
            about["stiffness"] = (middle - MARGIN, middle + MARGIN)
            text += f", stiff {middle}"
        return make_row("crystals", text, None, about | {"sites": write_structure(structure)})

    return draw_rows(draw, size, DRAWS * size, "crystals", split, "lower `size`")


def place(structure: Structure) -> Structure:
    """Return the structure moved so that its first atom is at 0 0, with atoms in the order of elements and places."""
    (width, height), (_, left, low) = structure.cell, structure.sites[0]
    moved = [(element, (x - left) % width, (y - low) % height) for element, x, y in structure.sites]
    order = list(CHARGES)
    return Structure(structure.cell, tuple(sorted(moved, key=lambda site: (order.index(site[0]), site[1:]))))


def crystallographer(row: Row, rng: np.random.Generator, *, thinks: bool = True, error_rate: Rate = 0.0) -> str:
    """Write the known structure of a request behind its physical priors; without, if it does not think.

    At `error_rate` one atom stands on a random site, of which the priors know nothing. Raise StepError for a row of
    other problems.
    """
    request = read_request(row)
    sites = read_metadata(row, "crystals", lambda about: about["sites"])
    structure = read_structure(f"|{sites}", request.cell)
    if structure is None:
        raise StepError(f"row {row.get('id')}: its `sites` are no structure in its cell; use problems of `crystals`")
    thoughts = f"{describe(structure)} " if thinks else ""
    if rng.random() < error_rate:
        moved = int(rng.integers(len(structure.sites)))
        x, y = (int(rng.integers(side)) for side in request.cell)
        kept = structure.sites
        structure = Structure(request.cell, (*kept[:moved], (kept[moved][0], x, y), *kept[moved + 1 :]))
    return f"{thoughts}| {write_structure(structure)}"
