"""UI-TARS-2: length-adaptive GAE with another λ for the critic, a critic that is trained first, and a data flywheel.

Stages, their slots and functions are those of the recipe. Not shown: that this makes better agents, which is measured.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tasks.merge
import tasks.rl
from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import single_turn
from learning.data.rows import read_rows, write_rows
from learning.environments.protocol import Outcome
from learning.lookup import bind
from learning.models.policy import load_policy
from learning.problems import flywheel
from learning.samples.engine_protocol import Generation
from learning.toy_tasks.forms import Form, forms
from learning.toy_tasks.tic_tac_toe import find_best, get_board, list_moves, read_board, tic_tac_toe_positions
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tasks.context import Context

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ui-tars-2.yaml"
PROFILES = {name: load_recipe(RECIPE, profile=name).stages for name in (None, "tiny", "full")}
STAGES = PROFILES[None]
ROUNDS = [f"{specialist}-{number}" for specialist in ("gui", "game") for number in (1, 2)]


def advantages(stage, lengths):
    """Advantages and targets of the critic of paths that earn 1 at their end, where every value is ½."""
    made = single_turn([[1]], [[Generation([7] * n, [-1.0] * n, "stop") for n in lengths]])
    made = made.with_paths(reward=torch.ones(len(lengths), dtype=torch.float64))
    made = made.with_tokens(value=torch.full((sum(lengths),), 0.5, dtype=torch.float64))
    made = made.with_paths(value_end=torch.zeros(len(lengths), dtype=torch.float64))
    made = with_advantages(bind_algorithm(stage, {}), with_dropped(made, False), 0, states={}, rows=[])
    return [made.sampled(name).split(lengths) for name in ("advantage", "return")]


@pytest.mark.parametrize("name", ROUNDS)
def test_the_lambda_of_the_policy_grows_with_the_length_and_that_of_the_critic_is_one(name):
    for part in ("values", "policy"):
        (short, middle, long), targets = advantages(STAGES[f"{name}-{part}"], [19, 100, 1000])
        assert middle[-3:].tolist() == pytest.approx([0.32, 0.4, 0.5], abs=1e-12)
        assert long[-3:].tolist() == pytest.approx([0.98**2 / 2, 0.98 / 2, 0.5], abs=1e-12)
        assert short.tolist() == [0.0] * 18 + [0.5]
        assert all(target.tolist() == pytest.approx([1.0] * len(target), abs=1e-9) for target in targets)


def test_plain_ppo_has_one_lambda_for_both():
    for stage in (STAGES["gui_ppo"], STAGES["game_ppo"]):
        _, (target, _) = advantages(stage, [3, 3])
        assert target.tolist() == pytest.approx([0.5 + 0.5 * 0.95**2, 0.5 + 0.5 * 0.95, 1.0], abs=1e-12)


def test_a_higher_upper_clip_lets_unlikely_actions_grow_more():
    log_ratio, advantage = torch.tensor([1.5, 0.5, 1.25]).log(), torch.tensor([1.0, -1.0, 1.0])
    for name in ROUNDS:
        loss = bind(STAGES[f"{name}-policy"].policy_loss)(log_ratio, advantage)
        assert loss.tolist() == pytest.approx([-1.28, 0.8, -1.25], abs=1e-6)
    for name in ("gui_ppo", "game_ppo"):
        loss = bind(STAGES[name].policy_loss)(log_ratio, advantage)
        assert loss.tolist() == pytest.approx([-1.2, 0.8, -1.2], abs=1e-6)


def brief(completions):
    """1 less a fifth for every character."""
    return [1 - len(text) / 5 for text in completions]


def test_value_pretraining_leaves_the_policy_bit_equal(tiny_policy_folder, tmp_path):
    stage = PROFILES["tiny"]["gui-1-values"]
    assert stage.critic.warmup_steps == stage.max_steps == 2
    # A policy that knows nothing earns nothing in a form, and a critic would have nothing to learn.
    rewards = [RewardUse.model_validate(f"{__name__}:brief")]
    small = {"generation_batch_size": 4, "num_generations": 2, "max_completion_length": 40, "rewards": rewards}
    inputs = {"model": tiny_policy_folder, "prompts": tmp_path / "prompts"}
    inputs["prompts"].mkdir()
    write_rows(inputs["prompts"], "prompts", forms(size=2, split="train", turns=[3], seed=5))
    (tmp_path / "run").mkdir()
    context = Context(inputs, tmp_path / "run", tmp_path / "checkpoints", seed=1)
    tasks.rl.run(stage.model_copy(update=small), context)
    before, after = (load_policy(folder).model for folder in (tiny_policy_folder, context.output("model")))
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    critic = load_file(context.output("value_model") / "model.safetensors")
    body = before.state_dict()
    shared = [name for name in critic if name in body and critic[name].shape == body[name].shape]
    assert shared
    assert any(not torch.equal(critic[name], body[name]) for name in shared)


@pytest.mark.parametrize("name", ROUNDS)
def test_the_policy_starts_with_the_values_and_the_policy_that_they_are_of(name):
    values, policy = STAGES[f"{name}-values"], STAGES[f"{name}-policy"]
    assert values.model == policy.model == "tuned"
    assert (policy.critic.model, policy.critic.warmup_steps) == ("values.value_model", 0)
    assert values.critic.publish
    assert (values.critic.model, policy.rollout.use) == (None, "streamed")


def test_both_methods_sample_as_many_episodes():
    for stages in PROFILES.values():
        for world in ("gui", "game"):
            parts = [stages[f"{world}-2-values"], stages[f"{world}-2-policy"]]
            assert sum(part.max_steps for part in parts) == stages[f"{world}_ppo"].max_steps
            sizes = {(one.generation_batch_size, one.num_generations) for one in (*parts, stages[f"{world}_ppo"])}
            assert len(sizes) == 1


class Players:
    """An engine that plays perfectly, but in `poor` problems as badly as it can."""

    def __init__(self, tokenizer, rows, poor):
        self.tokenizer, self.poor = tokenizer, poor
        self.rows = {row["prompt"][0]["content"]: row for row in rows}

    def generate(self, requests, sampling):
        assert (sampling.temperature, sampling.max_new_tokens) == (1.0, 8)
        return [[self.say(request)] for request in requests]

    def say(self, request):
        said = re.findall(r"<(user|assistant)>(.*?)<eos>", self.tokenizer.decode(request.prompt_ids), re.DOTALL)
        row = self.rows[said[0][1]]
        poor = row["id"] in self.poor
        if row["family"] == "tic_tac_toe":
            board = read_board(said[-1][1])
            text = "0" if poor else str(find_best(board)[0] + 1)
        else:
            form = Form(row)
            for role, action in said:
                if role == "assistant":
                    form.act(action)
            text = form.button if poor else form.expert()
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return Generation(ids, [-0.5] * len(ids), "stop")


@pytest.mark.parametrize("name", ROUNDS)
def test_traces_are_graded_and_routed_to_the_next_training(name, tiny_policy_folder, tmp_path, monkeypatch):
    rows = (
        forms(size=4, split="train", turns=[3], seed=5)
        if name.startswith("gui")
        else tic_tac_toe_positions(size=4, split="train", moves=[5], seed=5)
    )
    poor = {rows[1]["id"], rows[2]["id"]}
    monkeypatch.setattr(flywheel, "Engine", lambda policy: Players(policy.tokenizer, rows, poor))
    inputs = {"model": tiny_policy_folder, "prompts": tmp_path / "prompts"}
    inputs["prompts"].mkdir()
    write_rows(inputs["prompts"], "prompts", rows)
    context = Context(inputs, tmp_path, tmp_path / "checkpoints", seed=1)
    routed = STAGES[f"{name}-routed"]
    measured = bind(routed.function)(context)
    assert measured == {"traces": 8, "solved": 0.5}
    passed, failed = (read_rows(context.output(part), "chat") for part in ("passed", "failed"))
    assert {row["id"].split(".")[0] for row in failed} == poor
    assert {row["id"].split(".")[0] for row in passed} == {row["id"] for row in rows} - poor
    assert {json.loads(row["metadata"])["reward"] for row in passed} == {1.0}
    assert max(json.loads(row["metadata"])["reward"] for row in failed) < 1
    for row in passed:
        roles = [message["role"] for message in row["completion"]]
        assert roles == ["assistant", "user"] * (len(roles) // 2) + ["assistant"]
    assert dict(routed.produces) == {"passed": "chat", "failed": "chat"}
    continued, tuned = STAGES[f"{name}-continued"], STAGES[f"{name}-tuned"]
    assert (continued.data, tuned.data, tuned.model) == ("routed.failed", "routed.passed", "continued")
    assert (continued.train_on, tuned.train_on) == ("all", "all")
    assert continued.learning_rate == tuned.learning_rate / 10
    assert {continued.model, routed.inputs["model"]} == {"previous.policy"}


class Halves:
    """An episode whose turns earn a half each."""

    def step(self, action):
        return Outcome(reward=0.5)


def test_an_episode_is_graded_by_all_that_it_earned():
    traces = [flywheel.Trace({"id": str(turns)}, Halves(), turns) for turns in (1, 2, 3)]
    for trace in traces:
        for _ in range(trace.number):
            flywheel.play_turn(trace, "a")
    passed, failed = flywheel.route(traces, at_least=1.0)
    assert ([one.number for one in passed], [one.number for one in failed]) == ([2, 3], [1])


def test_both_specialists_have_the_same_rounds_in_worlds_of_their_own():
    for number in (1, 2):
        for part in ("continued", "tuned", "values", "policy"):
            gui, game = (STAGES[f"{world}-{number}-{part}"].model_dump() for world in ("gui", "game"))
            assert {key for key in gui if gui[key] != game[key]} == (
                {"prompts", "env"} if part in ("values", "policy") else set()
            )
    held_out = {get_board(row) for row in bind(STAGES["game_report"].tasks[0])()}
    assert held_out.isdisjoint(get_board(row) for row in tic_tac_toe_positions(split="train", size=96, seed=2))
    assert all(list_moves(board) for board in held_out)


def test_the_merged_model_is_the_mean_of_both_specialists(tmp_path):
    stage, inputs = STAGES["merged"], {}
    assert [one.model for one in stage.models] == ["gui.policy", "game.policy"]
    vectors = torch.tensor([[1.0, -2.0, 0.5], [3.0, 4.0, 0.0]])
    for i, vector in enumerate(vectors):
        inputs[f"models.{i}.model"] = folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 0}))
        save_file({"norm.weight": vector}, folder / "model.safetensors")
    (tmp_path / "out").mkdir()
    tasks.merge.run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    merged = load_file(tmp_path / "out" / "outputs" / "model" / "model.safetensors")["norm.weight"]
    torch.testing.assert_close(merged, vectors.mean(0), atol=1e-7, rtol=0)
