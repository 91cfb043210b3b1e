"""A²FM: completions begun by every mode beside free ones, and effort that pays only where the cheap mode fails.

Completions are dictated; prompt sampler, environment, rewards and loss weights are those of the recipe. Not shown: cost
figures against models of 32B.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.collection.openings import forced_openings
from learning.data.chat import decode, encode_completion
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of
from learning.toy_tasks.mixed_queries import mixed_queries, routed
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "a2fm.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, ANSWERS_ONLY = STAGES["trained"], STAGES["answers_only"]
TAGS = ("<instant>", "<reasoning>", "<agentic>")


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; episodes of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 2000)


@pytest.fixture(scope="module")
def rows():
    return {json.loads(row["metadata"])["kind"]: row for row in mixed_queries(size=3, split="train")}


class Dictated:
    """An engine that continues a context by a function of the text after the question and the number of its sample."""

    def __init__(self, tokenizer, write):
        self.tokenizer, self.write = tokenizer, write

    def generate(self, requests, sampling):
        return [[self.continue_one(request, request.first + i) for i in range(request.n)] for request in requests]

    def continue_one(self, request, number):
        context = decode(self.tokenizer, [*request.prompt_ids, *request.begun])
        said = context.partition("?")[2] if "?" in context else context.partition("=")[2]
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": self.write(said, number)}])
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        pass


def collect(policy, stage, row, write):
    """The samples of one problem as the stage samples and scores them."""
    engine = wrap_in_environment(Dictated(policy.tokenizer, write), stage.env, policy.tokenizer, {}, policy.max_length)
    sampler = Sampler(engine, policy, Sampling(1.0, 400), 0, 0)
    supplies = {"rows": [row], "num_groups": 1, "n": stage.num_generations, "seed": 0, "step": 0, "sampler": sampler}
    samples = sampler.sample(bind(stage.prompt_sampler, "prompt_sampler").ask(0, supplies))
    return score(stage, samples)


def score(stage, samples):
    """The same samples with the rewards of a stage."""
    (reward,) = (bind(use) for use in stage.rewards)
    given = {
        "rows": [one.row for one in samples],
        "completions": [one.text for one in samples],
        "samples": samples,
        "groups": [one.group for one in samples],
    }
    for sample, value in zip(samples, scores_of(reward, 0, given, {}), strict=True):
        sample.scores, sample.reward = {reward.name: value}, value
    return samples


def answer(row, right):
    """Writes an episode in the mode that was begun, and instantly where none was; `right` of the n-th of each."""

    def write(said, number):
        begun = next((tag for tag in TAGS if said.startswith(tag)), "")
        mode, value = begun or TAGS[0], row["answer"] if right(begun, number) else "wrong"
        if mode == "<agentic>" and said == begun:
            return "search: anything"
        return f"#{value}" if said == begun and begun else f"{mode}#{value}"

    return write


def test_two_completions_are_begun_by_each_mode_and_three_are_free(policy, rows):
    """ρ = 2 and γ = 3: one group of 3·2 + 3."""
    samples = collect(policy, TRAINED, rows["fact"], answer(rows["fact"], lambda *_: True))
    assert TRAINED.num_generations == 9
    assert len({one.group for one in samples}) == 1
    begun = [decode(policy.tokenizer, one.completion_ids[: one.given]) for one in samples]
    assert sorted(begun) == sorted([*[""] * 3, *TAGS * 2])
    (free,) = {one.row["id"] for one in samples}
    assert free == rows["fact"]["id"]


def test_a_given_tag_and_tool_results_have_no_weight_and_a_free_tag_has(policy, rows):
    row = rows["lookup"]
    samples = collect(policy, TRAINED, row, answer(row, lambda *_: True))
    algorithm = bind_algorithm(TRAINED, {})
    batch = with_weights(algorithm, with_dropped(forest(samples), mask_truncated=False), 0, 400)
    trained = [
        decode(policy.tokenizer, [i for i, own in zip(one.completion_ids[one.given :], one.own, strict=True) if own])
        for one in samples
    ]
    value = f"#{row['answer']}"
    assert sorted(trained) == sorted(
        [*[f"<instant>{value}"] * 3, *[value] * 4, *[f"search: anything<agentic>{value}"] * 2]
    )
    weight_T = batch.sampled("w")
    assert len(weight_T) == sum(sum(one.own) for one in samples)
    assert bool((weight_T > 0).all())


@pytest.mark.parametrize(("instant", "paid"), [((True, False), 0.75), ((True, True), 0.0), ((False, False), 1.0)])
def test_effort_pays_one_minus_the_square_of_how_often_the_instant_mode_is_right(policy, rows, instant, paid):
    """p = 0.5, 1 and 0 with α = 2; the free completions are no instant ones here."""
    row = rows["fact"]

    def write(said, number):
        if not said:
            return f"<reasoning>#{row['answer']}"
        right = instant[number] if said.startswith("<instant>") else True
        if said == "<agentic>":
            return "search: anything"
        return f"{'<agentic>' if said.startswith('<agentic>') else ''}#{row['answer'] if right else 'wrong'}"

    samples = collect(policy, TRAINED, row, write)
    begun = [decode(policy.tokenizer, one.completion_ids[: one.given]) for one in samples]
    rewards = {tag: [one.reward for one, tag_of in zip(samples, begun, strict=True) if tag_of == tag] for tag in begun}
    assert rewards["<instant>"] == [float(right) for right in instant]
    assert rewards["<reasoning>"] == pytest.approx([paid] * 2)
    assert rewards["<agentic>"] == pytest.approx([paid] * 2)
    assert rewards[""] == pytest.approx([paid] * 3)
    again = [one.reward for one in score(ANSWERS_ONLY, samples)]
    assert sum(again) == 7 + sum(instant)


def test_a_malformed_episode_earns_nothing(policy, rows):
    row = rows["fact"]

    def write(said, number):
        if said.startswith("<reasoning>"):
            return "fetch: x" if said == "<reasoning>" else f"<reasoning>#{row['answer']}"
        if said == "<agentic>":
            return f"#{row['answer']}"
        if said.startswith("<"):
            return "#wrong"
        return f"#{row['answer']}"  # no tag, so that the turn is refused

    samples = collect(policy, TRAINED, row, write)
    begun = [decode(policy.tokenizer, one.completion_ids[: one.given]) for one in samples]
    assert {(tag, one.reward) for tag, one in zip(begun, samples, strict=True)} == {
        ("<instant>", 0.0),
        ("<reasoning>", 0.0),
        ("<agentic>", 1.0),
        ("", 0.0),
    }


def made(group, text, reward):
    sample = Sample({"id": "a", "answer": "x"}, group, "policy", [8], [5], [-1.0], "stop", text)
    sample.scores = {"answers.exact": reward}
    return sample


def test_the_share_is_that_of_the_own_group_and_may_count_all_modes():
    """Group 0: instant 1 of 2, in all 2 of 3, so factors 1 − 1/4 and 1 − 4/9; group 1 has no instant completion."""
    samples = [
        made(0, "<instant>#x", 1.0),
        made(0, "<instant>#y", 0.0),
        made(0, "<reasoning>#x", 1.0),
        made(1, "<reasoning>#x", 1.0),
        made(1, "#x", 1.0),
    ]
    (use,) = TRAINED.rewards
    plain = use.model_copy(update={"of": {"use": "answers.exact", "marker": "#"}})
    given = {"rows": [one.row for one in samples], "completions": [one.text for one in samples], "samples": samples}
    given |= {"groups": [one.group for one in samples]}
    assert bind(plain).ask(0, given) == pytest.approx([1.0, 0.0, 0.75, 1.0, 1.0])
    every = plain.model_copy(update={"among": "group"})
    assert bind(every).ask(0, given) == pytest.approx([1.0, 0.0, 1 - 4 / 9, 0.0, 0.0])
    linear = plain.model_copy(update={"exponent": 1.0})
    assert bind(linear).ask(0, given) == pytest.approx([1.0, 0.0, 0.5, 1.0, 1.0])


def test_openings_that_leave_no_free_completion_are_refused(policy, rows):
    sampler = Sampler(None, policy, Sampling(), 0, 0)
    with pytest.raises(StepError, match="leave no free completion"):
        forced_openings([rows["sum"]], 1, 6, 0, 0, sampler, openings=list(TAGS), forced=2)


def test_lessons_route_by_the_kind_of_question_and_go_on_in_the_mode():
    (use,) = STAGES["lessons"].problems
    small = use.options["of"] | {"size": 60}
    turns = bind(use.model_copy(update={"of": small}))()
    first = [row for row in turns if len(row["prompt"]) == 1]
    later = [row for row in turns if len(row["prompt"]) > 1]
    best = {"fact": "<instant>", "sum": "<reasoning>", "lookup": "<agentic>"}
    rng = np.random.default_rng(0)
    for row in first:
        assert routed(row, rng).startswith(best[json.loads(row["metadata"])["kind"]])
    assert {routed(row, rng, slips=1.0).split(">")[0] + ">" for row in first} == set(TAGS)
    right = [routed(row, rng) == f"<agentic>#{row['answer']}" for row in later]
    assert sum(right) > 0.9 * len(right) > 10
    assert STAGES["lessons"].teacher.options["slips"] == 0.4


def test_the_questions_are_split_and_the_facts_are_the_same():
    train, test = (mixed_queries(size=60, split=split, seed=5) for split in ("train", "test"))
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    facts = [
        {row["prompt"][0]["content"][3:]: row["answer"] for row in of if row["family"] == "fact"}
        for of in (train, test)
    ]
    shared = facts[0].keys() & facts[1].keys()
    assert len(shared) > 3
    assert all(facts[0][one] == facts[1][one] for one in shared)


def test_the_comparator_differs_in_sampling_and_reward_alone():
    ours, theirs = (stage.model_dump(mode="json") for stage in (TRAINED, ANSWERS_ONLY))
    assert {key for key in ours if ours[key] != theirs[key]} == {"prompt_sampler", "rewards"}
    assert ANSWERS_ONLY.prompt_sampler.use == "uniform"
    assert list(STAGES["report"].models) == list(STAGES["cost"].models) == ["start", "trained", "answers_only"]
    assert STAGES["report"].tasks == STAGES["cost"].tasks


def test_the_cost_is_the_price_of_the_mode_that_begins(policy, rows):
    """Three free instant completions and two forced ones of each mode: 5·1 + 2·2 + 2·5 = 19."""
    (cost,) = STAGES["cost"].rewards
    assert STAGES["cost"].metrics[0].use == "mean_score"
    samples = collect(policy, TRAINED, rows["fact"], answer(rows["fact"], lambda *_: True))
    assert sum(bind(cost).ask(0, {"samples": samples})) == 19.0
    assert bind(cost).ask(0, {"samples": [made(0, "x", 0.0), made(0, "<agentic>#x", 0.0)]}) == [0.0, 5.0]
