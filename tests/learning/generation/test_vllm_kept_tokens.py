"""Engine vllm samples from the tokens that engine torch keeps, and records the same."""

from importlib.util import find_spec

import pytest

from learning.batch.batch_layout import single_turn
from learning.batch.micro_batches import statistics_of
from learning.generation.engines.torch import Engine as TorchEngine
from learning.generation.engines.vllm import Engine
from learning.samples.engine_protocol import Request, Sampling
from schemas.kept_tokens import KeptTokens

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30]]
REQUESTS = [Request(ids, 4, seed) for seed, ids in enumerate(PROMPTS)]


def test_trap_08_it_keeps_the_tokens_that_engine_torch_keeps(wide_policy):
    for cut in ({"top_k": 5}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.8}):
        sampling = Sampling(0.8, 12, kept_tokens=KeptTokens(**cut))
        ours, theirs = (engine(wide_policy).generate(REQUESTS, sampling) for engine in (Engine, TorchEngine))
        for one, other in ((g, h) for a, b in zip(ours, theirs, strict=True) for g, h in zip(a, b, strict=True)):
            assert (one.token_ids, one.finish, one.kept) == (other.token_ids, other.finish, other.kept)
            assert len(one.kept) == len(one.token_ids)
            assert all(one.kept)
        batch = single_turn(PROMPTS, ours)
        lp = statistics_of(batch, wide_policy.model, ("lp",), max_tokens=256, temperature=0.8)["lp"]
        assert float((lp - batch.sampled("lp_behav")).abs().max()) < 1e-5
