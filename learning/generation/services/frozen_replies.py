"""Replies of a policy that another stage made, sampled without any state: equal questions get equal replies."""

import hashlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from learning.data.chat import decode, encode_prompt
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy, load_policy
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import Messages

LOCK = threading.Lock()
"""Engines sample one call at a time, and environments ask from several threads."""


def sample_replies(
    folder: Path | str, questions: Sequence[Messages], *, n: int, sampling: Sampling, seed: int
) -> list[list[str] | None]:
    """Return `n` replies of the policy in `folder` to every question; None where a question leaves no room for one."""
    with LOCK:
        policy, engine = _load(str(folder))
        ids = [encode_prompt(policy.tokenizer, messages) for messages in questions]
        fits = [len(some) + sampling.max_new_tokens <= policy.max_length for some in ids]
        prompts = list(dict.fromkeys(tuple(some) for some, fit in zip(ids, fits, strict=True) if fit))
        requests = [Request(list(some), n, _make_seed(seed, some)) for some in prompts]
        made = engine.generate(requests, sampling) if requests else []
        texts = [[decode(policy.tokenizer, one.token_ids) for one in group] for group in made]
    by_prompt = dict(zip(prompts, texts, strict=True))
    return [by_prompt[tuple(some)] if fit else None for some, fit in zip(ids, fits, strict=True)]


@lru_cache(maxsize=4)
def _load(folder: str) -> tuple[Policy, Engine]:
    policy = load_policy(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")
    policy.model.requires_grad_(False)
    return policy, Engine(policy)


def _make_seed(seed: int, ids: Sequence[int]) -> int:
    """Return a random stream for a question, whatever else is asked."""
    return int.from_bytes(hashlib.sha256(f"{seed} {list(ids)}".encode()).digest()[:7], "big")
