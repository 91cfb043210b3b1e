"""Preference pairs whose completions are episodes of several turns: what is observed counts in no loss."""

import pytest
import torch

from learning.data.chat import encode_episode
from learning.data.rows import write_rows
from learning.models.policy import load_policy
from learning.preference.batches import encode_pair, read_pairs
from learning.preference.columns import make_pair_set
from learning.preference.loss import compute_logprobs, mismatch_pairs
from schemas.errors import StepError
from schemas.stages.preference import Preference
from schemas.stages.reward_model import RewardModel
from tasks import preference, reward_model

USER = {"role": "user", "content": "p"}


def episode(*texts):
    return [{"role": ("assistant", "user")[i % 2], "content": text} for i, text in enumerate(texts)]


def make_row(name, chosen, rejected, **more):
    row = {"id": name, "prompt": [USER], "answer": "", "family": "f", "metadata": None, "margin": 1.0}
    return row | {"chosen": chosen, "rejected": rejected} | more


ROW = make_row("0", episode("xy", "zzz", "a"), episode("y", "xx", "b", "z", "c"))


@pytest.fixture
def policy(tiny_policy_folder):
    return load_policy(tiny_policy_folder)


def test_the_assistants_turns_count_alone(policy):
    """The log-probability of a side is the sum over its sampled tokens in one plain forward over the conversation."""
    tokenizer = policy.tokenizer
    pair, _ = encode_pair(tokenizer, ROW, 64, episodes=True)
    found = compute_logprobs(policy.model, [pair])[0]
    for side, logprob in zip(("chosen", "rejected"), found, strict=True):
        ids, learned = render(tokenizer, ROW[side])
        with torch.no_grad():
            table = policy.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        direct = sum(float(table[place - 1, ids[place]]) for place in learned)
        assert float(logprob.detach()) == pytest.approx(direct, abs=1e-5)
        assert [len(pair.prompt) + at for at, one in enumerate(pair.list_learned(side)) if one] == learned
    columns = make_pair_set([pair], set(), 64).columns
    assert (columns["chosen_tokens"].item(), columns["rejected_tokens"].item()) == (2 + 1 + 2, 1 + 1 + 1 + 3)


def render(tokenizer, completion):
    """Return the ids of a conversation up to its last turn of the assistant, and the places of its turns."""
    messages, learned = [USER], []
    for message in completion:
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            after = tokenizer.apply_chat_template([*messages, message])["input_ids"]
            end = len(after) - 1 - after[::-1].index(tokenizer.eos_token_id)
            learned += range(len(before), end + 1)
        messages.append(message)
    return tokenizer.apply_chat_template(messages)["input_ids"][: learned[-1] + 1], learned


def test_observations_have_no_gradient_and_one_turn_is_as_before(policy):
    """What the partner says after the last turn is left out, so that these two sides are equal."""
    late = make_row("1", episode("xy", "zzz"), episode("xy", "xxx"))
    pair, _ = encode_pair(policy.tokenizer, late, 64, episodes=True)
    assert pair.chosen == pair.rejected
    assert not any(pair.chosen_observed)
    single = make_row("2", episode("xy"), episode("x"))
    one = encode_pair(policy.tokenizer, single, 64, episodes=True)
    assert one == encode_pair(policy.tokenizer, single, 64)
    assert one[0].chosen_observed == []
    assert one[0].list_learned("chosen") == [True] * 3


def test_a_cut_pair_keeps_its_marks_and_pairs_on_disk_too(policy, tmp_path, monkeypatch):
    whole, _ = encode_pair(policy.tokenizer, ROW, 64, episodes=True)
    room = len(whole.prompt) + 6
    pair, is_cut = encode_pair(policy.tokenizer, ROW, room, truncate=True, episodes=True)
    assert is_cut
    assert (pair.rejected, pair.rejected_observed) == (whole.rejected[:6], whole.rejected_observed[:6])
    write_rows(tmp_path, "preference_pairs", [ROW, make_row("1", episode("x"), episode("y"))])
    in_memory = read_pairs(policy.tokenizer, tmp_path, 64, tmp_path / "a", episodes=True).pairs
    monkeypatch.setattr("learning.preference.batches.fits_in_memory", lambda folder: False)
    on_disk = read_pairs(policy.tokenizer, tmp_path, 64, tmp_path / "b", episodes=True).pairs
    assert [on_disk[i] for i in range(2)] == list(in_memory)


def test_the_baseline_of_kto_takes_the_marks_with_the_completions(policy):
    other = make_row("1", episode("x", "y", "z"), episode("y"), prompt=[{"role": "user", "content": "q"}])
    pairs = [encode_pair(policy.tokenizer, row, 64, episodes=True)[0] for row in (ROW, other)]
    strange = mismatch_pairs(pairs, 64)
    assert (strange[0].prompt, strange[0].chosen) == (pairs[0].prompt, pairs[1].chosen)
    assert strange[0].chosen_observed == pairs[1].chosen_observed


SETTINGS = {
    "kind": "preference",
    "model": "m",
    "data": "d",
    "learning_rate": 3e-3,
    "max_length": 64,
    "logging_steps": 40,
}


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    data = tmp_path / "pairs"
    data.mkdir()
    turns = [("x", "y"), ("y", "x"), ("xx", "z"), ("z", "yy"), ("xy", "yx"), ("yz", "zy"), ("xz", "y"), ("zx", "x")]
    made = [
        make_row(str(i), episode(first, second, f"{first}a"), episode(first, second, f"{first}b"))
        | {"prompt": [{"role": "user", "content": f"p{i}"}]}
        for i, (first, second) in enumerate(turns)
    ]
    write_rows(data, "preference_pairs", made)
    return {"model": tiny_policy_folder, "data": data}


def test_whole_episodes_are_learned(at, training):
    """Only the last turns differ, so that the margin of DPO is that of these; it grows on prompts not trained on."""
    context = at("one")
    stage = Preference(**SETTINGS, max_steps=40, per_device_train_batch_size=6, validation_fraction=0.25, eval_steps=40)
    result = preference.run(stage, context)
    assert (result.metrics["pairs"], result.metrics["held_out"]) == (6, 2)
    assert result.metrics["accuracy"] == 1.0
    assert result.metrics["margin"] > 0.5


def test_a_reward_model_refuses_episodes(at):
    stage = RewardModel(kind="reward_model", model="m", data="d", max_steps=1)
    with pytest.raises(StepError, match="a completion must be one assistant message"):
        reward_model.run(stage, at("two"))


def test_a_template_that_rewrites_the_prompt_is_refused(policy):
    policy.tokenizer.chat_template = "{{ messages | length }}" + policy.tokenizer.chat_template
    with pytest.raises(StepError, match="writes this prompt in another way once the episode goes on"):
        encode_episode(policy.tokenizer, [USER], episode("x", "y", "z"))
    with pytest.raises(StepError, match="must begin with a message of the assistant"):
        encode_episode(policy.tokenizer, [USER], episode("x", "y", "z")[1:])
