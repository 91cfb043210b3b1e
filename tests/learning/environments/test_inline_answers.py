"""Answers that continue the model's own message, token by token."""

import pytest

from learning.data.chat import decode, encode_completion, encode_prompt, encode_text
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.generation.engines.torch import Engine
from learning.problems.teacher_turns import turns
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import StepError
from schemas.use import EnvUse, Inline

INLINE = Inline(stop=["?"], text="[{observation}]")


class Counting:
    """Answers with the number of the turn; ends after the third, or at a turn that says `end`."""

    def begin(self, row, seed):
        seen = []

        class Played:
            def step(self, action):
                seen.append(action)
                return Outcome(f"{len(seen)}", done=action == "end" or len(seen) == 3)

        row["seen"] = seen
        return Played()


class Dictated:
    """An engine that says the next of some texts, cut behind the first stop sequence, and keeps contexts."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.contexts, self.samplings = tokenizer, list(texts), [], []

    def generate(self, requests, sampling):
        self.samplings.append(sampling)
        return [[self.say(request, sampling)] for request in requests]

    def say(self, request, sampling):
        self.contexts.append([*request.prompt_ids, *request.begun])
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": self.texts.pop(0)}])
        for place in range(1, len(ids)):
            if any(tuple(ids[max(0, place - len(stop)) : place]) == stop for stop in sampling.stop):
                ids = ids[:place]
                break
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        pass


def play(policy, texts, **how):
    row = {"id": "a", "prompt": [{"role": "user", "content": "q"}]}
    prompt = encode_prompt(policy.tokenizer, row["prompt"])
    engine = Dictated(policy.tokenizer, texts)
    episodes = Episodes(engine, Counting(), tokenizer=policy.tokenizer, max_turns=4, inline=INLINE, **how)
    ((made,),) = episodes.generate([Request(prompt, 1, 0, row=row)], Sampling(1.0, 200))
    return made, engine, row, prompt


def test_a_turn_ends_at_the_stop_text_and_the_answer_stands_right_behind_it(tiny_policy):
    made, engine, row, prompt = play(tiny_policy, ["ab?cut away", "cd", "never"])
    tokenizer = tiny_policy.tokenizer
    assert row["seen"][:1] == ["ab?"]
    assert engine.contexts[1] == [*prompt, *encode_text(tokenizer, "ab?"), *encode_text(tokenizer, "[1]")]
    assert engine.samplings[0].stop == (tuple(encode_text(tokenizer, "?")),)
    assert [(turn.sampled, turn.observed) for turn in made.turns[:1]] == [(3, 3)]


def test_a_turn_that_ends_with_its_end_token_is_answered_by_a_message(tiny_policy):
    _, engine, row, prompt = play(tiny_policy, ["ab", "end"])
    assert row["seen"] == ["ab", "end"]
    assert decode(tiny_policy.tokenizer, engine.contexts[1][len(prompt) :]).startswith("ab")
    assert "[" not in decode(tiny_policy.tokenizer, engine.contexts[1])


def test_an_engine_that_samples_stops_and_goes_on_there(tiny_policy):
    row = {"id": "a", "prompt": [{"role": "user", "content": "q"}]}
    prompt = encode_prompt(tiny_policy.tokenizer, row["prompt"])
    question = encode_text(tiny_policy.tokenizer, "?")[0]

    def ask(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, question] += 12.0
        return logits_BV

    engine = Engine(tiny_policy)
    episodes = Episodes(engine, Counting(), tokenizer=tiny_policy.tokenizer, max_turns=4, inline=INLINE)
    ((made,),) = episodes.generate([Request(prompt, 1, 0, row=row)], Sampling(1.0, 60, processor=ask))
    assert row["seen"] == ["?"] * 3
    assert [turn.observed for turn in made.turns] == [3, 3, 0]
    assert decode(tiny_policy.tokenizer, made.token_ids) == "?[1]?[2]?"
    assert len(made.token_ids) == 9


def test_a_template_message_cannot_be_cut_into_turns():
    env = EnvUse.model_validate({"use": "guess", "inline": {"stop": ["?"]}})
    with pytest.raises(StepError, match="no turns to cut"):
        turns(of=None, by=None, env=env)
