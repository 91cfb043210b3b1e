"""Whatever stands in a recipe: it is accepted or refused with a place, in two seconds and half a gigabyte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.hostile_recipes import replacements, sampled, written

HOUSE = Path(__file__).resolve().parents[2]
SECONDS = 2.0
"""Of a processor: on the wall it depends on what else runs. What waits is ended by the worker's alarm."""
MEGABYTES = 500
LONGEST = 200_000
"""Characters of all messages about one recipe."""


def read_all(kind, folder, *, seed, count, start=0):
    """What came of the recipes from `start` on, by a process that reads them one after the other."""
    command = [sys.executable, "-m", "tests.security.recipe_worker", kind, folder, seed, count, start, count]
    environment = os.environ | {"PYTHONPATH": str(HOUSE)}
    done = subprocess.run([str(c) for c in command], cwd=HOUSE, env=environment, capture_output=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    after = results[-1]["name"] if results else "the start"
    assert done.returncode == 0, f"it ended at the recipe after {after}: {done.stderr[-2000:]}"
    assert len(results) == count - start
    return results


def check(results):
    for one in results:
        assert one["outcome"] in ("accepted", "refused"), one
        assert one["placed"], one
        assert one["seconds"] <= SECONDS, one
        assert one["peak_mb"] <= MEGABYTES, one
        assert one["length"] <= LONGEST, one


def test_hostile_recipes_get_an_answer_in_two_seconds_and_half_a_gigabyte(tmp_path):
    recipes = list(sampled(450, seed=1))
    assert len({(one.text, tuple(sorted(one.beside)), one.overrides) for one in recipes}) >= 400
    results = read_all("hostile", tmp_path, seed=1, count=450)
    check(results)
    refused = {one["name"] for one in results if one["outcome"] == "refused"}
    assert {one.name for one in recipes if one.refused} - refused == set()


def test_mutated_recipes_get_an_answer(tmp_path):
    results = read_all("mutated", tmp_path, seed=7, count=400)
    check(results)
    assert 16 < sum(one["outcome"] == "accepted" for one in results) < 330  # neither all nonsense nor all the same


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_thousand_mutated_recipes_get_an_answer(tmp_path):
    check(read_all("mutated", tmp_path, seed=11, count=20_000))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_hostile_value_in_every_place_gets_an_answer(tmp_path):
    check(read_all("hostile", tmp_path, seed=2, count=len(list(written())) + len(replacements())))
