"""Gains of turns: the policy's probability of the answer, against forward passes of the whole texts one by one."""

from types import SimpleNamespace

import pytest
import torch

from learning.batch.batch_layout import forest
from learning.data.chat import encode_text
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE
from learning.rl.answer_gains import add_gains
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.errors import StepError


def sample(group, prompt, ids, turns, answer="river"):
    made = Sample({"id": str(group), "answer": answer}, group, "policy", prompt, ids, [-1.0] * len(ids), "stop", "")
    made.versions, made.turns, made.scores, made.reward = [0] * len(ids), turns, {"r": 0.0}, 0.0
    return made


def stage(prefix="", max_tokens=4096):
    return SimpleNamespace(answer_prefix=prefix, max_tokens_per_micro_batch=max_tokens, temperature=1.0)


def chance(policy, context, prefix, answer):
    """The probability of an answer behind a context, by one forward pass over their tokens."""
    before, ids = encode_text(policy.tokenizer, prefix) if prefix else [], encode_text(policy.tokenizer, answer)
    whole = [*context, *before, *ids]
    with torch.no_grad():
        lp = policy.model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
    first = len(whole) - len(ids)
    return float(torch.stack([lp[at - 1, whole[at]] for at in range(first, len(whole))]).mean().exp())


def gains_of(policy, samples, **options):
    batch = forest(samples)
    trained = Trained(policy.model, ALONE)
    return add_gains(batch, samples, trained, stage(**options), policy.tokenizer).sampled("gain"), batch


SAMPLES = [
    sample(0, [5, 6, 7], [10, 11, 12, 20, 21, 13, 14, 22, 15], [Turn(3, 2), Turn(2, 1)]),
    sample(0, [5, 6, 7], [16, 17, 23, 24, 25, 18], [Turn(2, 3)]),
    sample(1, [8, 9], [19, 30], [], answer="hill"),
]


@pytest.mark.parametrize("options", [{}, {"prefix": "So it is "}, {"max_tokens": 16}])
def test_a_gain_is_the_difference_of_two_forward_passes(tiny_policy, options):
    gain_T, batch = gains_of(tiny_policy, SAMPLES, **options)
    prefix, prompt = options.get("prefix", ""), [5, 6, 7]
    first = [prompt, [*prompt, *SAMPLES[0].completion_ids[:5]], [*prompt, *SAMPLES[0].completion_ids[:8]]]
    second = [prompt, [*prompt, *SAMPLES[1].completion_ids[:5]]]
    p, q = ([chance(tiny_policy, one, prefix, "river") for one in contexts] for contexts in (first, second))
    expected = [*[p[1] - p[0]] * 3, *[p[2] - p[1]] * 2, 0.0, *[q[1] - q[0]] * 2, 0.0, 0.0, 0.0]
    assert gain_T.tolist() == pytest.approx(expected, abs=1e-6)
    assert len({round(value, 9) for value in gain_T.tolist()}) == 4
    assert not gain_T.requires_grad
    assert batch.num_paths == 3


def test_after_a_new_context_only_that_is_seen(tiny_policy):
    turns = [Turn(2, 4, rebuilt=True), Turn(1, 1)]
    one = sample(0, [5, 6, 7], [10, 11, 40, 41, 42, 43, 12, 20, 13], turns)
    gain_T, _ = gains_of(tiny_policy, [one])
    contexts = [[5, 6, 7], [40, 41, 42, 43], [40, 41, 42, 43, 12, 20]]
    p = [chance(tiny_policy, context, "", "river") for context in contexts]
    assert gain_T.tolist() == pytest.approx([p[1] - p[0], p[1] - p[0], p[2] - p[1], 0.0], abs=1e-6)


def test_given_tokens_belong_to_the_context(tiny_policy):
    one = sample(0, [5, 6], [7, 10, 20, 11], [Turn(1, 1)])
    one.given = 1
    gain_T, _ = gains_of(tiny_policy, [one])
    p = [chance(tiny_policy, context, "", "river") for context in ([5, 6, 7], [5, 6, 7, 10, 20])]
    assert gain_T.tolist() == pytest.approx([p[1] - p[0], 0.0], abs=1e-6)


def test_completions_without_answered_turns_cost_no_pass(tiny_policy):
    trained = SimpleNamespace(model=None, each=None)
    gain_T = add_gains(forest(SAMPLES[2:]), SAMPLES[2:], trained, stage(), tiny_policy.tokenizer).sampled("gain")
    assert gain_T.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("answer", [None, ""])
def test_a_row_without_an_answer_is_refused(tiny_policy, answer):
    one = sample(0, [5], [10, 20, 11], [Turn(1, 1)], answer=answer)
    with pytest.raises(StepError, match="has no answer"):
        gains_of(tiny_policy, [one])
