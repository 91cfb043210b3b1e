"""Engine openai against a server: token ids or text out, token ids back; what a server cannot do is refused."""

import pytest
import torch

from learning.api.spending import SpendingAccount
from learning.generation.engines.openai import Engine, hash_weights
from learning.generation.replicas.engine_loading import make_engine
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.endpoint import Endpoint
from schemas.errors import StepError
from schemas.use import EngineUse
from tests.teacher_server import Teacher, serving


class TokenServer(Teacher):
    """Says of a prompt its length and its seed, as token ids with log-probabilities, as vLLM does."""

    def answered(self, body, key):
        made = super().answered(body, key)
        if body.get("return_token_ids"):
            ids = [len(body["prompt"]), body["seed"] % 50, 1]
            made["choices"][0] |= {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5, -1.5, -0.25]}}
        return made


@pytest.fixture
def account(tmp_path):
    return SpendingAccount(tmp_path / "remote", "a-step")


def use(address, **more):
    endpoint = {"base_url": address, "model": "m", "backoff": 0.001, "max_backoff": 0.002}
    return EngineUse.model_validate({"use": "openai", "endpoint": endpoint, **more})


def test_token_ids_are_sent_and_returned_with_logprobs(account, tiny_policy):
    teacher = TokenServer(lambda body: ("abc", "length" if body["seed"] % 2 else "stop"), {"[5, 6]": ["500", "lost"]})
    requests = [Request([5, 6, 7], 2, 11), Request([5, 6], 1, 11, first=1, temperature=0.0)]
    with serving(teacher) as address:
        engine = make_engine(use(address), tiny_policy, account=account)
        made = engine.generate(requests, Sampling(0.7, 9))
        again = engine.generate(list(reversed(requests)), Sampling(0.7, 9))
    assert [len(group) for group in made] == [2, 1]
    assert again == list(reversed(made))
    for request, group in zip(requests, made, strict=True):
        for one in group:
            assert (one.token_ids[0], one.logprobs) == (len(request.prompt_ids), [-0.5, -1.5, -0.25])
    asked = {(tuple(b["prompt"]), b["seed"]): b for b in teacher.bodies}
    assert len(asked) == len(teacher.paid) == 3
    assert {b["temperature"] for b in teacher.bodies} == {0.7, 0.0}
    assert {b["max_tokens"] for b in teacher.bodies} == {9}
    seeds = {seed for _, seed in asked}
    assert len(seeds) == 2  # streams (11, 0) and (11, 1), whichever prompt
    assert [g.finish for group in made for g in group] == [
        "length" if g.token_ids[1] in {s % 50 for s in seeds if s % 2} else "stop" for group in made for g in group
    ]


def test_text_goes_out_where_a_server_takes_no_ids(account, tiny_policy):
    tokenizer = tiny_policy.tokenizer
    teacher = Teacher(lambda body: ("12", "stop" if body["max_tokens"] > 2 else "length"))
    with serving(teacher) as address:
        engine = make_engine(use(address, prompts="text"), tiny_policy, account=account)
        ((whole,),) = engine.generate([Request(tokenizer.encode("3 + 9 ="), 1, 0)], Sampling(1.0, 3))
        ((cut,),) = engine.generate([Request(tokenizer.encode("3 + 9 ="), 1, 0)], Sampling(1.0, 2))
    assert teacher.bodies[0]["prompt"] == "3 + 9 ="
    assert "return_token_ids" not in teacher.bodies[0]
    ids = tokenizer.encode("12")
    assert whole == Generation([*ids, tokenizer.eos_token_id], [], "stop")
    assert cut == Generation(ids, [], "length")


def test_answers_of_other_weights_are_not_taken_for_these(account, tiny_policy):
    teacher = TokenServer(lambda body: ("a", "stop"))
    before = hash_weights(tiny_policy)
    with serving(teacher) as address:
        for name in ("first", "second"):
            make_engine(use(address), tiny_policy, account=account).generate([Request([5], 1, 0)], Sampling())
            assert len(teacher.paid) == {"first": 1, "second": 1}[name]
        with torch.no_grad():
            next(tiny_policy.model.parameters()).view(-1)[0] += 1e-3
        make_engine(use(address), tiny_policy, account=account).generate([Request([5], 1, 0)], Sampling())
    assert len(teacher.paid) == 2
    assert hash_weights(tiny_policy) != before


def test_what_a_server_cannot_do_is_refused_by_name(account, tiny_policy):
    engine = Engine(tiny_policy, account, endpoint=Endpoint(base_url="http://127.0.0.1:1/v1", model="m"))
    plain = [Request([5], 1, 0)]
    for requests, sampling, what in (
        ([Request([5], 1, 0, begun=(3,))], Sampling(), "completions that were begun"),
        (plain, Sampling(processor=lambda logits, place: logits), "`logits_processors`"),
        (plain, Sampling(entropy=True), "entropies"),
        (plain, Sampling(stop=((1,),)), "stops inside a completion"),
        (plain, Sampling(window=3), "suspending"),
    ):
        with pytest.raises(StepError, match=f"a server does not support {what}"):
            engine.generate(requests, sampling)
    with pytest.raises(StepError, match="the server keeps its own weights, so nothing can be trained"):
        engine.sync(1)


def test_a_prompt_that_is_refused_fails_the_stage(account, tiny_policy):
    with serving(TokenServer(script={"*": ["refuse"] * 3})) as address:
        engine = make_engine(use(address), tiny_policy, account=account)
        with pytest.raises(StepError, match=r"a prompt has no completion: refused \(400\): the prompt is too long"):
            engine.generate([Request([5], 1, 0)], Sampling())
