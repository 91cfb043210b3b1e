"""Evaluation on held-out problems during rl: it changes no draw, chooses the weights and ends training."""

import pytest
from pydantic import ValidationError

from tasks.rl import run
from tests.tasks.rl_stages import make_rl_stage, write_prompts

HERE = __name__
WORDS = {"rewards": [f"{HERE}:near_four"], "eval_prompts": "p", "eval_steps": 1}


def near_four(rows, completions):
    """1 for four characters, less the further away."""
    return [1 - abs(len(text) - 4) / 8 for text in completions]


def many_letters(rows, completions):
    """Number of different letters."""
    return [len(set(text)) for text in completions]


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = write_prompts(tmp_path / "prompts")
    return {"model": tiny_policy_folder, "prompts": folder, "eval_prompts": folder}


def rewards_of(training, context):
    return [point["eval_reward"] for point in training.curve(context) if "eval_reward" in point]


def model_of(training, context):
    return {name: data for name, data in training.files(context).items() if name.startswith("model/")}


def test_evaluations_change_no_draw_and_no_weight(at, training):
    plain, greedy, sampled = at("plain"), at("greedy"), at("sampled")
    run(make_rl_stage(rewards=WORDS["rewards"]), plain)
    run(make_rl_stage(**WORDS, eval_temperature=0), greedy)
    run(make_rl_stage(**WORDS), sampled)
    assert training.files(plain) == training.files(greedy) == training.files(sampled)
    assert rewards_of(training, greedy) != rewards_of(training, sampled)


def test_the_output_has_the_weights_of_the_highest_held_out_reward(at, training):
    best, short = at("best"), at("short")
    settings = {**WORDS, "learning_rate": 0.1, "save_steps": 4}
    result = run(make_rl_stage(**settings, load_best_model_at_end=True), best)
    rewards = rewards_of(training, best)
    assert len(rewards) == 6
    assert 1 < result.metrics["published_step"] < 6
    assert rewards.index(max(rewards)) + 1 == result.metrics["published_step"]
    assert result.metrics["eval_reward"] == max(rewards)
    # The learning rate is constant: shorter training ends with the same weights.
    run(make_rl_stage(**settings, max_steps=result.metrics["published_step"]), short)
    assert model_of(training, best) == model_of(training, short)


def test_the_best_weights_may_be_those_of_one_reward_or_of_the_shortest_completions(at, training):
    settings = {**WORDS, "rewards": [f"{HERE}:near_four", {"use": f"{HERE}:many_letters", "weight": 0.1}]}
    settings |= {"learning_rate": 0.1, "load_best_model_at_end": True}
    for metric, choose in ((f"eval_reward/{HERE}:many_letters", max), ("eval_completion_length", min)):
        context = at(metric.replace("/", "-").replace(":", "-"))
        greater = {} if choose is max else {"greater_is_better": False}
        result = run(make_rl_stage(**settings, metric_for_best_model=metric, **greater), context)
        points = [point for point in training.curve(context) if "eval_reward" in point]
        values = [point[metric] for point in points]
        assert len(set(values)) > 1
        best = points[values.index(choose(values))]
        assert result.metrics["published_step"] == best["step"]
        assert result.metrics["eval_reward"] == best["eval_reward"]


def test_training_ends_after_evaluations_without_a_higher_reward(at, training):
    patience = 2
    whole, stopped = at("whole"), at("stopped")
    run(make_rl_stage(**WORDS), whole)
    result = run(make_rl_stage(**WORDS, early_stopping_patience=patience), stopped)
    rewards = rewards_of(training, whole)
    count = next(n for n in range(1, 7) if n - 1 - rewards.index(max(rewards[:n])) >= patience)
    assert rewards_of(training, stopped) == rewards[:count]
    assert result.metrics["steps"] == count < 6
    assert f"eval_reward was not above {max(rewards[:count]):.4g}" in result.details["stopped"]


def test_an_interrupted_stage_publishes_the_same_best_weights(same_when_interrupted):
    settings = {**WORDS, "learning_rate": 0.1, "use_peft": True, "lora_r": 2, "save_steps": 4}
    same_when_interrupted(run, make_rl_stage(**settings, load_best_model_at_end=True), (2, 3, 5))


def test_the_best_weights_are_kept_while_generation_overlaps_training(at, training):
    context = at("stream")
    settings = {**WORDS, "rollout": "one_step_off", "eval_steps": 2, "load_best_model_at_end": True}
    result = run(make_rl_stage(**settings), context)
    assert result.metrics["eval_reward"] == max(rewards_of(training, context))


@pytest.mark.parametrize(
    "option", [{"eval_temperature": 0}, {"early_stopping_patience": 2}, {"load_best_model_at_end": True}]
)
def test_options_that_have_nothing_to_evaluate_are_refused(option):
    (name,) = option
    with pytest.raises(ValidationError, match=f"{name}: no prompts are held out; give `eval_prompts`"):
        make_rl_stage(rewards=WORDS["rewards"], **option)
    with pytest.raises(ValidationError, match=f"{name}: nothing is evaluated; lower `eval_steps`"):
        make_rl_stage(**{**WORDS, "eval_steps": 7}, **option)
