"""Requests for crystals: known structures have what is asked for, and the rows of others are refused by name."""

import json

import numpy as np
import pytest

from learning.data.lattices import (
    CHARGES,
    Structure,
    count_neighbours,
    descend,
    detect_group,
    find_lowest,
    is_neutral,
    is_spaced,
    measure_energy,
    measure_stiffness,
    read_structure,
)
from learning.rewards import crystals as rewards
from learning.rewards.crystals import read_request
from learning.toy_tasks.crystals import crystallographer, crystals, list_compositions, place
from schemas.errors import StepError


@pytest.mark.parametrize("want", ["any", "group", "stiffness"])
def test_known_structures_have_what_is_asked_for(want):
    for row in crystals(size=12, split="train", want=want):
        request, text = read_request(row), row["prompt"][0]["content"]
        structure = read_structure(f"|{json.loads(row['metadata'])['sites']}", request.cell)
        assert structure.composition == request.atoms
        assert is_neutral(structure)
        assert is_spaced(structure)
        assert structure.sites[0][1:] == (0, 0)
        if want == "group":
            assert text.endswith(f", group {detect_group(structure)}")
            assert request.group == detect_group(structure) != "p1"
        if want == "stiffness":
            least, largest = request.stiffness
            assert abs((least + largest) / 2 - measure_stiffness(structure)) <= 0.5
            assert text.endswith(f", stiff {(least + largest) / 2:.0f}")


def test_no_composition_in_a_cell_is_on_both_sides():
    pairs = {}
    for split in ("train", "test"):
        rows = [row for want in ("any", "stiffness") for row in crystals(size=20, split=split, want=want)]
        pairs[split] = {row["prompt"][0]["content"].partition(",")[0] for row in rows}
    assert pairs["train"].isdisjoint(pairs["test"])
    with pytest.raises(StepError, match=r"crystals: .* lower `size`"):
        crystals(size=1, split="test", test_share=1e-9)


def test_compositions_are_neutral_and_small():
    compositions = list_compositions()
    assert len(compositions) == len(set(compositions)) == 17
    for composition in compositions:
        assert sum(CHARGES[element] * number for element, number in composition) == 0
        assert 2 <= sum(number for _, number in composition) <= 6
        assert all(number > 0 for _, number in composition)


def test_a_descent_ends_where_no_atom_can_move_to_a_better_site():
    composition, cell = (("K", 1), ("M", 1), ("F", 3)), (4, 4)
    structure = descend(composition, cell, np.random.default_rng(1), sweeps=50)
    for i, (element, _, _) in enumerate(structure.sites):
        for x in range(4):
            for y in range(4):
                moved = (*structure.sites[:i], (element, x, y), *structure.sites[i + 1 :])
                assert measure_energy(Structure(cell, moved)) >= measure_energy(structure) - 1e-9
    assert find_lowest(composition, cell) <= measure_energy(structure) + 0.5
    assert find_lowest((("K", 1), ("F", 1)), (4, 4)) == pytest.approx(
        min(measure_energy(Structure((4, 4), (("K", 0, 0), ("F", i // 4, i % 4)))) for i in range(1, 16))
    )


def test_a_structure_keeps_its_energy_where_it_is_placed():
    structure = Structure((4, 5), (("F", 3, 4), ("K", 1, 2)))
    assert place(structure).sites == (("K", 2, 3), ("F", 0, 0))
    assert measure_energy(place(structure)) == pytest.approx(measure_energy(structure))


def test_neighbours_are_unlike_charges_of_this_cell_and_those_beside():
    assert count_neighbours(Structure((4, 4), (("K", 0, 0), ("F", 3, 3), ("K", 1, 0)))) == [1, 1, 0]
    assert count_neighbours(Structure((2, 2), (("M", 0, 0), ("O", 1, 1)))) == [4, 4]


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"composition": {"X": 1}, "cell": [4, 4]},
        {"composition": {"K": 1}, "cell": [4, 99]},
        {"composition": {"K": 5}, "cell": [2, 2]},
        {"composition": {"K": 13}, "cell": [4, 4]},
        {"composition": {"K": 1}, "cell": [4, 4], "stiffness": [3.0, 3.0]},
    ],
)
def test_other_rows_are_refused_by_name(metadata):
    row = {"id": "r", "prompt": [], "answer": None, "family": "f", "metadata": json.dumps(metadata)}
    with pytest.raises(StepError, match="row r: no request for a crystal"):
        rewards.formed([row], ["| K 0 0"])


def test_what_is_not_asked_for_cannot_be_scored():
    about = {"composition": {"K": 1, "F": 1}, "cell": [4, 4]}
    row = {"id": "r", "prompt": [], "answer": None, "family": "f", "metadata": json.dumps(about)}
    assert rewards.grouped([row], ["| K 0 0"]) == rewards.stiff([row], ["| K 0 0"]) == [None]
    with pytest.raises(StepError, match="row r: its metadata is not that of a `crystals` problem"):
        crystallographer(row, np.random.default_rng(0))
    wrong = row | {"metadata": json.dumps(about | {"sites": "K 9 9"})}
    with pytest.raises(StepError, match="its `sites` are no structure in its cell"):
        crystallographer(wrong, np.random.default_rng(0))
