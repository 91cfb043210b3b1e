"""The RL loop with networks beside the policy: they resume to the same bits, are published, and are taken up again."""

import pytest
import torch

from learning.auxiliary_networks.heads import load_network
from learning.models.policy import load_policy
from learning.rewards.models import process
from lineage.artifacts.contract import read_contract
from schemas.errors import StepError
from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage

HERE = __name__


def stage(**more):
    return make_rl_stage(**{"rewards": [f"{HERE}:early"], "max_steps": 4, "advantage": ["center"], **more})


def early(completions):
    """Right is what holds one of the first letters."""
    return [float(any(letter in text for letter in "abcdefgh")) for text in completions]


def share(place_T, length_T):
    """Share of the way to the end, or to where the completion was cut."""
    return place_T / length_T


def far(lp_T, progress_T):
    """A term of the loss that asks for an auxiliary by name."""
    return -lp_T * (progress_T - 0.5)


FIVE = {
    "num_mini_batches": 2,
    "auxiliary_models": {
        "progress": {"target": f"{HERE}:share", "heads": 2, "combine": "least", "learning_rate": 3e-3},
        "step": {"head": "token", "target": "outcome", "loss": "logistic", "link": "logistic", "warmup_steps": 1},
        "q": {
            "head": "action",
            "target": {"use": "temporal_difference", "gamma": 0.9},
            "loss": "huber",
            "target_network": {"sync_steps": 1, "mixup_alpha": 0.3},
        },
        "whole": {"head": "path", "target": "outcome", "token_mask": ["own"]},
        "credit": {
            "head": "likelihood",
            "target": "outcome",
            "loss": "logistic",
            "publish": True,
            "learning_rate": 1e-3,
        },
    },
    "reward_shaping": [{"use": "from_tokens", "of": "whole", "stat": "mean", "weight": 0.1}],
    "advantage": [
        {"use": "center", "stat": "loo"},
        {"use": "potential", "of": "progress"},
        {"use": "stepwise", "of": "step", "weight": 0.1},
        "reward_to_go",
        {"use": "stepwise", "of": "q_mean", "weight": {"linear": {"from": -0.1, "to": 0.0, "steps": 4}}},
    ],
    "advantage_streams": [
        {"of": "credit", "advantage": ["rivals", "reward_to_go"]},
        {"of": "q", "coef": 0.1, "advantage": ["center"]},
    ],
    "loss_terms": [{"use": f"{HERE}:far", "coef": 0.01}],
}
FIVE["auxiliary_models"]["judged"] = FIVE["auxiliary_models"].pop("step")
FIVE["advantage"][2]["of"] = "judged"


def test_trap_24_five_networks_with_a_slow_copy_resume_to_the_same_bits(same_when_interrupted):
    points = same_when_interrupted(run, stage(**FIVE), (1, 3))
    for name in FIVE["auxiliary_models"]:
        assert all(p[f"{name}/loss"] >= 0 for p in points[1:])
    assert ["grad_norm" in p for p in points] == [False, True, True, True]  # one of them warms up


def test_what_learns_from_outcomes_and_places_learns(at, training):
    context = at("longer")
    words = {"progress": {"target": f"{HERE}:share", "learning_rate": 1e-2}}
    pieces = {
        "advantage": [{"use": "potential", "of": "progress"}, "reward_to_go", "center"],
        "auxiliary_models": words,
    }
    run(stage(**pieces, max_steps=12, learning_rate=1e-6), context)
    loss = [p["progress/loss"] for p in training.curve(context)]
    assert loss[-1] < loss[0] / 3


def values_of(folder):
    network, _ = load_network(folder)
    return {name: p.clone() for name, p in network.named_parameters()}


def test_a_value_model_learnt_alone_is_taken_up_by_ppo(at, inputs, tmp_path, training):
    """VAPO's value pre-training: a stage that only warms up, then one that starts from its value model."""
    first = at("pretraining")
    critic = {"learning_rate": 1e-2, "warmup_steps": 6, "publish": True}
    gae = {"advantage": [{"use": "gae", "lam_value": 1.0}]}
    run(stage(**gae, critic=critic, max_steps=6), first)
    made = first.folder / "outputs" / "value_model"
    before, after = load_policy(inputs["model"]), load_policy(first.folder / "outputs" / "model")
    pairs = zip(before.model.parameters(), after.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    contract = read_contract(inputs["model"])
    assert contract is not None
    assert read_contract(made) == contract.model_copy(update={"stop_ids": None})  # a value model samples nothing
    explained = [p["explained_variance"] for p in training.curve(first)]
    inputs["critic.model"] = made
    second = at("after")
    run(stage(**gae, critic={"model": "x", "learning_rate": 1e-3}, max_steps=2), second)
    inputs.pop("critic.model")
    fresh = at("fresh")
    run(stage(**gae, critic={"learning_rate": 1e-3}, max_steps=2), fresh)
    taken, anew = (training.curve(c)[0] for c in (second, fresh))
    # The same samples: what was learnt before explains more of the returns than nothing does.
    assert taken["reward"] == anew["reward"]
    assert taken["value_loss"] < anew["value_loss"]
    assert anew["explained_variance"] == 0.0 < taken["explained_variance"]
    assert explained[0] == 0.0


@pytest.mark.slow
def test_a_process_reward_stage_is_read_by_the_next_one_and_scores_completions(at, inputs, training):
    """PRIME's loop, then its process reward model as a frozen auxiliary and as a reward."""
    first = at("prime")
    credit = {"head": "likelihood", "beta": 0.5, "target": "outcome", "loss": "logistic", "learning_rate": 1e-2}
    pieces = {"advantage_streams": [{"of": "credit", "advantage": ["rivals", "reward_to_go"]}]}
    run(stage(**pieces, auxiliary_models={"credit": {**credit, "publish": True}}, max_steps=8), first)
    made = first.folder / "outputs" / "process_reward_model"
    assert read_contract(made) == read_contract(inputs["model"])
    loss = [p["credit/loss"] for p in training.curve(first)]
    assert loss[0] == pytest.approx(0.6931, abs=1e-3)  # it starts as its own reference: ln 2
    assert min(loss[4:]) < 0.6
    rows = [{"prompt": [{"role": "user", "content": "ab"}]}] * 4
    right, wrong = ["a..", "zb.", "..c", "d"], ["z..", "zz.", "..x", "u"]
    scores = [process(rows, texts, model=made, stat="sum") for texts in (right, wrong)]
    assert sum(scores[0]) > sum(scores[1])
    inputs["auxiliary_models.credit.model"] = made
    inputs["rewards.1.model"] = made
    second = at("second")
    frozen = {"credit": {"head": "likelihood", "model": "x"}}
    rewards = [f"{HERE}:early", {"use": "models.process", "model": "x", "stat": "mean", "weight": 0.1}]
    run(stage(**pieces, auxiliary_models=frozen, rewards=rewards, max_steps=2), second)
    point = training.curve(second)[0]
    assert "credit/loss" not in point
    assert "reward/models.process" in point


def test_a_model_of_another_kind_is_refused(at, inputs):
    inputs["auxiliary_models.credit.model"] = inputs["prompts"]
    with pytest.raises(StepError, match="no model here"):
        run(stage(auxiliary_models={"credit": {"head": "token", "model": "x"}}), at("wrong"))
