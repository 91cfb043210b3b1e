"""DAPO: a critic learns the chance of success from every step, and the actor steps' advantages under it, offline.

Solutions and continuations are dictated; labels, critic, rollout, advantage and loss are those of the recipe. Not
shown: that a model becomes better, which is measured.
"""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.auxiliary_networks.heads import save_network
from learning.auxiliary_networks.network import Valued, copy_body
from learning.auxiliary_networks.step_labels import compute_step_logits, read_solutions
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView, of_rewards
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.rl.auxiliary_models import AuxiliaryModels
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import score
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks.context import Context

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "dapo-direct-advantage.yaml")
STAGES = LOADED.stages
SAMPLED, CRITIC, TRAINED, OUTCOME = (STAGES[name] for name in ("sampled", "critic", "trained", "outcome"))
SOLUTION = "1 + 1 = 2, 2 + 1 = 3, 3 + 1 = 4 #### 4"
ROW = {
    "id": "q",
    "prompt": [{"role": "user", "content": "1+1+1+1="}],
    "answer": "4",
    "family": "sums",
    "metadata": "{}",
}


def write(folder, artifact_type, rows):
    """Write rows into a new folder, and return it."""
    folder.mkdir()
    write_rows(folder, artifact_type, rows)
    return folder


def dictate(prompt, number):
    """From the problem half of four succeed, after the first step three of four, after the second one of four."""
    steps = SOLUTION.split(", ")
    for count, right in ((2, 1), (1, 3), (0, 2)):
        begun = ", ".join(steps[:count]) + ", " if count else "="
        if prompt.endswith(begun):
            rest = ", ".join(steps[count:])
            return rest if number < right else rest.replace("#### 4", "#### 5")
    raise AssertionError(prompt)


@pytest.fixture
def labelled(answering, monkeypatch, tmp_path):
    """The outputs of the step `sampled` for one problem and one solution, and the engine that was asked."""
    sampler = answering(dictate, max_new_tokens=64)
    monkeypatch.setattr("learning.sampling.step_values.guest", lambda folder: sampler)
    inputs = {"model": tmp_path, "prompts": write(tmp_path / "prompts", "prompts", [ROW])}
    context = Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0)
    function = SAMPLED.function.model_copy(update={"solutions": 1})
    metrics = bind(function)(context)
    return context, metrics, sampler


def test_a_step_is_labelled_by_the_share_of_completions_that_succeed(labelled):
    context, metrics, sampler = labelled
    (row,) = read_rows(context.output("labels"), "step_labels")
    assert [step["content"] for step in row["steps"]] == SOLUTION.split(", ")
    assert row["labels"] == [0.75, 0.25, 1.0]
    assert json.loads(row["metadata"])["start"] == 0.5
    (solution,) = read_rows(context.output("solutions"), "chat")
    assert (solution["id"], solution["completion"][0]["content"]) == ("q", SOLUTION)
    assert metrics == {"solutions": 1, "left_out": 0, "steps": 3, "successes": 1.0}
    assert [request.n for request in sampler.engine.requests] == [1, 4, 4, 4]
    assert SAMPLED.function.options["completions"] == 4


def make_critic(policy, folder):
    """A critic with weights of its own, as the step `critic` writes it."""
    torch.manual_seed(5)
    network = Valued(copy_body(policy), "token", 1, 0)
    network.head.weight.data.normal_()
    save_network(network, policy, folder, link="logistic", separator=CRITIC.step_separator)
    return network


def read_critic_rows(policy, folder, tmp_path):
    return read_solutions(
        policy.tokenizer, folder, policy.max_length, CRITIC.step_separator, tmp_path / "x", CRITIC.prompt_label
    ).solutions


def record(policy, answering, tmp_path, texts, stage=TRAINED):
    """The samples that the rollout of the recipe takes from these solutions, scored by its rewards, as a batch."""
    rows = [ROW | {"completion": [{"role": "assistant", "content": text}]} for text in texts]
    folder = write(tmp_path / "solutions", "chat", rows)
    sampler = answering(dictate)
    rollout = bind(stage.rollout, "rollout", {"rollout.data": folder})
    supplies = {"requests": [SampleRequest(ROW, len(texts))], "sampler": sampler, "rng": np.random.default_rng(0)}
    samples = rollout.ask(0, supplies)
    samples.sort(key=lambda sample: texts.index(sample.text))
    score([bind(stage.rewards[0])], [1.0], samples, {"step": 0})
    return samples, forest(samples)


def test_the_actor_reads_what_the_critic_has_learned(labelled, tiny_policy, answering, tmp_path):
    context, _, _ = labelled
    network = make_critic(tiny_policy, tmp_path / "critic")
    (solution,) = read_critic_rows(tiny_policy, context.output("labels"), tmp_path)
    assert solution.labels == [0.5, 0.75, 0.25, 1.0]
    learned = compute_step_logits(network, [solution]).sigmoid().double()
    models = AuxiliaryModels(TRAINED, tiny_policy, {"auxiliary_models.chance.model": tmp_path / "critic"}, 0)
    _, batch = record(tiny_policy, answering, tmp_path, [SOLUTION])
    batch = models.add_values(batch)
    turn_T, value_T = batch.sampled("turn"), batch.sampled("aux:chance")
    firsts = [int((turn_T == turn).nonzero()[0]) for turn in range(3)]
    # Before each step the value is that after the step before it: of the prompt, and of two steps.
    torch.testing.assert_close(value_T[firsts], learned[:3].detach(), atol=1e-5, rtol=0)
    assert len(set(value_T[firsts].tolist())) == 3


def test_the_critic_does_not_change_while_the_actor_learns(tiny_policy, answering, tmp_path):
    make_critic(tiny_policy, tmp_path / "critic")
    models = AuxiliaryModels(TRAINED, tiny_policy, {"auxiliary_models.chance.model": tmp_path / "critic"}, 0)
    critic = models.networks["chance"].network
    before = copy.deepcopy(critic.state_dict())
    _, batch = record(tiny_policy, answering, tmp_path, [SOLUTION])
    batch = with_advantages(bind_all(), models.add_values(batch), 0, states={}, rows=[ROW])
    models.update(models.add_targets(batch, 0, {}, {}, [ROW]), 0)
    assert len(before) > 5
    assert all(torch.equal(value, critic.state_dict()[name]) for name, value in before.items())
    assert models.networks["chance"].optimizer is None
    block = TRAINED.auxiliary_models["chance"]
    assert (block.target, block.head, block.link, block.publish) == (None, "state", "logistic", False)
    assert TRAINED.critic is None


def bind_all(stage=TRAINED):
    name = "trained" if stage is TRAINED else "outcome"
    return bind_algorithm(stage, {port.path: Path("p") for port in LOADED.ports(name)})


def give_values(batch, values):
    """Put values of the critic before the steps of the only path."""
    turn_T = batch.sampled("turn")
    value_T = torch.full((len(turn_T),), -9.0, dtype=torch.float64)
    for turn, value in enumerate(values):
        value_T[(turn_T == turn).nonzero()[0]] = value
    return batch.with_tokens(**{"aux:chance": value_T})


def advantages(batch):
    (use,) = TRAINED.advantage
    return bind(use).ask(0, ColumnView(batch), of_rewards(batch), batch).values_X


def losses(batch, advantage_T, lp_T, stage=TRAINED):
    """The loss of each token, where the reference gives every token a log-probability of −1."""
    columns = {
        "lp_T": lp_T,
        "lp_ref_T": torch.full_like(lp_T, -1.0),
        "advantage_T": advantage_T,
        "path_T": batch.path_T,
        "turn_T": batch.sampled("turn"),
    }
    return bind(stage.policy_loss).ask(0, columns)


def test_one_response_has_steps_that_go_up_and_steps_that_go_down(tiny_policy, answering, tmp_path):
    samples, batch = record(tiny_policy, answering, tmp_path, [SOLUTION])
    assert samples[0].reward == 1.0
    batch = give_values(batch, [0.5, 0.8, 0.3])
    advantage_T, turn_T = advantages(batch), batch.sampled("turn")
    per_turn = [advantage_T[turn_T == turn].unique() for turn in range(3)]
    assert [len(values) for values in per_turn] == [1, 1, 1]
    assert [float(values[0]) for values in per_turn] == pytest.approx([0.3, -0.5, 0.7])
    lp_T = torch.full((len(turn_T),), -1.0, dtype=torch.float64, requires_grad=True)
    loss_T = losses(batch, advantage_T, lp_T)
    assert [float(loss_T[turn_T == turn][0].detach()) for turn in range(3)] == pytest.approx([0.045, 0.125, 0.245])
    weight_T = bind(TRAINED.loss_aggregation).ask(0, {"max_completion_length": 56}, with_dropped(batch, False))
    assert float((weight_T * loss_T).sum().detach()) == pytest.approx((0.045 + 0.125 + 0.245) / 3)
    (grad_T,) = torch.autograd.grad((weight_T * loss_T).sum(), lp_T)
    beta = TRAINED.policy_loss.options["beta"]
    # Descent raises the first step and lowers the second; d/dlp = β·(β·S − A) / steps, and S = 0 here.
    for turn, advantage in enumerate((0.3, -0.5, 0.7)):
        own = grad_T[turn_T == turn]
        assert own.tolist() == pytest.approx([-beta * advantage / 3] * len(own))


def test_the_log_ratio_is_that_of_the_whole_step(tiny_policy, answering, tmp_path):
    _, batch = record(tiny_policy, answering, tmp_path, [SOLUTION])
    turn_T = batch.sampled("turn")
    lp_T = torch.full((len(turn_T),), -1.0, dtype=torch.float64)
    lp_T[(turn_T == 1).nonzero()[:2, 0]] = torch.tensor([-0.4, -1.2], dtype=torch.float64)
    loss_T = losses(batch, torch.full_like(lp_T, 0.1), lp_T)
    beta = TRAINED.policy_loss.options["beta"]
    assert beta == 0.5
    assert loss_T[turn_T == 1].unique().tolist() == pytest.approx([(beta * 0.4 - 0.1) ** 2 / 2])
    assert loss_T[turn_T != 1].unique().tolist() == pytest.approx([0.005])


def test_an_outcome_has_one_sign_for_all_steps(tiny_policy, answering, tmp_path):
    wrong = SOLUTION.replace("#### 4", "#### 5")
    samples, batch = record(tiny_policy, answering, tmp_path, [SOLUTION, wrong], OUTCOME)
    assert [sample.reward for sample in samples] == [1.0, 0.0]
    made_T = with_advantages(bind_all(OUTCOME), batch, 0, states={}, rows=[ROW] * 2).sampled("advantage")
    assert [made_T[batch.path_T == path].unique().tolist() for path in (0, 1)] == [[0.5], [-0.5]]
    assert batch.sampled("turn").unique().tolist() == [0]  # the whole solution is one step
    lp_T = torch.full((len(made_T),), -1.0, dtype=torch.float64)
    assert losses(batch, made_T, lp_T, OUTCOME).unique().tolist() == pytest.approx([0.125])


def test_nothing_is_sampled_and_a_problem_without_solutions_is_refused(tiny_policy, answering, tmp_path):
    samples, _ = record(tiny_policy, answering, tmp_path, [SOLUTION, "7, #### 4"])
    assert [sample.logprobs for sample in samples] == [None, None]
    folder = write(tmp_path / "one", "chat", [ROW | {"completion": [{"role": "assistant", "content": "x"}]}])
    rollout = bind(TRAINED.rollout, "rollout", {"rollout.data": folder})
    supplies = {"requests": [SampleRequest(ROW, 2)], "sampler": answering(dictate), "rng": None}
    with pytest.raises(StepError, match="problem q has 1 completions"):
        rollout.ask(0, supplies)


def test_the_critic_comes_first_and_the_trainings_differ_in_the_credit_alone():
    reads = {name: {port.path: port.steps for port in LOADED.ports(name)} for name in STAGES}
    assert reads["critic"]["data"] == reads["trained"]["rollout.data"] == reads["outcome"]["rollout.data"]
    assert list(reads["trained"]["auxiliary_models.chance.model"]) == ["critic"]
    trained, outcome = (stage.model_dump() for stage in (TRAINED, OUTCOME))
    assert [part["use"] for part in trained.pop("advantage")] == ["turn_differences"]
    assert [part["use"] for part in outcome.pop("advantage")] == ["center"]
    assert set(trained.pop("auxiliary_models")) - set(outcome.pop("auxiliary_models")) == {"chance"}
    assert trained.pop("rollout").pop("separator") == CRITIC.step_separator == SAMPLED.function.options["separator"]
    assert "separator" not in outcome.pop("rollout")
    assert trained == outcome
    assert TRAINED.loss_terms == []
    assert CRITIC.prompt_label == "start"
    assert CRITIC.model == TRAINED.model == "worked"
