"""Completions that stretch over iterations, that are more than needed, that begin with a good answer."""

import json

import numpy as np
import pytest
import torch

from learning.algorithm.loss import with_dropped
from learning.algorithm.token_masks.masks import fresh
from learning.batch.batch_layout import forest
from learning.collection.rollouts.rollouts import overprovisioned, resets, synchronous, windowed
from learning.data.chat import encode_completion, encode_prompt
from learning.data.rows import write_rows
from learning.generation.engines.torch import Engine
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler, score
from schemas.errors import StepError

ROWS = [
    {"id": str(i), "prompt": [{"role": "user", "content": text}], "answer": text, "family": "f", "metadata": "{}"}
    for i, text in enumerate(["ab", "c", "de?", "f!"])
]


def sampler_at(policy, step, tokens=24, eager=0.0):
    """`eager` is added to the logit of the end token, so that lengths differ."""

    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, policy.tokenizer.eos_token_id] += eager
        return logits_BV

    return Sampler(Engine(policy), policy, Sampling(3.0, tokens, entropy=True, processor=process), 5, step)


def plain(state):
    """What a checkpoint keeps of a state."""
    return json.loads(json.dumps(state))


def known(sample):
    return (sample.completion_ids, sample.finish, sample.text, sample.row["id"], sample.source, sample.given)


def by_problem(samples):
    made = {}
    for sample in samples:
        made.setdefault(sample.row["id"], []).append(sample)
    return made


def test_windows_give_the_completions_that_no_break_would_have_given(tiny_policy):
    requests = [SampleRequest(row, 3) for row in ROWS]
    want = by_problem(synchronous(requests, sampler_at(tiny_policy, 0, eager=2.5)))
    state, completions, first_at = {}, {}, {}
    for step in range(5):
        # Later iterations ask for nothing new.
        samples = windowed(
            requests if step == 0 else [], sampler_at(tiny_policy, step, eager=2.5), state, step, window=6
        )
        state = plain(state)
        for problem, group in by_problem(samples).items():
            assert problem not in completions
            assert len(group) == 3
            assert len({t.group for t in group}) == 1
            completions[problem], first_at[problem] = group, step
    assert completions.keys() == want.keys()
    assert state["pool"] == []
    for problem, group in completions.items():
        assert [known(t) for t in group] == [known(t) for t in want[problem]]
        longest = max(len(t.completion_ids) for t in group)
        assert first_at[problem] == (longest - 1) // 6
        for sample, other in zip(group, want[problem], strict=True):
            assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert sample.entropies == pytest.approx(other.entropies, abs=1e-5)
            assert sample.versions == [i // 6 for i in range(len(sample.completion_ids))]
    assert len(set(first_at.values())) > 1


def test_old_tokens_keep_the_log_probabilities_of_the_weights_that_sampled_them(tiny_policy):
    state, requests = {}, [SampleRequest(ROWS[0], 1)]
    assert windowed(requests, sampler_at(tiny_policy, 3, 12), state, 3, window=5) == []
    first = plain(state)["pool"][0]
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.mul_(0.7)
    windowed([], sampler_at(tiny_policy, 4, 12), state, 4, window=5)
    (sample,) = windowed([], sampler_at(tiny_policy, 5, 12), state, 5, window=5)
    assert sample.completion_ids[:5] == first["ids"]
    assert sample.logprobs[:5] == first["logprobs"]
    assert sample.versions == [3] * 5 + [4] * 5 + [5] * 2
    batch = forest([sample])
    assert batch.sampled("version").tolist() == sample.versions
    full = tiny_policy.model(torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])).logits[0].detach() / 3.0
    now = full.log_softmax(-1)[len(sample.prompt_ids) - 1 : -1].gather(1, torch.tensor(sample.completion_ids)[:, None])
    torch.testing.assert_close(batch.sampled("lp_behav")[5:].float(), now[5:, 0], atol=1e-5, rtol=0)
    assert float((batch.sampled("lp_behav")[:5].float() - now[:5, 0]).abs().max()) > 1e-3


def test_a_completion_ends_after_its_last_window(tiny_policy):
    state, requests = {}, [SampleRequest(ROWS[0], 4)]
    assert windowed(requests, sampler_at(tiny_policy, 0, eager=2.5), state, 0, window=4, max_windows=2) == []
    samples = windowed([], sampler_at(tiny_policy, 1), state, 1, window=4, max_windows=2)
    assert [len(t.completion_ids) for t in samples if t.finish == "length"] == [8] * sum(
        t.finish == "length" for t in samples
    )
    assert any(t.finish == "length" for t in samples)


def test_new_groups_take_the_places_of_ended_ones(tiny_policy):
    state, running = {}, []
    for step in range(6):
        requests = [SampleRequest(ROWS[(2 * step + i) % 4], 2) for i in range(2)]
        windowed(requests, sampler_at(tiny_policy, step, eager=3.0), state, step, window=6)
        running.append(sum(one["calls"] > 0 for one in state["pool"]))
        assert len({one["group"] for one in state["pool"]}) <= 3
    assert max(running) <= 6


def test_every_sampled_token_is_fresh_once(tiny_policy):
    state, requests = {}, [SampleRequest(row, 2) for row in ROWS]
    want = by_problem(synchronous(requests, sampler_at(tiny_policy, 0, eager=2.5)))
    seen, fresh_ones = {}, {}
    for step in range(4):
        sampler = sampler_at(tiny_policy, step, eager=2.5)
        samples = windowed(requests if step == 0 else [], sampler, state, step, window=6, partial="all")
        batch = forest(samples)
        assert batch.paths["truncated"].tolist() == [t.finish != "stop" for t in samples]
        fresh_T = fresh(batch.sampled("version"), step, max_age=0)
        for path, sample in enumerate(samples):
            mine_T = batch.path_T == path
            assert batch.packed.input_ids_M[batch.sampled_T[mine_T]].tolist() == sample.completion_ids
            new = batch.packed.input_ids_M[batch.sampled_T[mine_T & fresh_T]].tolist()
            assert len(new) == 6 or sample.finish != "suspended"
            key = (sample.row["id"], sample.completion_ids[0])
            fresh_ones.setdefault(key, []).extend(new)
            assert fresh_ones[key] == sample.completion_ids
            seen[key] = sample
        state = plain(state)
    assert state["pool"] == []
    for problem, group in want.items():
        for sample in group:
            assert known(seen[problem, sample.completion_ids[0]]) == known(sample)


def test_what_is_suspended_has_earned_nothing_and_is_shown_to_no_reward(tiny_policy):
    from learning.lookup import Bound

    shown = []

    def judge(completions):
        shown.extend(completions)
        return [1.0] * len(completions)

    state = {}
    samples = windowed(
        [SampleRequest(ROWS[0], 8)], sampler_at(tiny_policy, 0, eager=2.5), state, 0, window=6, partial="all"
    )
    score([Bound("judge", judge, {})], [1.0], samples, {"step": 0})
    assert {t.reward for t in samples if t.finish == "suspended"} == {0.0}
    assert shown == [t.text for t in samples if t.finish != "suspended"]
    assert 0 < len(shown) < 8
    assert all(t.reward == 1.0 for t in samples if t.finish != "suspended")


def test_follow_ups_of_an_iteration_are_sampled_whole(tiny_policy):
    state = {}
    sampler = sampler_at(tiny_policy, 0, 12)
    windowed([SampleRequest(ROWS[0], 2)], sampler, state, 0, window=2)
    before = plain(state)
    more = windowed([SampleRequest(ROWS[1], 2, group=7)], sampler, state, 0, window=2)
    assert [(t.group, t.finish != "suspended") for t in more] == [(7, True)] * 2
    assert plain(state) == before


def test_groups_asked_for_by_number_keep_it_and_others_stay_clear_of_it(tiny_policy):
    state = {}
    requests = [
        SampleRequest(ROWS[0], 2, group=0),
        SampleRequest(ROWS[1], 1),
        SampleRequest(ROWS[0], 1, source="greedy", temperature=0.0, group=0),
    ]
    samples = windowed(requests, sampler_at(tiny_policy, 0), state, 0, window=24)
    assert sorted((t.group, t.row["id"], t.source) for t in samples) == [
        (0, "0", "greedy"),
        (0, "0", "policy"),
        (0, "0", "policy"),
        (1, "1", "policy"),
    ]


def test_overprovisioning_needs_enough_to_run(tiny_policy):
    with pytest.raises(StepError, match="6 completions at once, but an iteration asks for 4"):
        overprovisioned([SampleRequest(ROWS[0], 4)], sampler_at(tiny_policy, 0), {}, 0, target=4)


def test_unneeded_samples_continue_in_the_next_iteration(tiny_policy):
    requests = [SampleRequest(row, 2) for row in ROWS]
    want = synchronous(requests, sampler_at(tiny_policy, 0, eager=2.5))
    state, completed = {}, []
    for step in range(6):
        new = requests if step == 0 else [SampleRequest(ROWS[0], 8)] * 2
        sampler = sampler_at(tiny_policy, step, eager=2.5)
        if step:
            # Only what is left: the launches of later iterations are none of this test's.
            state["pool"] = [one for one in state["pool"] if one["group"].startswith("0:")]
            if not state["pool"]:
                break
        completed += overprovisioned(new, sampler, state, step, target=4, overprovision=2.0)
        state = plain(state)
    mine = [t for t in completed if t.versions[0] == 0]
    assert sorted(t.completion_ids for t in mine) == sorted(t.completion_ids for t in want)
    assert all(t.versions == sorted(t.versions) for t in mine)
    assert any(len(set(t.versions)) > 1 for t in mine)


@pytest.fixture
def pairs(tmp_path):
    answers = ["wxyz1", "pq", "hello", "k"]
    rows = [
        {**row, "chosen": says(a), "rejected": says("no!"), "margin": 1.0} for row, a in zip(ROWS, answers, strict=True)
    ]
    write_rows(tmp_path, "preference_pairs", rows)
    return tmp_path, answers


def says(text):
    return [{"role": "assistant", "content": text}]


def test_resets_begin_with_strict_prefixes_of_chosen_answers(tiny_policy, pairs):
    folder, answers = pairs
    samples = resets(
        [SampleRequest(row, 6) for row in ROWS],
        sampler_at(tiny_policy, 0),
        np.random.default_rng(0),
        data=folder,
        mix=1.0,
    )
    cuts = {row["id"]: set() for row in ROWS}
    for sample in samples:
        answer = answers[int(sample.row["id"])]
        ids = encode_completion(tiny_policy.tokenizer, says(answer))[:-1]
        assert sample.completion_ids[: sample.given] == ids[: sample.given]
        assert sample.given < len(ids)
        assert sample.text.startswith(answer[: sample.given])
        assert len(sample.completion_ids) <= 24
        cuts[sample.row["id"]].add(sample.given)
        assert sample.source == ("reset" if sample.given else "policy")
    # An answer of one letter has no prefix to begin with.
    assert cuts["3"] == {0}
    assert cuts["1"] == {1}
    assert cuts["0"] <= {1, 2, 3, 4}
    assert [[t.group for t in samples].count(g) for g in range(4)] == [6] * 4
    batch = with_dropped(forest(samples), False)
    for path, sample in enumerate(samples):
        mine = batch.packed.input_ids_M[batch.sampled_T[batch.path_T == path]].tolist()
        assert mine == sample.completion_ids[sample.given :]
    # Log-probabilities are those after prompt and prefix.
    sample = next(t for t in samples if t.given)
    prompt = encode_prompt(tiny_policy.tokenizer, sample.row["prompt"])
    logits = tiny_policy.model(torch.tensor([[*prompt, *sample.completion_ids]])).logits[0].detach() / 3.0
    want = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(sample.completion_ids)[:, None])[:, 0]
    assert sample.logprobs[sample.given :] == pytest.approx(want[sample.given :].tolist(), abs=1e-5)


def test_without_resets_nothing_changes(tiny_policy, pairs):
    requests = [SampleRequest(row, 4) for row in ROWS]
    want = synchronous(requests, sampler_at(tiny_policy, 0))
    assert resets(requests, sampler_at(tiny_policy, 0), np.random.default_rng(0), data=pairs[0], mix=0.0) == want
    some = resets(requests, sampler_at(tiny_policy, 0), np.random.default_rng(0), data=pairs[0], mix=0.5)
    plain_ones = [(a, b) for a, b in zip(some, want, strict=True) if a.source == "policy"]
    assert 0 < len(plain_ones) < 16
    assert all(known(a) == known(b) for a, b in plain_ones)


def test_resets_need_a_pair_for_every_prompt(tiny_policy, pairs):
    stranger = {**ROWS[0], "id": "99", "prompt": [{"role": "user", "content": "z"}]}
    with pytest.raises(StepError, match="no pair for the prompt 99"):
        resets([SampleRequest(stranger)], sampler_at(tiny_policy, 0), np.random.default_rng(0), data=pairs[0], mix=1.0)
