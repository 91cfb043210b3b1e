"""Replies of a language model as a judge, and log-probabilities of given replies.

The judge is a `Sampler`: the stage's own, with the current policy, or a guest, with a policy that another stage made.
Equal questions get equal replies, and asking does not advance the random streams of the stage.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from learning.data.chat import decode, encode_completion
from learning.generation.engines.torch import Engine
from learning.generation.replicas.engine_loading import make_engine
from learning.generation.services.rescoring import compute_likelihoods
from learning.models.packed import pack, packed_logprobs
from learning.models.policy import load_policy
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import Messages
from learning.sampling.sampler import Sampler
from schemas.use import EngineUse

TOKENS = 16_384
"""Tokens per forward."""


def guest(folder: Path | str, engine: EngineUse | None = None) -> Sampler:
    """Return a sampler of a policy that another stage made; it is cached, because its artifact never changes."""
    return _guest(str(folder), engine.model_dump_json() if engine else "")


@lru_cache(maxsize=8)
def _guest(folder: str, engine: str) -> Sampler:
    policy = load_policy(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")
    policy.model.requires_grad_(False)
    made = make_engine(EngineUse.model_validate_json(engine), policy) if engine else Engine(policy)
    return Sampler(made, policy, Sampling(), 0, 0)


def replies(
    judge: Sampler, questions: Sequence[Messages], *, n: int, sampling: Sampling, rng: np.random.Generator
) -> list[list[str] | None]:
    """Return `n` replies to every question; None where the question leaves no room for one."""
    seed = int(rng.integers(2**62))
    ids = [judge.encode(messages) for messages in questions]
    fits = [len(some) + sampling.max_new_tokens <= judge.policy.max_length for some in ids]
    prompts = list(dict.fromkeys(tuple(some) for some, fit in zip(ids, fits, strict=True) if fit))
    requests = [Request(list(some), n, _seed(seed, some)) for some in prompts]
    made = judge.engine.generate(requests, sampling) if requests else []
    texts = [[decode(judge.policy.tokenizer, g.token_ids) for g in group] for group in made]
    by_question = dict(zip(prompts, texts, strict=True))
    return [by_question[tuple(some)] if fit else None for some, fit in zip(ids, fits, strict=True)]


@torch.no_grad()
def word_logprobs(judge: Sampler, questions: Sequence[Messages], words: Sequence[str]) -> list[list[float] | None]:
    """Return log-probabilities of `words` as replies, at temperature 1; None where a question is too long."""
    tokenizer = judge.policy.tokenizer
    answers = [encode_completion(tokenizer, [{"role": "assistant", "content": word}]) for word in words]
    results: list[list[float] | None] = [None] * len(questions)
    waiting: list[tuple[int, list[int]]] = []
    size, extra = 0, sum(len(ids) for ids in answers)
    for i, messages in enumerate(questions):
        ids = judge.encode(messages)
        if len(ids) + max(len(some) for some in answers) > judge.policy.max_length:
            continue
        if size + len(ids) + extra > TOKENS:
            _read(judge, waiting, answers, results)
            waiting, size = [], 0
        waiting.append((i, ids))
        size += len(ids) + extra
    _read(judge, waiting, answers, results)
    return results


def _read(
    judge: Sampler, waiting: list[tuple[int, list[int]]], answers: list[list[int]], results: list[list[float] | None]
) -> None:
    if not waiting:
        return
    width = 1 + len(answers)
    segments = [ids for _, prompt in waiting for ids in (prompt, *answers)]
    parents = [p for q in range(len(waiting)) for p in (-1, *[q * width] * len(answers))]
    packed = pack(segments, parents).to(judge.policy.model.device)
    lp_M, _ = packed_logprobs(judge.policy.model, packed)
    sums = [float(part.double().sum()) for part in lp_M.split([len(ids) for ids in segments])]
    for q, (place, _) in enumerate(waiting):
        results[place] = sums[q * width + 1 : (q + 1) * width]


def logprobs(judge: Sampler, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float] | None]:
    """Return log-probabilities at temperature 1 of the second token ids of each pair; None where a pair is too long."""
    results: list[list[float] | None] = [None] * len(pairs)
    chunks: list[list[int]] = [[]]
    size = 0
    for i, (context, target) in enumerate(pairs):
        total = len(context) + len(target)
        if total > judge.policy.max_length or not context:
            continue
        if size + total > TOKENS and chunks[-1]:
            chunks.append([])
            size = 0
        chunks[-1].append(i)
        size += total
    for chunk in chunks:
        likelihoods = compute_likelihoods(judge.policy.model, [pairs[i] for i in chunk], temperature=1.0)
        for i, values in zip(chunk, likelihoods, strict=True):
            results[i] = values
    return results


def _seed(seed: int, ids: Sequence[int]) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {list(ids)}".encode()).digest()[:8], "big") >> 2
