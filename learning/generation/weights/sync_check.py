"""Check that an engine has the policy's weights, by the log-probabilities of the tokens that it samples."""

import math
from collections.abc import Sequence

import torch

from learning.models.packed import pack, packed_logprobs
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol, Request, Sampling

SEED = 20_240_601


def measure_logprob_gap(
    engine: EngineProtocol, policy: Policy, prompts: Sequence[list[int]], *, tokens: int = 8
) -> float:
    """Return the largest difference (nats) between the engine's and the policy's log-probability of a sampled token.

    One completion of `tokens` tokens is sampled after each prompt (token ids). 0 if nothing was sampled; infinity if
    only one of the two is finite.
    """
    sampled = engine.generate([Request(list(p), 1, SEED + i) for i, p in enumerate(prompts)], Sampling(1.0, tokens))
    pairs = [(list(p), g) for p, (g,) in zip(prompts, sampled, strict=True) if g.token_ids]
    worst = 0.0
    for prompt, made in pairs:
        for reported, own in zip(made.logprobs, _compute_logprobs(policy, prompt, made.token_ids), strict=True):
            difference = abs(reported - own)
            if math.isnan(difference):
                difference = 0.0 if math.isnan(reported) and math.isnan(own) else math.inf
            worst = max(worst, difference)
    return worst


@torch.no_grad()
def _compute_logprobs(policy: Policy, prompt: list[int], completion: list[int]) -> list[float]:
    packed = pack([prompt, completion], [-1, 0]).to(policy.model.device)
    lp_M, _ = packed_logprobs(policy.model, packed, temperature=1.0)
    return lp_M.double().tolist()[packed.cu_seqlens_S1.tolist()[1] :]
