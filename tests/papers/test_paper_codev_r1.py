"""CodeV-R1: only equivalent round trips are kept, and requesting B / keep rate samples saves sampling rounds.

The keep rate is the lowest so far, as in the released code.

Not shown: Verilog and its simulators, 68.6 % of VerilogEval.
"""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.curation.score_limits import find_limits
from learning.lookup import bind
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots, keep_groups
from learning.samples.sample import History, Sample, by_group
from learning.sampling.iteration_context import IterationContext
from schemas.recipe.load import load_recipe
from schemas.use import RowScoreUse

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "codev-r1.yaml"
GROUPS = 8


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def pair(golden, written):
    completion = [{"role": "assistant", "content": written}]
    return {"id": "m", "answer": golden, "metadata": '{"kind": "out"}', "completion": completion}


def keep(use, rows):
    """Return which rows a score of a curate stage keeps."""
    values = np.array(bind(use, "scores.0").ask(0, {"account": None, "seed": 0}, rows))
    limits = find_limits(use, np.sort(values))
    return [limits.low <= value <= limits.high for value in values.tolist()]


def test_round_trips_are_kept_where_nothing_differs():
    (use,) = stage("pairs").scores
    written = {"(a&b)|(a&c)": True, "a&b|c": False, "a&(c|b)": True, "what?": False}
    assert keep(use, [pair("a&(b|c)", text) for text in written]) == list(written.values())


def test_programs_come_back_from_their_description_by_their_tests():
    """The second domain: Python in the sandbox, with the recipe's score and limits."""
    (use,) = stage("pairs").scores
    tested = RowScoreUse(use=use.use, of={"use": "programs.passed"}, min=use.min)
    about = {"answer": None, "family": "python", "metadata": json.dumps({"tests": ["assert total(3) == 6"]})}
    loop = "def total(n):\n    made = 0\n    for i in range(n{}):\n        made += i\n    return made"
    assert keep(tested, [pair("", loop.format(end)) | about for end in (" + 1", "")]) == [True, False]


def test_what_is_dropped_differs_at_a_0_c_1():
    at = {"a": False, "b": False, "c": True}
    assert eval("a&b|c", at) != eval("a&(b|c)", at)


def visited(rate):
    """The history after ten visits of which a share had some completions right and some wrong."""
    history = History()
    history.rates = {f"p{i}": [0.5 if i < 10 * rate else float(i % 2)] for i in range(10)}
    return history


@pytest.mark.parametrize(("rate", "size"), [(0.5, 16), (0.8, 10)])
def test_the_next_generation_follows_the_keep_rate(rate, size):
    plan = bind_sampling_slots(stage(), {}).prompt_sampler
    supplies = {"rows": [{"id": str(i)} for i in range(99)], "num_groups": GROUPS, "n": 8, "seed": 1, "states": {}}
    assert len(plan.ask(0, {**supplies, "history": visited(rate)})) == size == math.ceil(GROUPS / rate)


def test_the_keep_rate_never_rises():
    plan = bind_sampling_slots(stage(), {}).prompt_sampler
    supplies = {"rows": [{"id": str(i)} for i in range(99)], "num_groups": GROUPS, "n": 8, "seed": 1, "states": {}}
    seen = visited(0.5)
    assert len(plan.ask(0, {**supplies, "history": seen})) == 16
    seen.rates |= {f"q{i}": [0.5] for i in range(10)}
    assert len(plan.ask(1, {**supplies, "history": seen})) == 16


@pytest.mark.parametrize(("name", "size"), [("trained", 4), ("dapo", 2)])
def test_missing_groups_are_requested_over_the_keep_rate(name, size):
    """Of eight groups four vary in the first round and two more of the next four: two are missing."""
    (refill,) = bind_sampling_slots(stage(name), {}).resample
    supplies = {"rows": rows(), "num_groups": GROUPS, "n": 8, "seed": 1, "step": 0, "states": {}}
    for number, varied, equal in ((0, 4, 4), (1, 6, 6)):
        scores = [(0.0, 1.0)] * varied + [(0.0, 0.0)] * equal
        samples = [
            Sample(
                {"id": f"x{group}"}, group, "policy", [1], [7], [-0.5], "stop", "x", scores={"r": score}, reward=score
            )
            for group, both in enumerate(scores)
            for score in both
        ]
        requests = refill.ask(0, {**supplies, "round": number, "samples": samples})[1]
    assert len(requests) == size


def rows():
    """Every second problem is too hard."""
    return [
        {"id": f"m{i}", "prompt": [{"role": "user", "content": f"{'hard' if i % 2 else 'fair'} {i}"}]}
        | {"answer": "a&b", "family": "modules", "metadata": '{"kind": "out"}'}
        for i in range(200)
    ]


def iterate(name, answering):
    """Rounds of sampling in ten iterations of a stage; every update gets eight groups, all of which vary."""
    parts, history, states, rounds = bind_sampling_slots(stage(name), {}), History(), {}, []
    for step in range(10):
        sampler = answering(lambda p, i: "b&a" if i < 4 and p.startswith("fair") else "a", step=step)
        calls = []
        generate = sampler.engine.generate
        sampler.engine.generate = lambda r, s, c=calls, g=generate: c.append(len(r)) or g(r, s)
        supplies = {
            "rows": rows(),
            "num_groups": GROUPS,
            "n": 8,
            "seed": 1,
            "step": step,
            "states": states,
            "metrics": {},
        }
        samples = collect_samples(parts, IterationContext(**supplies, sampler=sampler, history=history), {})
        trained = keep_groups(parts.filter_groups, samples, step, {}, {})
        kept = by_group([samples[i] for i in trained.paths["path"].tolist()])
        assert len(kept) == GROUPS
        assert all(len({t.reward for t in members}) == 2 for members in kept.values())
        rounds.append(len(calls))
    return rounds


def test_fewer_rounds_of_sampling_than_plain_dynamic_sampling(answering):
    adaptive, plain = iterate("trained", answering), iterate("dapo", answering)
    assert adaptive[0] <= plain[0]
    assert sum(adaptive[1:]) < 0.75 * sum(plain[1:])


def test_the_clip_lets_a_rising_right_token_through():
    how = bind_algorithm(stage(), {})
    for ratio, through in ((1.25, True), (1.3, False)):
        log_ratio = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
        loss = how.policy_loss.ask(0, {"log_ratio_T": log_ratio, "advantage_T": torch.ones(1, dtype=torch.float64)})
        (grad,) = torch.autograd.grad(loss.sum(), log_ratio)
        assert (grad.item() != 0) is through
