"""CrystalReasoner: a dense reward of single terms for crystals behind their priors, and specialists with their own.

Rewards, their weights, problems and stages are those of the recipe; structures are written by hand, with energies from
a direct sum. Not shown: that this makes stable structures, which is measured.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from learning.data import lattices
from learning.data.lattices import CHARGES, read_structure
from learning.lookup import bind
from learning.rewards.crystals import read_request
from learning.rl.monitoring import describe_rewards
from learning.samples.sample import Sample
from learning.sampling.sampler import score
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "crystalreasoner.yaml").stages
TRAINED, ENERGY, DIRECT = (STAGES[name] for name in ("trained", "energy", "direct"))
BY_GROUP, BY_STIFFNESS = STAGES["by_group"], STAGES["by_stiffness"]
TERMS = ("formed", "spaced", "neutral", "composed", "stable", "consistent")
KF = {"composition": {"K": 1, "F": 1}, "cell": [4, 4]}
BEST, APART = "K 0 0, F 1 1", "K 0 0, F 0 3"


def sampled(stage, about, *texts):
    """Samples with these texts, scored by the rewards of a stage with their weights."""
    row = {"id": "r", "prompt": [], "answer": None, "family": "crystals", "metadata": json.dumps(about)}
    made = [Sample(row, 0, "policy", [1], [2], [-1.0], "stop", text) for text in texts]
    rewards = [bind(use, f"rewards.{i}") for i, use in enumerate(stage.rewards)]
    score(rewards, [use.weight for use in stage.rewards], made, {"step": 0})
    return made


def earned(stage, about, *texts):
    return [sample.reward for sample in sampled(stage, about, *texts)]


def add_up(structure, scale=1.0, reach=5):
    """The energy per atom of a scaled structure, pair by pair."""
    total = 0.0
    for i, (first, x, y) in enumerate(structure.sites):
        for j, (second, u, v) in enumerate(structure.sites):
            for m, n in product(range(-reach, reach + 1), repeat=2):
                r = scale * np.hypot(x - u + m * structure.cell[0], y - v + n * structure.cell[1])
                if i == j and m == n == 0:
                    continue
                sixth = (1.5 / r) ** 6
                total += (sixth**2 - 2 * sixth * (CHARGES[first] * CHARGES[second] < 0)) / 2
    return total / len(structure.sites)


@pytest.fixture
def flat(monkeypatch):
    """A best known energy of −1.4, in place of a search."""
    monkeypatch.setattr("learning.rewards.crystals.find_lowest", lambda composition, cell: -1.4)


GAPS = {0.0: 1.0, 0.4: 0.8, 1.0: 0.5, 2.0: 0.25}
"""Energy above the best known, and the score for it."""


@pytest.mark.parametrize(("above", "expected"), GAPS.items())
def test_the_energy_term_falls_with_the_energy_above_the_best_known(above, expected, monkeypatch):
    lowest = add_up(read_structure(f"|{BEST}", (4, 4))) - above
    monkeypatch.setattr("learning.rewards.crystals.find_lowest", lambda composition, cell: lowest)
    assert earned(ENERGY, KF, f"| {BEST}") == [pytest.approx(10 * expected, rel=1e-4)]
    # It is asked for valid structures of the right composition alone.
    assert earned(ENERGY, KF, "| K 0 0, F 0 1", "| K 0 0, K 2 2", "| K 0 0, F 1 1, K 2 2, F 3 3") == [0.0] * 3


def test_a_structure_that_fails_the_energy_alone_stands_between_all_and_none(flat):
    """Weights 0.1, 0.3, 0.3, 0.3, 10 and 0.3; every term is logged by itself."""
    good, poor, none = f"group p1 | {BEST}", "group p4m | K 0 0, F 2 2", "no structure"
    samples = sampled(TRAINED, KF, none, poor, good)
    energies = [add_up(read_structure(text, (4, 4))) + 1.4 for text in (poor, good)]
    assert energies[0] > 1 > energies[1] > 0
    assert [sample.reward for sample in samples] == [
        0.0,
        pytest.approx(1.3 + 10 * 0.5 / energies[0], rel=1e-4),
        pytest.approx(1.3 + 10 * (1 - energies[1] / 2), rel=1e-4),
    ]
    assert set(describe_rewards(samples)) == {"reward", *(f"reward/crystals.{term}" for term in TERMS)}
    assert [sample.scores["crystals.formed"] for sample in samples] == [0.0, 1.0, 1.0]
    # With a single term there would be nothing between: the energy of what is not valid is 0, whatever else it has.
    close = "group p1 | K 0 0, F 0 1"
    assert earned(ENERGY, KF, none, close) == [0.0, 0.0]
    assert earned(TRAINED, KF, none, close)[1] == pytest.approx(0.7)


CASES = {
    "| K 0 0, F 0 1": (1, 0, 1, 1),
    "| K 0 0, F 3 3": (1, 1, 1, 1),
    "| K 0 0, F 0 3": (1, 0, 1, 1),
    "| K 0 0, K 2 2": (1, 1, 0, 0),
    "| M 0 0, O 2 2": (1, 1, 1, 0),
    "| K 0 0, F 0 0": (1, 0, 1, 1),
    "| K 0 0, F 4 0": (0, 0, 0, 0),
    "| K 0 0, X 1 1": (0, 0, 0, 0),
    "| K 0 0; F 1 1": (0, 0, 0, 0),
    "K 0 0, F 1 1": (0, 0, 0, 0),
    "K 0 0, F 1 1 |": (0, 0, 0, 0),
    "| K 0 0, F 1 1 | group p4m": (0, 0, 0, 0),
    "| " + ", ".join(["K 0 0"] * 13): (0, 0, 0, 0),
}
"""Formed, spaced (atoms of neighbouring cells count), neutral, composed."""


@pytest.mark.parametrize("text", CASES)
def test_each_term_asks_for_one_thing(text, flat):
    (sample,) = sampled(TRAINED, KF, text)
    assert tuple(sample.scores[f"crystals.{term}"] for term in TERMS[:4]) == CASES[text]


def test_a_group_that_is_stated_and_not_there_loses_the_consistency():
    stated = [f"{thought} | {BEST}" for thought in ("group p1", "group pmm", "", "group p1, group pm", "p1")]
    scores = [sample.scores["crystals.consistent"] for sample in sampled(TRAINED, KF, *stated)]
    assert scores == [1.0, 0.0, 0.0, 0.0, 0.0]
    right, wrong = earned(TRAINED, KF, *stated[:2])
    assert right - wrong == pytest.approx(0.3)
    # What is thought after the coordinates is no structure.
    assert earned(TRAINED, KF, f"| {BEST}, group p1") == [0.0]


DETECTED = {
    "p4m": ((4, 4), "K 0 0, F 2 2"),
    "pmm": ((4, 5), "K 0 0, F 2 0"),
    "pm": ((5, 5), "M 0 0, F 2 1, F 2 4"),
    "p2": ((5, 5), "K 0 0, K 2 1, F 0 2, F 2 4"),
    "p1": ((5, 5), "K 0 0, M 2 1, F 0 2"),
}


@pytest.mark.parametrize("group", DETECTED)
def test_the_specialist_for_groups_is_paid_for_exactly_the_detected_one(group, flat):
    cell, sites = DETECTED[group]
    structure = read_structure(f"|{sites}", cell)
    about = {"composition": dict(structure.composition), "cell": cell}
    for asked in lattices.GROUPS:
        (sample,) = sampled(BY_GROUP, about | {"group": asked}, f"group {asked} | {sites}")
        is_exact = asked == group and lattices.is_spaced(structure) and lattices.is_neutral(structure)
        assert sample.scores["crystals.grouped"] == is_exact
        assert sample.scores["crystals.consistent"] == (asked == group)
    assert lattices.detect_group(structure) == group
    if group == "p4m":
        # 0.1 + 3 · 0.3 + 1 + 0.3
        assert earned(BY_GROUP, about | {"group": group}, f"group p4m | {sites}") == [pytest.approx(2.3)]
        assert earned(BY_GROUP, about | {"group": "pm"}, f"group p4m | {sites}") == [pytest.approx(1.3)]


def test_a_structure_that_is_not_valid_has_no_group():
    about = KF | {"group": "pm"}
    close = "K 0 0, F 0 1"
    assert lattices.detect_group(read_structure(f"|{close}", (4, 4))) == "pm"
    (sample,) = sampled(BY_GROUP, about, f"group pm | {close}")
    assert sample.scores["crystals.grouped"] == 0.0


def test_symmetry_does_not_depend_on_the_origin():
    for cell, sites in DETECTED.values():
        structure = read_structure(f"|{sites}", cell)
        moved = tuple((e, (x + 3) % cell[0], (y + 1) % cell[1]) for e, x, y in structure.sites)
        assert lattices.detect_group(lattices.Structure(cell, moved)) == lattices.detect_group(structure)


def test_the_continuous_score_falls_strictly_with_the_distance(flat):
    """1 − 2z² and, below 0, exp(1 − 2z²) − 1, for z = |y − y*| / 50; 5 times that, and the energy once."""
    stiffness = lattices.measure_stiffness(read_structure(f"|{BEST}", (4, 4)))
    energy = earned(ENERGY, KF, f"| {BEST}")[0] / 10
    distances, scores = (0.0, 1.0, 20.0, 35.0, 36.0, 60.0, 120.0), []
    for distance in distances:
        for sign in (-1, 1):
            middle = stiffness + sign * distance
            scores.append(earned(BY_STIFFNESS, KF | {"stiffness": [middle - 25, middle + 25]}, f"| {BEST}")[0])
    below, above = np.array(scores[::2]), np.array(scores[1::2])
    np.testing.assert_allclose(below, above)
    assert (np.diff(below) < 0).all()
    curve = 1 - 2 * (np.array(distances) / 50) ** 2
    np.testing.assert_allclose(below, 5 * np.where(curve >= 0, curve, np.exp(curve) - 1) + energy)
    (close,) = sampled(BY_STIFFNESS, KF | {"stiffness": [0.0, 50.0]}, "| K 0 0, F 0 1")
    assert close.scores == {"crystals.stiff": 0.0, "crystals.stable": 0.0}


@pytest.mark.parametrize(("cell", "sites"), [((4, 4), BEST), ((3, 5), "K 0 0, K 1 2, O 2 1, M 1 4, O 0 3")])
def test_energy_and_stiffness_are_those_of_a_direct_sum(cell, sites):
    structure = read_structure(f"|{sites}", cell)
    assert lattices.measure_energy(structure) == pytest.approx(add_up(structure), rel=1e-4)
    step = 1e-4
    second = (add_up(structure, 1 + step) - 2 * add_up(structure) + add_up(structure, 1 - step)) / step**2
    assert lattices.measure_stiffness(structure) == pytest.approx(second, rel=1e-3)


def test_specialists_and_comparators_differ_in_what_the_recipe_says():
    trained = TRAINED.model_dump()

    def differing(stage):
        return {key for key, value in stage.model_dump().items() if trained[key] != value}

    assert differing(ENERGY) == {"rewards"}
    assert differing(DIRECT) == {"rewards", "model"}
    assert differing(BY_GROUP) == differing(BY_STIFFNESS) == {"rewards", "prompts"}
    assert [use.use for use in DIRECT.rewards] == [f"crystals.{term}" for term in TERMS[:5]]
    assert [use.weight for use in DIRECT.rewards] == [use.weight for use in TRAINED.rewards[:5]]
    assert [stage.model for stage in (TRAINED, BY_GROUP, BY_STIFFNESS)] == ["cold_start"] * 3
    assert STAGES["report"].rewards == DIRECT.rewards
    measured = {use.use for name, stage in STAGES.items() if name.startswith("terms") for use in stage.rewards}
    assert measured == {f"crystals.{term}" for term in TERMS}
    assert [STAGES[name].rewards[0].use for name in ("group_report", "stiffness_report")] == [
        "crystals.grouped",
        "crystals.stiff",
    ]
    thoughts = [STAGES[name].teacher.options.get("thinks", True) for name in ("lessons", "plain_lessons")]
    assert thoughts == [True, False]
    assert STAGES["lessons"].problems == STAGES["plain_lessons"].problems


def test_thoughts_stand_before_the_coordinates_and_are_true():
    lessons, stiffnesses = STAGES["lessons"], STAGES["stiffnesses"].problems[0]
    rows = bind(stiffnesses.model_copy(update={"size": 40}))()
    author, rng = bind(lessons.teacher), np.random.default_rng(0)
    texts = [author.function(row, rng, error_rate=0.0) for row in rows]
    for row, text in zip(rows, texts, strict=True):
        request, structure = read_request(row), read_structure(text, read_request(row).cell)
        thoughts, _, sites = text.partition(" | ")
        near = " ".join(map(str, lattices.count_neighbours(structure)))
        stiff = round(lattices.measure_stiffness(structure))
        assert thoughts == f"group {lattices.detect_group(structure)}, near {near}, stiff {stiff}"
        assert sum(request.stiffness) / 2 == stiff
        assert author.function(row, rng, error_rate=0.0, thinks=False) == f"| {sites}"
    wrong = [author.function(row, rng, error_rate=1.0) for row in rows]
    assert [text.partition(" | ")[0] for text in wrong] == [text.partition(" | ")[0] for text in texts]
    assert sum(a != b for a, b in zip(wrong, texts, strict=True)) > 30
    # A thought for every atom: what is thought grows with what is written.
    assert {len(text.partition(",")[2].partition(",")[0].split()) - 1 for text in texts} == {
        len(json.loads(row["metadata"])["sites"].split(",")) for row in rows
    }
