"""Rewards that ask: the group (votes), the policy's probabilities, judges; what cannot be scored stays so."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.data.chat import encode_completion, encode_prompt
from learning.data.questions import fill_template, make_question
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.models.packed import pack, packed_logprobs
from learning.rewards import consensus, judges, likelihood, pairwise
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, scoring
from learning.sampling.verdicts import guest, logprobs, replies, word_logprobs
from schemas.errors import StepError
from schemas.use import EngineUse, RewardUse

HERE = __name__
ROW = {"id": "q", "prompt": [{"role": "user", "content": "1+2="}], "answer": "3", "family": "sums"}


def rng():
    return np.random.default_rng(0)


class Scripted:
    """An engine that says what a function makes of the question."""

    def __init__(self, tokenizer, reply):
        self.tokenizer, self.reply, self.requests = tokenizer, reply, []

    def generate(self, requests, sampling):
        self.requests += requests
        return [
            [
                Generation(self.tokenizer.encode(self.reply(self.tokenizer.decode(r.prompt_ids), i)), [], "stop")
                for i in range(r.n)
            ]
            for r in requests
        ]


def scripted(policy, reply):
    return Sampler(Scripted(policy.tokenizer, reply), policy, Sampling(1.0, 8), 0, 0)


def by_length(completions):
    """Votes count as much as they are long; an empty one cannot be scored."""
    return [float(len(t)) or None for t in completions]


def negative(completions):
    """A weight below 0."""
    return [-1.0] * len(completions)


def ask(name, completions, groups=None, **options):
    samples = [
        Sample(ROW, g, "policy", [1], [1], [0.0], "stop", t)
        for t, g in zip(completions, groups or [0] * len(completions), strict=True)
    ]
    return bind(RewardUse.model_validate({"use": name, **options})).ask(0, scoring(samples))


def test_the_majority_is_right_by_groups_and_in_normal_form():
    completions = ["3", "3.0", " 3.", "4", "x", "y", "y", ""]
    assert ask("consensus.majority", completions, [0, 0, 0, 0, 1, 1, 1, 1]) == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert ask("consensus.majority", ["b", "a", "a", "b"]) == [1.0, 0.0, 0.0, 1.0]
    assert ask("consensus.majority", ["# 1", "7", "# 2", "8 # 2"], marker="#") == [0.0, 0.0, 1.0, 1.0]
    assert ask("consensus.majority", ["no", "none"], marker="#") == [None, None]
    assert ask("consensus.majority", ["a", "a", "b", "c"], min_share=0.5) == [1.0, 1.0, 0.0, 0.0]
    assert ask("consensus.majority", ["a", "a", "b", "c"], min_share=0.51) == [None] * 4


def test_votes_for_rows_without_an_answer_only():
    rows = [{**ROW, "answer": a} for a in ("9", None, None)]
    got = consensus.majority(rows, ["1", "2", "2"], [0, 1, 1], unlabelled_only=True)
    assert got == [None, 1.0, 1.0]


def test_weighted_votes_can_turn_a_majority():
    completions = ["1", "1", "33333", ""]
    assert ask("consensus.weighted", completions, by=f"{HERE}:by_length") == [0.0, 0.0, 1.0, 0.0]
    assert ask("consensus.majority", completions) == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(StepError, match="negative weight"):
        ask("consensus.weighted", completions, by=f"{HERE}:negative")


def test_a_crowd_hears_each_model_by_its_consistency():
    votes = consensus.count_weighted_votes([list("AAAB"), list("BBCD"), list("BCDE"), [None] * 4])
    assert votes == {"A": 2.25, "B": 2.0, "C": 0.75, "D": 0.75, "E": 0.25}
    assert consensus.elect(votes) == "A"
    assert consensus.elect({}) is None
    assert consensus.count_weighted_votes([[None, "x", "x", None]]) == {"x": 1.0}


@pytest.fixture
def sampler(tiny_policy):
    return Sampler(Engine(tiny_policy), tiny_policy, Sampling(0.7, 8), 0, 0)


def logprob_of(policy, prompt, target):
    with torch.no_grad():
        lp, _ = packed_logprobs(policy.model, pack([prompt, target], [-1, 0]))
    return lp[len(prompt) :].double().tolist()


def test_likelihood_of_the_answer_after_the_completion(sampler):
    policy = sampler.policy
    prompt = sampler.encode(ROW["prompt"])
    encode = policy.tokenizer.encode
    eos = policy.tokenizer.eos_token_id
    sample = Sample(ROW, 0, "policy", prompt, [*encode("so"), eos], [-1.0] * 3, "stop", "so")
    marked = Sample(ROW, 0, "policy", prompt, [*encode("so # 77"), eos], [-1.0] * 8, "stop", "so # 77")
    lp = logprob_of(policy, prompt + encode("so "), encode("3"))[0]
    plain = logprob_of(policy, prompt, encode("3"))[0]
    assert likelihood.answer([ROW], [sample], sampler, reduce="sum") == pytest.approx([lp], abs=1e-5)
    assert likelihood.answer([ROW], [sample], sampler) == pytest.approx([math.exp(lp)], rel=1e-4)
    got = likelihood.answer([ROW], [sample], sampler, reduce="sum", gain=True)
    assert got == pytest.approx([lp - plain], abs=1e-5)
    lp = logprob_of(policy, prompt + encode("so # "), encode("3"))[0]
    assert likelihood.answer([ROW], [marked], sampler, marker="#", reduce="mean") == pytest.approx([lp], abs=1e-5)
    two = {**ROW, "answer": "31"}
    lps = logprob_of(policy, prompt + encode("so "), encode("31"))
    got = [likelihood.answer([two], [sample], sampler, reduce=r)[0] for r in ("sum", "mean", "probability")]
    assert got == pytest.approx([sum(lps), sum(lps) / 2, math.exp(sum(lps))], rel=1e-4)


def test_likelihood_of_a_completion_with_the_token_that_ends_it(tiny_policy, tiny_policy_folder):
    prompt = encode_prompt(tiny_policy.tokenizer, ROW["prompt"])
    ids = encode_completion(tiny_policy.tokenizer, [{"role": "assistant", "content": "so 3"}])
    lps = logprob_of(tiny_policy, prompt, ids)
    folder = str(tiny_policy_folder)
    got = [likelihood.completion([ROW], ["so 3"], model=folder, reduce=reduce)[0] for reduce in ("sum", "mean")]
    assert got == pytest.approx([sum(lps), sum(lps) / len(ids)], abs=1e-5)
    assert ids[-1] == tiny_policy.tokenizer.eos_token_id
    assert likelihood.completion([ROW, ROW], ["7" * 200, "7"], model=folder)[0] is None


def test_what_has_no_likelihood_cannot_be_scored(sampler):
    prompt = sampler.encode(ROW["prompt"])
    sample = Sample(ROW, 0, "policy", prompt, sampler.policy.tokenizer.encode("so"), [-1.0] * 2, "stop", "so")
    rows = [{**ROW, "answer": None}, {**ROW, "answer": "7" * 200}, ROW]
    got = likelihood.answer(rows, [sample] * 3, sampler)
    assert got[:2] == [None, None]
    assert got[2] > 0
    assert likelihood.answer([ROW], [sample], sampler, marker="#") == [None]
    expert = Sample(ROW, 0, "expert", prompt, [5], None, "stop", "so")
    assert likelihood.confidence([sample, expert]) == [math.exp(-1.0), None]


def test_likelihoods_do_not_depend_on_how_they_are_packed(sampler, monkeypatch):
    pairs = [([7, 8, 9], [10, 11]), ([], [3]), ([12], [13, 14, 15]), ([7] * 100, [1] * 60), ([20, 21], [22])]
    whole = logprobs(sampler, pairs)
    assert [lps is None for lps in whole] == [False, True, False, True, False]
    monkeypatch.setattr("learning.sampling.verdicts.TOKENS", 5)
    cut = logprobs(sampler, pairs)
    for a, b in zip(whole, cut, strict=True):
        assert (a is None and b is None) or a == pytest.approx(b, abs=1e-5)
    # At temperature 1, whatever the stage samples at.
    assert whole[0] == pytest.approx(logprob_of(sampler.policy, *pairs[0]), abs=1e-5)


def test_words_are_weighed_by_their_likelihood(sampler, monkeypatch):
    asked = [make_question("rate {completion}", ROW, completion=c) for c in ("3", "long " * 50, "4")]
    words = {"5": 5.0, "9": 9.0}
    lps = word_logprobs(sampler, asked, list(words))
    assert lps[1] is None
    eos = sampler.policy.tokenizer.eos_token_id
    for i in (0, 2):
        prompt = sampler.encode(asked[i])
        want = [sum(logprob_of(sampler.policy, prompt, [*sampler.policy.tokenizer.encode(w), eos])) for w in words]
        assert lps[i] == pytest.approx(want, abs=1e-4)
    p5, p9 = (math.exp(lp) for lp in lps[0])
    got = judges.own([ROW] * 3, ["3", "long " * 50, "4"], sampler, rng(), template="rate {completion}", words=words)
    assert got[0] == pytest.approx((5 * p5 + 9 * p9) / (p5 + p9) / 10, abs=1e-6)
    assert got[1] is None
    monkeypatch.setattr("learning.sampling.verdicts.TOKENS", 5)
    again = word_logprobs(sampler, asked, list(words))
    assert again[0] == pytest.approx(lps[0], abs=1e-4)
    assert again[2] == pytest.approx(lps[2], abs=1e-4)


def test_a_judges_words_become_a_score_and_noise_becomes_none(tiny_policy):
    replies = {"a": "I say 7", "b": "of 10 points, 2.5", "c": "good", "d": "99", "e": ""}
    judge = scripted(tiny_policy, lambda prompt, i: replies[prompt.partition("rate ")[2][0]])
    how = {"template": "rate {completion}"}
    got = judges.own([ROW] * 5, list("abcde"), judge, rng(), **how)
    assert got == [0.7, 0.25, None, None, None]
    got = judges.own([ROW] * 5, list("abcde"), judge, rng(), **how, unparsable=-1.0)
    assert got == [0.7, 0.25, -1.0, -1.0, -1.0]
    got = judges.own([ROW], ["b"], judge, rng(), **how, pattern=r"of (\d+)", low=9, high=11)
    assert got == [0.5]


def test_votes_are_averaged_over_those_that_can_be_read(tiny_policy):
    judge = scripted(tiny_policy, lambda prompt, i: ("4", "?", "8")[i])
    assert judges.own([ROW], ["x"], judge, rng(), votes=3, temperature=1.0) == [pytest.approx(0.6)]
    with pytest.raises(StepError, match="several `votes` at temperature 0"):
        judges.own([ROW], ["x"], judge, rng(), votes=3)
    with pytest.raises(StepError, match=r"no \{completion\}"):
        judges.own([ROW], ["x"], judge, rng(), template="rate it")
    with pytest.raises(StepError, match="must be above"):
        judges.own([ROW], ["x"], judge, rng(), low=1, high=1)
    with pytest.raises(StepError, match="pattern"):
        judges.own([ROW], ["x"], judge, rng(), pattern="(")


def test_equal_questions_are_asked_once_and_answered_equally(sampler):
    texts = ["ab", "b", "ab", "c" * 200]
    asked = [make_question("{completion}", ROW, completion=t) for t in texts]
    first = replies(sampler, asked, n=2, sampling=Sampling(1.0, 6), rng=rng())
    assert first[0] == first[2]
    assert first[3] is None
    turned = replies(sampler, asked[1::-1], n=2, sampling=Sampling(1.0, 6), rng=rng())
    assert turned == [first[1], first[0]]
    assert sampler._count == 0


def test_templates_put_in_what_has_braces_as_it_is():
    assert fill_template("{a}-{b}", {"a": "{b}", "b": "{}"}) == "{b}-{}"
    with pytest.raises(StepError, match=r"no field \{c\}; there is: \{a\}"):
        fill_template("{c}", {"a": ""})


def test_a_guest_is_loaded_once_and_answers_as_the_model_it_is(tiny_policy_folder, sampler):
    host = guest(tiny_policy_folder)
    assert guest(str(tiny_policy_folder)) is host
    asked = [make_question("rate {completion}", ROW, completion="3")]
    assert word_logprobs(host, asked, ["1"])[0] == pytest.approx(word_logprobs(sampler, asked, ["1"])[0], abs=1e-5)
    use = {"use": "judges.model", "judge": "critic", "words": {"1": 1.0, "0": 0.0}, "high": 1.0}
    bound = bind(RewardUse.model_validate(use), "rewards.1", {"rewards.1.judge": tiny_policy_folder})
    supplies = {"rows": [ROW], "completions": ["3"], "seed": 0}
    own = judges.own([ROW], ["3"], sampler, rng(), words={"1": 1.0, "0": 0.0}, high=1.0)
    assert bound.ask(0, supplies) == pytest.approx(own, abs=1e-5)
    assert not any(p.requires_grad for p in host.policy.model.parameters())
    use |= {"engine": {"use": "torch", "max_slots": 3}}
    assert bind(RewardUse.model_validate(use), "r", {"r.judge": tiny_policy_folder}).ask(0, supplies) == pytest.approx(
        own
    )
    assert guest(tiny_policy_folder, EngineUse(use="torch", max_slots=3)).engine.max_slots == 3


def test_win_rates_in_the_group_by_a_score():
    completions, groups = ["333", "1", "1", "", "22"], [0, 0, 0, 0, 1]
    assert ask("pairwise.win_rate", completions, groups, of=f"{HERE}:by_length") == [1.0, 0.25, 0.25, None, None]
    got = ask("pairwise.win_rate", ["333", "1"], of=f"{HERE}:by_length", scale=2.0)
    sigmoid = 1 / (1 + math.exp(-1.0))
    assert got == pytest.approx([sigmoid, 1 - sigmoid], abs=1e-15)


def test_a_pairwise_judge_is_asked_in_both_orders(tiny_policy):
    def reply(prompt, i):
        a, b = prompt.partition("|")[2].split("|")[:2]
        return "?" if "u" in a + b else "1" if len(a) >= len(b) else "2"

    judge = scripted(tiny_policy, reply)
    how = {"template": "|{first}|{second}|", "likely": False}
    # A judge that prefers what it sees first makes a draw of equals.
    got = pairwise.own_judged([ROW] * 4, ["aaa", "b", "c", "u"], [0] * 4, judge, rng(), **how)
    assert got == [1.0, 0.25, 0.25, None]
    assert len(judge.engine.requests) == 12
    assert pairwise.own_judged([ROW], ["x"], [0], judge, rng(), **how) == [None]
    with pytest.raises(StepError, match=r"must contain \{first\} and \{second\}"):
        pairwise.own_judged([ROW], ["x"], [0], judge, rng(), template="which?")


def test_a_pairwise_judges_likelihoods_sum_to_one_win(sampler):
    completions = ["so", "or", "and"]
    how = {"template": "{first};{second}:"}
    got = pairwise.own_judged([ROW] * 3, completions, [0] * 3, sampler, rng(), **how)
    assert sum(got) == pytest.approx(1.5, abs=1e-9)
    asked = [make_question("{first};{second}:", ROW, first=a, second=b) for a, b in (("so", "or"), ("or", "so"))]
    (p1, p2), (q1, q2) = [[math.exp(lp) for lp in lps] for lps in word_logprobs(sampler, asked, ["1", "2"])]
    pair = pairwise.own_judged([ROW] * 2, completions[:2], [0] * 2, sampler, rng(), **how)
    assert pair[0] == pytest.approx((p1 / (p1 + p2) + q2 / (q1 + q2)) / 2, abs=1e-6)


def test_a_crowd_asks_the_others_and_no_gold_answer(monkeypatch, tiny_policy):
    answers = {"one": list("BBCD"), "two": list("BCDE")}
    models = {name: scripted(tiny_policy, lambda prompt, i, name=name: answers[name][i]) for name in answers}
    monkeypatch.setattr(consensus, "guest", lambda folder: models[folder])
    mine = SimpleNamespace(sampling=Sampling(1.0, 4))
    got = consensus.crowd([ROW] * 4, list("AAAB"), [0] * 4, mine, rng(), others=["one", "two"])
    assert got == [1.0, 1.0, 1.0, 0.0]
    garbage = consensus.crowd([{**ROW, "answer": "?"}] * 4, list("AAAB"), [0] * 4, mine, rng(), others=["one", "two"])
    assert garbage == got
    answers["one"] = list("BBBB")
    assert consensus.crowd([ROW] * 4, list("AAAB"), [0] * 4, mine, rng(), others=["one", "two"]) == [0, 0, 0, 1]
