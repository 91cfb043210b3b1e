"""Q and V of tokens: columns against a direct computation, the start from logits, the slow copy, and folders."""

import json

import pytest
import torch

from learning.auxiliary_networks.action_value_columns import find_greedy_tokens, make_columns
from learning.auxiliary_networks.action_values import (
    Learner,
    load_action_values,
    make_action_values,
    save_action_values,
)
from learning.auxiliary_networks.episode_rows import encode_episodes, list_rewards
from learning.auxiliary_networks.heads import load_token_judge
from learning.batch.batch_layout import forest
from learning.batch.micro_batches import split_micro_batches
from schemas.errors import StepError

EVERY = ("q_THV", "q_target_T", "q_next_max_T", "q_next_ref_T")


def episode(name, turns, rewards):
    """A row in which the assistant says `turns`, answered with x, y, …"""
    messages = [{"role": "user", "content": "p"}]
    for text, answer in zip(turns, "xyz", strict=False):
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": answer}]
    messages = messages[:-1]
    metadata = json.dumps({"rewards": rewards})
    return {"id": name, "prompt": messages[:-1], "completion": messages[-1:], "metadata": metadata}


ROWS = [episode("a", ["ab", "c"], [0.5, 1.0]), episode("b", ["d"], [-1.0])]


def encode(policy, rows=ROWS):
    return forest(encode_episodes(policy.tokenizer, rows, [list_rewards(row) for row in rows], 128).samples)


def make(policy, **options):
    policy.model.double()
    return make_action_values(policy, **{"heads": 2, "start": "random", "scale": 1.0, "seed": 0, **options}).double()


def test_turns_are_actions_and_rewards_arrive_at_their_ends(tiny_policy):
    batch, tokenizer = encode(tiny_policy), tiny_policy.tokenizer
    said = tokenizer.convert_ids_to_tokens(batch.packed.input_ids_M[batch.sampled_T].tolist())
    end = tokenizer.eos_token
    assert said == ["a", "b", end, "c", end, "d", end]
    columns = make_columns(Learner(make(tiny_policy), slow=True), batch, ())
    assert columns["reward_T"].tolist() == [0, 0, 0.5, 0, 1.0, 0, -1.0]
    assert columns["path_T"].tolist() == [0] * 5 + [1] * 2


def test_columns_are_those_of_a_plain_forward_pass(tiny_policy):
    network = make(tiny_policy)
    learner = Learner(network, slow=True)
    with torch.no_grad():
        for parameter in learner.copy.parameters():
            parameter.mul_(1.1)
    batch = encode(tiny_policy)
    columns = make_columns(learner, batch, EVERY, tiny_policy.model)
    at = 0
    for sample in encode_episodes(tiny_policy.tokenizer, ROWS, [[0, 0], [0]], 128).samples:
        ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
        places = [len(sample.prompt_ids) + i for i, own in enumerate(sample.own) if own]
        with torch.no_grad():
            hidden_TC, slow_TC = (
                of.body(ids).last_hidden_state[0, [p - 1 for p in places]] for of in (network, learner.copy)
            )
            out, slow = network.head(hidden_TC), learner.copy.head(slow_TC)
            greedy = tiny_policy.model(ids).logits[0, [p - 1 for p in places]].argmax(-1)
        size = network.vocabulary
        q_THV, least_TV = out[:, :-1].view(-1, 2, size), slow[:, :-1].view(-1, 2, size).amin(1)
        taken, count = ids[0, places], len(places)
        own = slice(at, at + count)
        row = torch.arange(count)
        q_TH = torch.stack([q_THV[:, h][row, taken] for h in (0, 1)], -1)
        close = {"atol": 1e-9, "rtol": 0}
        torch.testing.assert_close(columns["q_TH"][own].detach(), q_TH, **close)
        torch.testing.assert_close(columns["q_THV"][own].detach(), q_THV, **close)
        torch.testing.assert_close(columns["v_T"][own].detach(), out[:, -1], **close)
        torch.testing.assert_close(columns["q_target_T"][own], least_TV[row, taken], **close)
        after = torch.cat([torch.arange(1, count), torch.tensor([0])])
        ended = torch.arange(count) == count - 1
        for name, value in (
            ("v_next_T", out[:, -1]),
            ("q_next_max_T", least_TV.amax(-1)),
            ("q_next_ref_T", least_TV[row, greedy]),
        ):
            torch.testing.assert_close(columns[name][own], value[after].masked_fill(ended, 0.0), **close)
            assert not columns[name].requires_grad
        at += count


def test_micro_batches_have_the_same_values(tiny_policy):
    network, batch = make(tiny_policy), encode(tiny_policy)
    whole = network(batch).v_X
    parts = [network(micro).v_X for micro in split_micro_batches(batch, 1)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-9, rtol=0)


def test_from_logits_the_best_action_is_the_greedy_token_and_v_the_highest_q(tiny_policy):
    network, batch = make(tiny_policy, heads=1, start="logits", scale=0.5), encode(tiny_policy)
    values = network(batch)
    assert values.q_XHV[:, 0].argmax(-1).tolist() == find_greedy_tokens(tiny_policy.model, batch).tolist()
    torch.testing.assert_close(values.q_XHV[:, 0].amax(-1), values.v_X)
    assert len(set(values.q_XHV[:, 0].argmax(-1).tolist())) > 1
    ids = [5, 6, 7, 8]
    logits = tiny_policy.model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(
        network.value_contexts([ids]).q_XHV[0, 0], 0.5 * (logits - logits.max()), atol=1e-9, rtol=0
    )


def test_contexts_and_tokens_have_the_values_of_batches(tiny_policy):
    network, batch = make(tiny_policy), encode(tiny_policy, ROWS[1:])
    values = network(batch)
    (sample,) = encode_episodes(tiny_policy.tokenizer, ROWS[1:], [[0]], 128).samples
    contexts = [sample.prompt_ids, [*sample.prompt_ids, sample.completion_ids[0]]]
    torch.testing.assert_close(network.value_contexts(contexts).q_XHV, values.q_XHV.detach(), atol=1e-9, rtol=0)
    q_T = values.q_XHV.amin(1)[torch.arange(2), torch.tensor(sample.completion_ids)].detach()
    torch.testing.assert_close(network.value_tokens(batch), q_T)
    torch.testing.assert_close(network.value_tokens(batch, minus_state=True), q_T - values.v_X.detach())


def test_the_slow_copy_follows_by_a_share_and_has_no_gradient(tiny_policy):
    learner = Learner(make(tiny_policy), slow=True)
    before = learner.copy.head.weight.clone()
    with torch.no_grad():
        learner.network.head.weight.add_(1.0)
    learner.follow(0.25)
    torch.testing.assert_close(learner.copy.head.weight, before + 0.25)
    batch = encode(tiny_policy)
    make_columns(learner, batch, EVERY[:2])["q_TH"].sum().backward()
    assert all(parameter.grad is None for parameter in learner.copy.parameters())
    alone = Learner(make(tiny_policy), slow=False)
    assert alone.target is alone.network
    assert not make_columns(alone, batch, EVERY[:2])["q_target_T"].requires_grad


@pytest.mark.parametrize("options", [{}, {"heads": 1, "start": "logits", "scale": 0.5}])
def test_a_folder_has_the_same_values_and_equal_bytes(tiny_policy, tmp_path, options):
    network = make_action_values(tiny_policy, **{"heads": 2, "start": "random", "scale": 1.0, "seed": 3, **options})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_action_values(network, tiny_policy, tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    loaded, policy = load_action_values(tmp_path / "one")
    assert policy.max_length == tiny_policy.max_length
    batch = encode(tiny_policy)
    torch.testing.assert_close(loaded(batch).q_XHV, network(batch).q_XHV, atol=1e-6, rtol=0)
    with pytest.raises(StepError, match="its values are of `action_values`"):
        load_token_judge(tmp_path / "one")


def test_rewards_that_do_not_fit_are_named():
    assert list_rewards(episode("a", ["b", "c"], 2)) == [0.0, 2.0]
    for rewards, text in (
        ([1.0], "row r: 1 rewards for 2 turns"),
        (None, "row r: its metadata have no `rewards` that are numbers"),
        ([0.0, "x"], "no `rewards` that are numbers"),
        ([0.0, True], "no `rewards` that are numbers"),
        ([0.0, float("nan")], "no `rewards` that are numbers"),
    ):
        with pytest.raises(StepError, match=text):
            list_rewards(episode("r", ["b", "c"], rewards))


def test_long_episodes_are_left_out_and_silent_turns_are_refused(tiny_policy):
    made = encode_episodes(tiny_policy.tokenizer, [*ROWS, episode("l", ["a" * 200], [0])], [[0, 0], [0], [0]], 128)
    assert (len(made.samples), made.too_long) == (2, 1)
