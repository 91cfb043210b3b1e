"""DRIVE: first all problems equally often with few samples each, then many samples of a shrinking set of the hardest.

Not shown: contests, the rise of entropy at 24,000 tokens.
"""

import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from learning.data.chat import encode_prompt
from learning.data.tokenizers import characters
from learning.lookup import bind
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import History
from learning.toy_tasks.coding import list_functions
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "drive.yaml"


@cache
def stages(profile="tiny"):
    return load_recipe(RECIPE, profile=profile).stages


def visits(name, num_rows, steps, history=None):
    """What the plan of a stage samples in each iteration: problem, completions."""
    stage = stages()[name]
    plan, states = bind_sampling_slots(stage, {}).prompt_sampler, {}
    n = stage.num_generations
    supplies = {"num_groups": stage.generation_batch_size // n, "n": n, "seed": 5, "states": states, "history": history}
    rows = [{"id": f"p{i}"} for i in range(num_rows)]
    return [[(a.row["id"], a.n) for a in plan.ask(s, {**supplies, "rows": rows, "step": s})] for s in range(steps)]


def test_the_first_stage_visits_every_problem_equally_often_with_four_samples():
    log = [visit for some in visits("broad", 160, 20) for visit in some]
    assert {n for _, n in log} == {4}
    assert set(Counter(name for name, _ in log).values()) == {2}


def test_the_first_stage_has_a_shorter_window_than_fine_tuning():
    """A window holds prompt and completion: with the recipe's longest prompt the first stage stays within."""
    rows = [row for use in stages()["uniform"].problems for row in bind(use)()]
    tokenizer = characters()
    longest = max(len(encode_prompt(tokenizer, row["prompt"])) for row in rows)
    assert longest + stages()["broad"].max_completion_length < stages()["coder"].max_length
    assert stages()["broad"].max_completion_length < stages()["pre_grpo"].max_completion_length


def test_the_second_stage_has_sixteen_samples_of_the_hardest_alone():
    history = History()
    history.rates = {f"p{i}": [i / 64] for i in range(64)}
    log = visits("pre_grpo", 64, 24, history)
    assert {n for some in log for _, n in some} == {16}
    seen = [{name for name, _ in some} for some in log]
    assert set().union(*seen[:16]) == {f"p{i}" for i in range(64)}
    # The paper's three phases have 72, 50 and 25 problems.
    second, third = math.ceil(64 * 50 / 72), math.ceil(64 * 25 / 72)
    assert set().union(*seen[16:20]) <= {f"p{i}" for i in range(second)}
    assert not set().union(*seen[16:20]) <= {f"p{i}" for i in range(32)}
    assert set().union(*seen[20:]) <= {f"p{i}" for i in range(third)}
    assert not set().union(*seen[20:]) <= {f"p{i}" for i in range(16)}


def test_the_sizes_and_phases_are_the_papers_in_the_full_profile():
    full = [stages("full")[name] for name in ("broad", "pre_grpo")]
    assert [stage.num_generations for stage in full] == [8, 64]
    assert [stage.max_steps for stage in full] == [32, 64 + 32 + 32]
    phases = full[1].prompt_sampler.share["piecewise"]
    assert {int(start): round(72 * share) for start, share in phases.items()} == {0: 72, 64: 50, 96: 25}


# What counts is the last visit: c alone becomes easy, or d does.
@pytest.mark.parametrize(("risen", "left"), [("c", "d"), ("d", "c")])
def test_hard_focus_retains_the_most_difficult(risen, left):
    shares = (0.5, 0.25)
    use = stages()["pre_grpo"].prompt_sampler.model_copy(update={"share": {"piecewise": dict(enumerate(shares))}})
    plan, states, history = bind(use, "prompt_sampler"), {}, History()
    history.rates = {"a": [1.0], "b": [0.5], "c": [0.25], "d": [0.0]}
    rows = [{"id": name} for name in "abcd"]
    supplies = {"rows": rows, "num_groups": 4, "n": 16, "seed": 1, "states": states, "history": history}
    assert Counter(a.row["id"] for a in plan.ask(0, {**supplies, "step": 0})) == {"c": 2, "d": 2}
    assert states["prompt_sampler"]["kept"] == ["c", "d"]
    history.rates[risen].append(0.9)
    assert [a.row["id"] for a in plan.ask(1, {**supplies, "step": 1})] == [left] * 4
    assert states["prompt_sampler"]["kept"] == [left]


def test_the_contest_is_later_and_unseen():
    trained = [use for name in ("traces", "uniform", "hard") for use in stages()[name].problems]
    contest = stages()["contest"].tasks
    seeds = [use.options["seed"] for use in trained]
    assert min(use.options["seed"] for use in contest) > max(seeds)
    known = {row["id"] for use in trained for row in list_functions(**use.options)}
    assert not known & {row["id"] for use in contest for row in list_functions(**use.options)}
