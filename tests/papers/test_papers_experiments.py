"""Every recipe of a paper is the experiment that its row claims: data, judges, rewards, comparisons, measurements."""

from pathlib import Path

import pytest

from tests.papers.experiments import (
    ROOT,
    describe,
    describe_profile,
    find_unmeasured,
    list_full_differences,
    list_own_differences,
    read_claim,
    read_recipe,
)

ROWS = sorted(path.stem for path in (Path(__file__).parent / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("row", ROWS)
def test_a_recipe_is_the_experiment_that_its_row_claims(row):
    claim, path = read_claim(row), ROOT / "recipes" / "papers" / f"{row}.yaml"
    assert find_unmeasured(read_recipe(path)) == claim.pop("unmeasured", [])
    profiles = claim.pop("profiles")
    compared = {name: step["like"] for name, step in claim.items() if "like" in step}
    assert describe(path, compared) == claim
    assert {profile: describe_profile(path, profile) for profile in profiles} == profiles
    assert list_full_differences(path, compared) == []
    assert list_own_differences(path) == []


def test_every_row_claims_one():
    assert {path.stem for path in (ROOT / "recipes" / "papers").glob("*.yaml")} == set(ROWS)
