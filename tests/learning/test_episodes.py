"""Episodes: turns of a model with an environment's answers in between, token by token what they should be."""

import threading
from dataclasses import replace

import pytest
import torch

from learning.engines.protocol import Request, Sampling, Turn
from learning.engines.torch import Engine
from learning.environments.clock import Threads, Virtual
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.texts.chat import decode, encode_prompt
from schemas.errors import StepError

SAMPLING = Sampling(1.0, 60, entropy=True)


class Echo:
    """Says how many turns there were and the last turn's length; ends after so many as the row says."""

    def __init__(self, seconds=None):
        self.seconds = seconds
        self.seeds, self.begun, self.threads = [], 0, set()

    def begin(self, row, seed):
        self.begun += 1
        self.seeds.append(seed)
        world, turns = self, []

        class Played:
            def step(self, action):
                world.threads.add(threading.current_thread())
                turns.append(action)
                done = len(turns) >= row["turns"]
                seconds = world.seconds(row, seed, len(turns)) if world.seconds else None
                said = f"{len(turns)}:{len(action)}:{seed % 7}"
                return Outcome(said, done, float(len(action)), seconds, bool(len(action) % 2))

        return Played()


def asked(policy, texts, turns=3, n=2):
    rows = [{"id": text, "turns": turns, "prompt": [{"role": "user", "content": text}]} for text in texts]
    ids = [encode_prompt(policy.tokenizer, row["prompt"]) for row in rows]
    return [Request(some, n, 5 + i, row=row) for i, (some, row) in enumerate(zip(ids, rows, strict=True))]


def closing(policy, at=0.25):
    """A processor under which turns end soon, so that there are many of them."""

    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        rest = logits_BV.logsumexp(-1)
        logits_BV[:, policy.tokenizer.eos_token_id] = rest + torch.tensor(at).log()
        return logits_BV

    return process


def played(policy, requests, sampling=SAMPLING, engine=None, **how):
    sampling = replace(sampling, processor=closing(policy))
    environment = how.pop("environment", None) or Echo()
    how = {"tokenizer": policy.tokenizer, "max_turns": 4, **how}
    return Episodes(engine or Engine(policy), environment, **how).generate(requests, sampling)


def parts(request, made):
    """The model's turns and what was observed, as ids."""
    ids, at, found = made.token_ids, 0, []
    for turn in made.turns:
        found.append((ids[at : at + turn.sampled], ids[at + turn.sampled : at + turn.sampled + turn.observed]))
        at += turn.sampled + turn.observed
    return found, ids[at:]


def test_the_ids_of_an_episode_are_the_templates_rendering_of_the_whole_conversation(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    requests = asked(tiny_policy, ["ab", "c", "de<eos>f"])
    several = 0
    for request, of in zip(requests, played(tiny_policy, requests), strict=True):
        for made in of:
            messages, (found, tail) = list(request.row["prompt"]), parts(request, made)
            said = []
            for turn, (sampled, observed) in zip(made.turns, found, strict=True):
                assert sampled[-1] == tokenizer.eos_token_id
                assert tokenizer.eos_token_id not in sampled[:-1]
                text = "".join(tokenizer.convert_ids_to_tokens(sampled[:-1]))
                said.append(decode(tokenizer, sampled))
                assert (turn.reward, turn.ok, turn.measured) == (len(said[-1]), len(said[-1]) % 2 == 1, True)
                if observed:
                    several += 1
                    # What a model says may hold special tokens: written as they are, they are not text.
                    seed = decode(tokenizer, observed).rpartition(":")[2]
                    messages += [
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": f"{len(said)}:{len(said[-1])}:{seed}"},
                    ]
            whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            rest = tail or (found[-1][0] if not found[-1][1] else [])
            if "<" in request.row["id"]:
                continue
            assert tokenizer.encode(whole, add_special_tokens=False) + rest == request.prompt_ids + made.token_ids
            assert made.finish in ("stop", "length")
            assert (made.finish == "stop") == (len(made.turns) == 3 and not tail)
    assert several >= 6


def full_lp(policy, prompt, ids):
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    logits = closing(policy)(logits, None)
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("order", ["each", "together"])
def test_sampled_tokens_carry_the_trainers_log_probabilities_and_observed_ones_nothing(tiny_policy, order):
    requests = asked(tiny_policy, ["ab", "c"])
    for request, of in zip(requests, played(tiny_policy, requests, order=order), strict=True):
        for made in of:
            want, at = full_lp(tiny_policy, request.prompt_ids, made.token_ids), 0
            for turn in [*made.turns, Turn(len(made.token_ids))]:
                end = at + turn.sampled
                assert made.logprobs[at:end] == pytest.approx(want[at:end], abs=2e-5)
                assert made.logprobs[end : end + turn.observed] == [0.0] * turn.observed
                assert made.entropies[end : end + turn.observed] == [0.0] * turn.observed
                at = end + turn.observed
            assert made.sampled == len(made.token_ids) - sum(turn.observed for turn in made.turns)
            assert sum(tokens for _, tokens in made.versions) == len(made.token_ids)
