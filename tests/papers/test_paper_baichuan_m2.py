"""Baichuan-M2: stages with rules, with rubrics of each case, and with a patient who tells what it is asked for.

Rewards, environment, advantages and weights are those of the recipe. Not shown: clinical validity, HealthBench.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView
from learning.lookup import bind
from learning.models.packed import choose_forward, packed_logprobs
from learning.models.policy import Policy
from learning.samples.sample import Sample
from learning.sampling.scoring import scores_of
from schemas.recipe.load import load_recipe
from tests.papers.dictated import play

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "baichuan-m2.yaml")
STAGES = LOADED.stages
RULES, RUBRIC, TRAINED, DIRECT = (STAGES[name] for name in ("rules", "rubric", "trained", "direct"))
STAGED = ("rules", "rubric", "trained", "direct")


@pytest.fixture(scope="module")
def patients():
    return bind(STAGES["complaints"].problems[0])()


def score(stage, row, *texts):
    (reward,) = (bind(use) for use in stage.rewards)
    return scores_of(reward, 0, {"rows": [row] * len(texts), "completions": list(texts)}, {})


def completion(length, reward, group=0):
    made = Sample({"id": "r"}, group, "policy", [5, 6, 7], list(range(10, 10 + length)), [-1.0] * length, "stop", "")
    made.versions, made.scores, made.reward = [0] * length, {"rubrics.weighted": reward}, reward
    return made


def bound(name):
    return bind_algorithm(STAGES[name], {port.path: Path("p") for port in LOADED.ports(name)})


@pytest.mark.parametrize("name", STAGED)
def test_advantages_are_centred_and_the_divisor_is_constant(name):
    """Rewards 1 and 0 give 0.5 and −0.5, and a token weighs the same in 10 tokens and in 60."""
    algorithm, stage = bound(name), STAGES[name]
    batch = with_advantages(algorithm, with_dropped(forest([completion(10, 1.0), completion(60, 0.0)]), False), 0)
    per_path = [batch.sampled("advantage")[batch.path_T == path].unique().tolist() for path in (0, 1)]
    assert per_path == [[0.5], [-0.5]]
    weights_T = with_weights(algorithm, batch, 0, stage.max_completion_length).sampled("w").unique()
    assert weights_T.tolist() == [pytest.approx(1 / (2 * stage.max_completion_length))]
    assert algorithm.loss_terms == ()
    assert stage.policy_loss.options["epsilon_high"] > stage.policy_loss.options["epsilon"]


@pytest.mark.parametrize(("ratio", "gradient"), [(1.25, -0.5), (1.3, 0.0)])
def test_the_upper_clip_is_the_wider_one(ratio, gradient):
    loss = bind(TRAINED.policy_loss)
    log_ratio_T = torch.tensor([ratio]).log().requires_grad_(True)
    supplies = {"log_ratio_T": log_ratio_T, "advantage_T": torch.tensor([0.5])}
    loss.ask(0, supplies).sum().backward()
    assert float(log_ratio_T.grad) == pytest.approx(gradient * ratio if gradient else 0.0)


def test_the_gradient_is_that_of_centred_rewards_over_a_constant(tiny_policy):
    policy = Policy(tiny_policy.model.double(), tiny_policy.tokenizer, 4000)
    choose_forward(policy.model)
    samples = [completion(4, 1.0), completion(7, 0.0)]
    algorithm = bound("trained")
    batch = with_dropped(forest(samples), False)
    with torch.no_grad():
        lp_M = packed_logprobs(policy.model, batch.packed)[0].double()
    batch = replace(batch, tokens={**batch.tokens, "lp_behav": lp_M})
    batch = with_weights(algorithm, with_advantages(algorithm, batch, 0), 0, TRAINED.max_completion_length)
    micro_loss(algorithm, policy.model, batch, step=0, temperature=1.0)[0].backward()
    made = [parameter.grad.clone() for parameter in policy.model.parameters()]
    policy.model.zero_grad()
    for sample, advantage in zip(samples, (0.5, -0.5), strict=True):
        ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
        lp = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[2:, 0]
        (-advantage * lp.sum() / (2 * TRAINED.max_completion_length)).backward()
    for got, parameter in zip(made, policy.model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, atol=1e-6, rtol=1e-6)


def test_a_report_is_scored_by_the_criteria_of_its_own_case(patients):
    """Weights 5, 3 and −4, of which the first and the last are met: max(0, 1/8) = 0.125."""
    criteria = [
        {"criterion": "a", "weight": 5, "evidence": ["one"]},
        {"criterion": "b", "weight": 3, "evidence": ["two"]},
        {"criterion": "c", "weight": -4, "evidence": ["six"]},
    ]
    row = patients[0] | {"metadata": json.dumps({"rubric": criteria})}
    for stage in (RUBRIC, TRAINED, STAGES["report"]):
        assert score(stage, row, "= one six", "= six", "= one two") == [0.125, 0.0, 1.0]
    rubrics = [json.loads(row["metadata"])["rubric"] for row in patients]
    assert rubrics[0] != rubrics[1]
    assert len({json.dumps(one) for one in rubrics}) > 40
    first = patients[0]
    mentioned = [entry["evidence"][0] for entry in rubrics[0][1:3]]
    full = f"= {first['answer']} {' '.join(mentioned)}"
    assert score(TRAINED, first, full, f"= {first['answer']}", "= agra bela") == [
        1.0,
        pytest.approx(5 / 9),
        pytest.approx(max(0, 5 * (first["answer"] in ("agra", "bela")) - 4) / 9),
    ]
    everything = " ".join(json.loads(first["metadata"])["facts"])
    asked = f"{' '.join(mentioned)}?"
    assert score(TRAINED, first, f"= {everything}", f"{asked}= none", asked) == [0.0, 0.0, 0.0]
    assert score(RULES, first, f"= {first['answer']}", "= nothing") == [1.0, 0.0]


def test_the_patient_tells_what_it_is_asked_for(tiny_policy, patients):
    row = patients[0]
    facts = json.loads(row["metadata"])["facts"]
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)
    samples, contexts = play(policy, TRAINED, row, [["chill?", "how long?", f"= {row['answer']}"]])
    (last,) = [seen[-1] for seen in contexts.values()]
    assert f"chill: {facts['chill']}" in last
    assert not any(f"{symptom}:" in last for symptom in facts if symptom != "chill")
    assert samples[0].reward == pytest.approx(5 / 9)
    assert TRAINED.env.max_turns == 6


def test_of_two_reports_with_full_marks_the_short_one_gets_more():
    (use,) = TRAINED.reward_shaping
    assert DIRECT.reward_shaping == [use]
    batch = forest([completion(5, 1.0), completion(20, 1.0), completion(5, 0.5), completion(20, 0.5)])
    shaped = bind(use).ask(0, ColumnView(batch), batch.paths["reward"])
    assert shaped[0] > shaped[1]
    assert shaped[2:].tolist() == [0.5, 0.5]
    assert float(shaped[1]) > 0.5


def test_each_stage_starts_from_the_one_before():
    assert [STAGES[name].model for name in STAGED] == ["cold_start", "rules", "rubric", "cold_start"]
    assert [STAGES[name].prompts for name in STAGED] == ["records", "records", "complaints", "complaints"]
    assert [STAGES[name].env is None for name in STAGED] == [True, True, False, False]
    assert TRAINED.model_dump(exclude={"model"}) == DIRECT.model_dump(exclude={"model"})
    assert RULES.model_dump(exclude={"model", "rewards"}) == RUBRIC.model_dump(exclude={"model", "rewards"})
    report = STAGES["report"]
    assert set(report.models) == {"start", "rules", "rubric", "trained", "direct"}
    assert report.env == TRAINED.env
    shown = [row for name in ("records", "complaints") for row in bind(STAGES[name].problems[0])()]
    assert not {row["id"] for row in shown} & {row["id"] for row in bind(report.tasks[0])()}
    lessons = [bind(use)() for use in STAGES["lessons"].problems]
    assert {len(row["prompt"]) for row in lessons[0]} == {1}
    assert max(len(row["prompt"]) for row in lessons[1]) == 11
    assert all(row["answer"].startswith("= ") and len(row["answer"].split()) == 6 for row in lessons[0])
    assert STAGES["lessons"].teacher.use == "answer"
