"""Episodes over engine vllm: token for token those over engine torch."""

from importlib.util import find_spec

import pytest
import torch

from learning.data.chat import encode_prompt
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.generation.engines.torch import Engine as TorchEngine
from learning.generation.engines.vllm import Engine
from learning.samples.engine_protocol import Request, Sampling

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]


class Counting:
    """Says how long the last turn was; ends with the third."""

    def begin(self, row, seed):
        turns = []

        class Played:
            def step(self, action):
                turns.append(action)
                return Outcome(f"{len(action)}", len(turns) == 3, 1.0, 0.5)

        return Played()


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) + torch.tensor(0.25).log()
    return logits_BV


@pytest.mark.parametrize("window", [None, 14])
def test_episodes_are_those_of_engine_torch(wide_policy, window):
    rows = [{"id": t, "prompt": [{"role": "user", "content": t}]} for t in ("ab", "c", "def")]
    ids = [encode_prompt(wide_policy.tokenizer, row["prompt"]) for row in rows]
    requests = [Request(some, 3, i, row=row) for i, (some, row) in enumerate(zip(ids, rows, strict=True))]
    completions = []
    for engine in (TorchEngine(wide_policy), Engine(wide_policy)):
        episodes = Episodes(engine, Counting(), tokenizer=wide_policy.tokenizer, max_turns=4)
        sampling = Sampling(1.0, 60, processor=short, window=window)
        completions.append([g for of in episodes.generate(requests, sampling) for g in of])
    one, two = completions
    assert sum(len(g.turns) > 1 for g in one) >= (4 if window is None else 2)
    assert [(g.token_ids, g.finish, g.turns) for g in two] == [(g.token_ids, g.finish, g.turns) for g in one]
    for mine, theirs in zip(two, one, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert any(g.finish == "suspended" for g in one) == (window is not None)
