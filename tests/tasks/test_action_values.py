"""Stages of kind action_values: what is learned, how a killed step goes on, rewards of functions, what is refused."""

import json

import pytest
import torch
from pydantic import ValidationError

from learning.auxiliary_networks.action_values import load_action_values
from learning.data.rows import write_rows
from learning.models.policy import load_policy
from learning.rewards.models import action_values, load_cached_action_values
from schemas.errors import StepError
from schemas.stages.action_values import ActionValues
from tasks.action_values import run
from tasks.context import Context

SETTINGS = {
    "kind": "action_values",
    "model": "m",
    "data": "d",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 8,
    "max_steps": 40,
    "save_steps": 3,
    "target_network": {"mixup_alpha": 0.2},
}


def episode(number, first, second, rewards):
    """Two turns: the first is good if it is `a`, the second if it is the number's parity."""
    prompt = [{"role": "user", "content": f"p{number}"}]
    prompt += [{"role": "assistant", "content": first}, {"role": "user", "content": "?"}]
    rest = {"answer": "a", "family": "f", "metadata": json.dumps({"rewards": rewards})}
    return {
        "id": f"{number}{first}{second}",
        "prompt": prompt,
        "completion": [{"role": "assistant", "content": second}],
        **rest,
    }


def make_rows():
    return [
        episode(number, first, second, [0.0, float(first == "a" and second == "a")])
        for number in range(6)
        for first in "ab"
        for second in "ab"
    ]


@pytest.fixture
def train(tiny_policy_folder, tmp_path):
    data = tmp_path / "rows"
    data.mkdir()

    def trained(name, rows=None, checkpoints=None, **settings):
        write_rows(data, "chat", rows or make_rows())
        folder = tmp_path / name
        folder.mkdir()
        inputs = {"model": tiny_policy_folder, "data": data, "reference": tiny_policy_folder}
        context = Context(inputs, folder, tmp_path / (checkpoints or f"{name}-c"), seed=0)
        return run(ActionValues.model_validate({**SETTINGS, **settings}), context), folder / "outputs/values"

    return trained


def compare_turns(folder):
    """Q of a minus Q of b, at the first turn and at the second after each first one."""
    network, policy = load_action_values(folder)
    from learning.data.chat import encode_prompt

    tokens = policy.tokenizer.convert_tokens_to_ids(["a", "b"])
    start = [{"role": "user", "content": "p1"}]
    shown = [start, *([*start, {"role": "assistant", "content": x}, {"role": "user", "content": "?"}] for x in "ab")]
    q_XV = network.value_contexts([encode_prompt(policy.tokenizer, one) for one in shown]).q_XHV.amin(1)
    return (q_XV[:, tokens[0]] - q_XV[:, tokens[1]]).tolist()


def test_the_first_turn_is_credited_for_what_the_last_one_earns(train):
    result, folder = train(
        "one", loss=[{"use": "expectile", "tau": 0.9}, {"use": "bellman", "gamma": 1.0}], max_steps=150
    )
    first, after_a, after_b = compare_turns(folder)
    assert first > 0.3
    assert after_a > 0.6
    assert abs(after_b) < 0.2
    assert (result.metrics["episodes"], result.metrics["mean_return"]) == (24, 0.25)
    assert result.notices == []


def test_monte_carlo_values_are_those_of_who_played(train):
    """After `a` half of the episodes earn 1, after `b` none: Q(a) − Q(b) is 1/2, not 1."""
    loss = [{"use": "monte_carlo", "gamma": 1.0}]
    _, folder = train("mc", loss=loss, heads=1, target_network=None, max_steps=150)
    assert compare_turns(folder)[0] == pytest.approx(0.5, abs=0.15)


def test_a_killed_step_continues_to_the_same_bits(train, monkeypatch):
    from learning.training.loop import TrainingLoop

    _, whole = train("whole", max_steps=8)
    train_step = TrainingLoop.train_step

    def killed(loop, step):
        if step == 5:
            raise KeyboardInterrupt
        train_step(loop, step)

    monkeypatch.setattr(TrainingLoop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train("broken", checkpoints="shared", max_steps=8)
    monkeypatch.setattr(TrainingLoop, "train_step", train_step)
    _, second = train("second", checkpoints="shared", max_steps=8)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert all((whole / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_micro_batches_change_nothing(train):
    _, whole = train("whole", max_steps=3)
    _, split = train("split", max_steps=3, max_tokens_per_micro_batch=20)
    one, other = (load_action_values(folder)[0].state_dict() for folder in (whole, split))
    assert all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)


def test_the_output_is_the_slow_copy(train, tiny_policy_folder):
    _, folder = train("slow", max_steps=1)
    slow, _ = load_action_values(folder)
    start = load_policy(tiny_policy_folder).model.base_model.state_dict()
    assert all(torch.equal(slow.body.state_dict()[name], tensor) for name, tensor in start.items())
    _, fast = train("fast", max_steps=1, target_network=None)
    moved = load_action_values(fast)[0].body.state_dict()
    assert any(not torch.equal(moved[name], tensor) for name, tensor in start.items())


def test_rewards_of_functions_replace_those_of_the_metadata(train):
    rows = [row | {"metadata": "{}"} for row in make_rows()]
    result, folder = train("scored", rows, rewards=["answers.exact"])
    assert result.metrics["mean_return"] == 0.5
    load_cached_action_values.cache_clear()
    good, bad, long = action_values(rows[:1] * 3, ["a", "b", "a" * 200], model=str(folder), stat="mean")
    assert long is None
    assert good != bad
    advantage = action_values(rows[:1], ["a"], model=str(folder), stat="last", of="advantage")
    assert advantage != action_values(rows[:1], ["a"], model=str(folder))
    with pytest.raises(StepError, match="have no `rewards`"):
        train("missing", rows)


def test_the_greedy_token_of_a_reference_is_asked_for(train):
    loss = [{"use": "reference_bellman", "gamma": 1.0}]
    _, folder = train("reference", loss=loss, heads=1, start="logits", reference="r", max_steps=2)
    _, own = train("own", loss=loss, heads=1, start="logits", max_steps=2)
    assert (folder / "model.safetensors").read_bytes() == (own / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"start": "logits"}, "gives all heads the same values"),
        ({"logits_scale": 0.5}, "is for `start: logits`"),
        ({"reference": "r"}, "no loss asks for its greedy token"),
    ],
)
def test_keys_without_effect_are_refused(settings, text):
    with pytest.raises(ValidationError, match=text):
        ActionValues.model_validate({**SETTINGS, **settings})


def test_a_limit_that_no_episode_fits_into_is_an_error(train):
    with pytest.raises(StepError, match="none of 24 episodes fits into 4 tokens"):
        train("short", max_length=4)
