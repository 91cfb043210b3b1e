"""IGPO: a turn is rewarded for the change of the policy's own probability of the right answer.

Episodes are dictated; the search, the gains, the rewards and the advantages are those of the recipe. Not shown: that an
agent learns more from it, which is measured.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import encode_prompt, encode_text
from learning.environments.making import wrap_in_environment
from learning.lookup import bind, load_optional
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of
from schemas.recipe.load import load_recipe
from tests.papers.dictated import Dictated

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "igpo.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, GRPO = STAGES["trained"], STAGES["grpo"]
WRONG = "xyz"


@pytest.fixture(scope="module")
def row():
    """A question of one look-up."""
    return next(row for row in bind(STAGES["questions"].problems[0])() if json.loads(row["metadata"])["hops"] == 1)


@pytest.fixture
def scripts(row):
    """The right search, then another one, then a wrong answer; and two other searches before a wrong answer."""
    right = json.loads(row["metadata"])["script"][0]
    return [[right, "search: zzz", WRONG], ["search: zzz", "search: qqq", WRONG]]


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def play(policy, stage, row, scripts):
    """Samples of a question, one per script, scored by the recipe's reward."""
    episodes = wrap_in_environment(Dictated(policy.tokenizer, scripts), stage.env, policy.tokenizer, {}, 4000)
    samples = Sampler(episodes, policy, Sampling(1.0, 2000), 0, 0).sample([SampleRequest(row, len(scripts))])
    (reward,) = (bind(use) for use in stage.rewards)
    supplies = {"rows": [row] * len(samples), "completions": [one.text for one in samples], "samples": samples}
    for sample, value in zip(samples, scores_of(reward, 0, supplies, {}), strict=True):
        sample.scores, sample.reward = {reward.name: value}, value
    return samples


def list_contexts(samples):
    """Return the contexts of each sample: the prompt, then what stands before every further turn."""
    contexts = []
    for sample in samples:
        places = [sum(turn.sampled + turn.observed for turn in sample.turns[:n]) for n in range(len(sample.turns))]
        contexts.append([[*sample.prompt_ids, *sample.completion_ids[:place]] for place in places])
    return contexts


def teach_to_read(policy, samples, answer):
    """Train the policy to know the answer in contexts that show it, and to say something else in the others."""
    torch.manual_seed(0)
    ids, other = encode_text(policy.tokenizer, answer), encode_text(policy.tokenizer, WRONG)
    shown = samples[0].completion_ids[samples[0].turns[0].sampled :][: samples[0].turns[0].observed]
    pairs = []
    for context in [one for of_sample in list_contexts(samples) for one in of_sample]:
        knows = any(context[at : at + len(shown)] == shown for at in range(len(context)))
        pairs.append((context, ids if knows else other))
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = torch.zeros(())
        for context, target in pairs:
            whole = torch.tensor([[*context, *target]])
            lp = policy.model(whole).logits[0].log_softmax(-1)
            loss = loss - sum(lp[len(context) + k - 1, token] for k, token in enumerate(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def find_advantages(stage, policy, samples):
    """Return the advantage of every sampled token, and the batch with its gains, as an iteration computes them."""
    name = next(name for name, one in STAGES.items() if one is stage)
    algorithm = bind_algorithm(stage, {port.path: Path("p") for port in LOADED.ports(name)})
    batch = forest(samples)
    add_gains = load_optional(stage, "answer_gains", algorithm.list_needed_names())
    if add_gains is not None:
        batch = add_gains(batch, samples, Trained(policy.model, ALONE), stage, policy.tokenizer)
    rows = [sample.row for sample in samples]
    return with_advantages(algorithm, batch, 0, states={}, rows=rows).sampled("advantage"), batch


def per_turn(values_T, batch, path):
    """Return the one value of each turn's tokens of a path."""
    own_T = batch.path_T == path
    turns_T = batch.sampled("turn")[own_T]
    found = [values_T[own_T][turns_T == turn].unique() for turn in turns_T.unique()]
    assert all(len(values) == 1 for values in found)
    return [float(values[0]) for values in found]


def chance(policy, context, answer):
    ids = encode_text(policy.tokenizer, answer)
    with torch.no_grad():
        lp = policy.model(torch.tensor([[*context, *ids]])).logits[0].double().log_softmax(-1)
    return float(sum(lp[len(context) + k - 1, token] for k, token in enumerate(ids)).div(len(ids)).exp())


def test_a_gain_is_the_change_of_the_probability_of_the_answer(policy, row, scripts):
    samples = play(policy, TRAINED, row, scripts)
    _, batch = find_advantages(TRAINED, policy, samples)
    for path, contexts in enumerate(list_contexts(samples)):
        p = [chance(policy, context, row["answer"]) for context in contexts]
        expected = [*(after - before for before, after in pairwise(p)), 0.0]
        assert per_turn(batch.sampled("gain"), batch, path) == pytest.approx(expected, abs=1e-6)
    assert encode_prompt(policy.tokenizer, row["prompt"]) == samples[0].prompt_ids
    assert not batch.sampled("gain").requires_grad


def test_all_answers_wrong_but_one_turn_found_the_document(policy, row, scripts):
    """GRPO learns nothing. Here the right search has the largest reward, and the turns after it do not receive it."""
    samples = play(policy, TRAINED, row, scripts)
    assert [sample.reward for sample in samples] == [0.0, 0.0]
    assert [len(sample.turns) for sample in samples] == [3, 3]
    teach_to_read(policy, samples, row["answer"])
    silent_T, _ = find_advantages(GRPO, policy, samples)
    assert silent_T.abs().max() == 0
    values_T, batch = find_advantages(TRAINED, policy, samples)
    rewards = [per_turn(batch.sampled("gain"), batch, path) for path in range(2)]
    assert rewards[0][0] > 0.5
    assert rewards[0][0] == max(value for of_path in rewards for value in of_path)
    flat = torch.tensor([value for of_path in rewards for value in of_path], dtype=torch.float64)
    normal = ((flat - flat.mean()) / (flat.std(correction=0) + 1e-6)).split(3)
    for path, of_path in enumerate(normal):
        sums = [float(of_path[turn:].sum()) for turn in range(3)]
        assert per_turn(values_T, batch, path) == pytest.approx(sums)
    found = per_turn(values_T, batch, 0)
    assert found[0] > 0
    assert max(found[1:]) < 0


def test_the_last_turn_earns_the_f1_of_its_answer(policy, row, scripts):
    right = [*scripts[0][:1], row["answer"]]
    samples = play(policy, TRAINED, row, [right, scripts[1]])
    assert [sample.reward for sample in samples] == [1.0, 0.0]
    values_T, batch = find_advantages(TRAINED, policy, samples)
    rewards = [per_turn(batch.sampled("gain"), batch, path) for path in range(2)]
    rewards[0][-1], rewards[1][-1] = 1.0, 0.0
    flat = torch.tensor([value for of_path in rewards for value in of_path], dtype=torch.float64)
    normal = (flat - flat.mean()) / (flat.std(correction=0) + 1e-6)
    assert per_turn(values_T, batch, 0) == pytest.approx([float(normal[:2].sum()), float(normal[1])])
    assert per_turn(values_T, batch, 1) == pytest.approx([float(normal[at:].sum()) for at in (2, 3, 4)])


def test_grpo_differs_in_the_advantage_and_costs_no_pass():
    trained, grpo = (stage.model_dump() for stage in (TRAINED, GRPO))
    assert trained.pop("advantage")[0]["use"] == "information_gain"
    assert [part["use"] for part in grpo.pop("advantage")] == ["center", "scale"]
    assert trained == grpo
    asked = [
        bind_algorithm(STAGES[name], {port.path: Path("p") for port in LOADED.ports(name)}).list_needed_names()
        for name in ("trained", "grpo")
    ]
    parts = [stage.optional_code(names) for stage, names in zip((TRAINED, GRPO), asked, strict=True)]
    assert set(parts[0]) - set(parts[1]) == {"answer_gains"}
    assert dict(STAGES["report"].models) == {"start": "cold_start", "trained": "trained", "grpo": "grpo"}


def test_questions_of_training_lessons_and_report_are_disjoint():
    asked, reported = bind(STAGES["questions"].problems[0])(), bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in reported}
    assert {json.loads(row["metadata"])["hops"] for row in asked} == {1, 2}
    assert 0 not in [use.model_dump()["of"]["world"] for use in STAGES["lessons"].problems]
    assert TRAINED.env.max_turns == 4
