"""Replies of a policy that another stage made."""

from learning.data.chat import decode, encode_prompt
from learning.generation.engines.torch import Engine
from learning.generation.services.frozen_replies import sample_replies
from learning.samples.engine_protocol import Request, Sampling

ASKED = [[{"role": "user", "content": text}] for text in ("1+1=", "2+2=", "1+1=")]


def test_greedy_replies_are_those_of_the_engine(tiny_policy, tiny_policy_folder):
    sampling = Sampling(0.0, 5)
    made = sample_replies(tiny_policy_folder, ASKED, n=1, sampling=sampling, seed=0)
    ids = [encode_prompt(tiny_policy.tokenizer, messages) for messages in ASKED]
    expected = Engine(tiny_policy).generate([Request(some, 1, 0) for some in ids], sampling)
    assert made == [[decode(tiny_policy.tokenizer, one.token_ids)] for (one,) in expected]


def test_equal_questions_have_equal_replies_whatever_else_is_asked(tiny_policy_folder):
    sampling = Sampling(1.0, 5)
    first, second, again = sample_replies(tiny_policy_folder, ASKED, n=3, sampling=sampling, seed=4)
    assert first == again
    assert len(first) == 3
    assert len(set(first)) > 1
    assert sample_replies(tiny_policy_folder, ASKED[1:2], n=3, sampling=sampling, seed=4) == [second]
    assert sample_replies(tiny_policy_folder, ASKED[:1], n=3, sampling=sampling, seed=5) != [first]


def test_a_question_without_room_for_a_reply_has_none(tiny_policy_folder):
    long = [{"role": "user", "content": "1" * 100_000}]
    assert sample_replies(tiny_policy_folder, [long], n=1, sampling=Sampling(0.0, 5), seed=0) == [None]
