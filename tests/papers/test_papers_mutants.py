"""The breaks that rows must notice fit the code: `make mutants` applies them and runs the rows' tests."""

import pytest

from tests.papers.mutation import ROOT, find_test, list_files, list_rows, read_mutants


@pytest.mark.parametrize("row", list_rows())
def test_every_mutant_applies_and_two_are_of_the_recipe(row):
    mutants = read_mutants(row)
    texts = {mutant.applied(ROOT) for mutant in mutants}
    assert len(texts) == len({mutant.name for mutant in mutants}) == len(mutants) >= 5
    assert sum(mutant.file == f"recipes/papers/{row}.yaml" for mutant in mutants) >= 2
    assert all(mutant.find != mutant.replace for mutant in mutants)
    assert not [mutant.file for mutant in mutants if mutant.file.startswith("tests/")]


def test_a_change_picks_the_rows_that_rest_on_it():
    files = list_files("xrpo")
    assert {find_test("xrpo"), "recipes/papers/xrpo.yaml", "recipes/bases/chain_sum.yaml"} <= files
    assert "learning/collection/resampling.py" in files
    assert all((ROOT / name).is_file() for name in files)
