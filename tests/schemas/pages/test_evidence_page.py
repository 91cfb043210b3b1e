"""docs/evidence follows from the results in it, whose numbers fit together, and from recipes as they are now."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from learning.evaluation.seed_interval import combine_errors
from schemas.outcome import Outcome
from schemas.pages.evidence import DIGITS, judge, read_evidence, write_evidence
from schemas.pages.evidence_page import FOLDER, make_evidence_page, write_pages
from schemas.pages.evidence_plots import Scale, draw_differences, draw_seeds
from schemas.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
RESULTS = sorted(FOLDER.glob("*.json"))
RECIPES = sorted((ROOT / "recipes/outcomes").glob("*.yaml"))


def test_the_pages_are_up_to_date(tmp_path):
    for file in RESULTS:
        shutil.copy(file, tmp_path)
    write_pages(tmp_path)
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}, "run `make docs`"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_interval_and_verdict_follow_from_the_seeds(file):
    one = read_evidence(file)
    assert len(one.seeds) >= 3
    assert one.id == file.stem
    made = combine_errors(np.array(one.gains), one.problems_error, one.problems, one.confidence)
    assert (one.value, one.low, one.high) == pytest.approx((made.value, made.low, made.high), abs=5 * 10**-DIGITS)
    assert one.verdict == judge(one.low, one.high, one.outcome.margin)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_an_outcome_varies_the_seed_of_what_trains(recipe):
    assert (ROOT / "recipes/papers" / recipe.name).is_file()
    one, two = (load_recipe(recipe, overrides=[f"vars.seed={seed}"]) for seed in (1, 2))
    outcome = one.head.outcome
    # Rounds have their numbers as seeds: there the prompts that they train on are drawn with another seed.
    drawn = {
        name for name in one.steps if one.stages[name].kind == "synthesize" and draws(one, name) != draws(two, name)
    }
    varied = drawn | {name for name in one.steps if one.seed(name) != two.seed(name)}
    ports = {p.path: p.steps[0] for p in one.ports(outcome.report) if p.steps}
    makers = {ports.get(f"agents.{outcome.method}", ports[f"models.{outcome.method}"])}
    own = tuple(f"{what}.{outcome.method}." for what in ("solvers", "envs", "logits_processors"))
    makers |= {step for path, step in ports.items() if path.startswith(own)}
    # Samples differ from seed to seed; the seed of policies without sampling is that of the starts, which may stay.
    assert outcome.report in varied or one.stages[outcome.report].kind == "evaluate_control"
    assert varied & {step for maker in makers for step in (maker, *one.steps[maker].needs)}


def draws(recipe, name):
    """The seeds of the problems that a step of kind `synthesize` draws."""
    return [problems.options.get("seed") for problems in recipe.stages[name].problems]


def test_a_page_without_results_has_an_empty_table(tmp_path):
    page = make_evidence_page([], tmp_path)
    assert page.rstrip().endswith("|---|---|---|---|---|---|")


def test_outcomes_that_are_declared_and_not_measured_are_named(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").touch()
    assert make_evidence_page([], tmp_path).rstrip().endswith("Declared and not measured yet: one, two.")


def test_returns_are_in_the_table_and_not_in_the_plot_of_shares(tmp_path):
    """A difference of 1,000 in the return would leave nothing to see of differences between 0 and 1."""
    results = map(read_evidence, RESULTS)
    one = next(found for found in results if found.outcome.metric == "accuracy" and not found.outcome.unequal)
    returns = one.outcome.model_copy(update={"metric": "mean_return"})
    write_evidence(one, tmp_path / "shares.json")
    write_evidence(one.model_copy(update={"id": "returns", "outcome": returns}), tmp_path / "returns.json")
    write_pages(tmp_path, tmp_path)
    plot, page = ((tmp_path / name).read_text(encoding="utf-8") for name in ("differences.svg", "README.md"))
    assert f">{one.id}</text>" in plot
    assert ">returns</text>" not in plot
    assert "| [returns](#returns) |" in page
    assert page.count("they are in the table and not in the plot") == 1
    assert page.count("environment steps,") == page.count("completions,") == 1


def test_the_axis_has_round_numbers_and_ends_lie_on_it():
    scale = Scale([-0.03, 0.11])
    assert [round(tick, 6) for tick in scale.list_ticks()] == [0.0, 0.05, 0.1]
    assert float(scale.at(-0.03)) < float(scale.at(0.0)) < float(scale.at(0.11))
    assert draw_differences([]).startswith("<svg")


@pytest.mark.parametrize("file", RESULTS[:1], ids=lambda file: file.stem)
def test_a_plot_has_a_dot_for_method_and_comparator_of_each_seed(file):
    one = read_evidence(file)
    picture = draw_seeds(one)
    assert picture.count("<circle") == 2 * len(one.seeds)
    assert f"● {one.outcome.method}, ○ {one.outcome.against}" in picture


def test_a_difference_is_named_by_what_is_positive_where_the_method_is_better():
    given = {"claim": "c", "method": "trained", "against": "joint"}
    assert Outcome(**given).describe_difference() == "trained − joint"
    lower = Outcome(**given, metric="nash_gap", better="lower")
    assert lower.describe_difference() == "joint − trained"
    assert [Outcome(**given, metric=name).compares_returns for name in ("accuracy", "mean_score", "nash_gap")] == [
        False
    ] * 3
    returns = ("mean_return", "mean_return.easy", "worst_return", "hypervolume_[0.0, -20.0]")
    assert all(Outcome(**given, metric=name).compares_returns for name in returns)
