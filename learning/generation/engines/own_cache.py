"""Decoding with a model's own cache, for architectures whose cache does not fit slots.

Requests with equal numbers of known tokens are decoded together by transformers' `generate`, so that no row is padded
and the model makes its own cache. Tokens come from this package's sampler and random streams, so completions equal
those over slots. Where the cache gives other numbers than the model's own forward, and in stepwise generation, nothing
is cached: each token costs a forward over all tokens before it.

Shapes: B rows, L longest row, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from learning.generation.engines.flight import InFlight
from learning.generation.engines.running import Prefilled
from learning.generation.engines.token_sampling import pick
from learning.models.forwards import evaluation_mode
from learning.models.packed import UNFIT, choose_forward
from learning.models.padded import compute_logits, get_body
from learning.models.reduced import LOW, in_float32, is_close
from learning.samples.engine_protocol import Generation, Request, Sampling, reads_contexts
from schemas.errors import StepError


def generate_with_own_cache(
    model: Any, requests: Sequence[Request], sampling: Sampling, ends: tuple[int, ...], max_rows: int
) -> list[list[Generation]]:
    """Return `n` generations of each request; those left when `target` is reached are suspended without a token.

    Raise StepError if decoding gives other numbers than the model's own forward, with and without a cache.
    """
    cached = has_exact_cache(model)
    generations: list[list[Generation]] = [[Generation([], [], "suspended") for _ in range(r.n)] for r in requests]
    waiting = [(number, place) for number, request in enumerate(requests) for place in range(request.n)]
    waiting.sort(key=lambda sample: _count_known(requests[sample[0]]))
    ended = 0
    while waiting and (sampling.target is None or ended < sampling.target):
        length = _count_known(requests[waiting[0][0]])
        batch = [sample for sample in waiting[:max_rows] if _count_known(requests[sample[0]]) == length]
        waiting = waiting[len(batch) :]
        rows = [Row(requests[number], place, sampling, ends) for number, place in batch]
        _decode(model, rows, sampling, cached)
        for (number, place), row in zip(batch, rows, strict=True):
            generations[number][place] = row.generation(sampling)
            ended += generations[number][place].finish != "suspended"
    return generations


def _count_known(request: Request) -> int:
    return len(request.prompt_ids) + len(request.begun)


class Row:
    """One completion being decoded."""

    def __init__(self, request: Request, place: int, sampling: Sampling, ends: tuple[int, ...]) -> None:
        most = sampling.max_new_tokens
        limit = most if request.limit is None else min(most, request.limit)
        self.limit = limit if sampling.window is None else min(limit, len(request.begun) + sampling.window)
        self.temperature = sampling.temperature if request.temperature is None else request.temperature
        self.known = [*request.prompt_ids, *request.begun]
        self.completion = list(request.begun)
        self.begun = len(request.begun)
        key = np.array((request.seed, request.first + place), dtype=np.uint64)
        self.uniform = np.random.Generator(np.random.Philox(key=key)).random(most)
        self.ends = [*((token,) for token in ends), *sampling.stop]
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self.kept: list[str] = []
        self.stopped = False

    @property
    def done(self) -> bool:
        """Return whether it has ended or reached its limit."""
        return self.stopped or len(self.completion) >= self.limit

    @property
    def context(self) -> list[int]:
        """Return the tokens of prompt and completion so far."""
        return [*self.known, *self.completion[self.begun :]]

    def take(self, token: int, logprob: float, entropy: float | None, kept: str | None) -> None:
        """Add a token, unless it has ended."""
        if self.done:
            return
        self.completion.append(token)
        self.logprobs.append(logprob)
        self.entropies += [] if entropy is None else [entropy]
        self.kept += [] if kept is None else [kept]
        self.stopped = any(tuple(self.completion[-len(end) :]) == end for end in self.ends)

    def generation(self, sampling: Sampling) -> Generation:
        """Return the tokens sampled in this call."""
        full = len(self.completion) == sampling.max_new_tokens
        finish = "stop" if self.stopped else "length" if full else "suspended"
        return Generation(self.completion[self.begun :], self.logprobs, finish, self.entropies, kept=self.kept)


class _Draw(LogitsProcessor):
    """Replaces the scores so that `generate` takes the tokens of this package's sampler."""

    def __init__(self, rows: list[Row], sampling: Sampling, device: torch.device) -> None:
        self.rows, self.sampling = rows, sampling
        self.heat_B = torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        rows, sampling = self.rows, self.sampling
        counts = [min(len(row.completion), sampling.max_new_tokens - 1) for row in rows]
        drawn = [[row.uniform[count]] for row, count in zip(rows, counts, strict=True)]
        uniform_B1 = torch.tensor(drawn, dtype=torch.float64, device=scores.device)
        picked = pick(
            scores,
            self.heat_B,
            uniform_B1 if bool((self.heat_B > 0).any()) else None,
            greedy=bool((self.heat_B <= 0).any()),
            place_B=torch.tensor(counts, device=scores.device),
            processor=sampling.processor,
            contexts_B=[row.context for row in rows] if reads_contexts(sampling.processor) else None,
            entropy=sampling.entropy,
            kept_tokens=sampling.kept_tokens,
        )
        tokens, logprobs = picked.token_B.tolist(), picked.logprob_B.tolist()
        entropies = [None] * len(rows) if picked.entropy_B is None else picked.entropy_B.tolist()
        kept = picked.kept or [None] * len(rows)
        for row, token, logprob, entropy, record in zip(rows, tokens, logprobs, entropies, kept, strict=True):
            row.take(token, logprob, entropy, record)
        return torch.full_like(scores, -torch.inf).scatter(1, picked.token_B[:, None], 0.0)


class _AllDone(StoppingCriteria):
    """Stops when every row is done."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        done = all(row.done for row in self.rows)
        return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)


def _decode(model: Any, rows: list[Row], sampling: Sampling, cached: bool) -> None:
    """Decode rows with equal numbers of known tokens until all are done, with the model's own cache or none."""
    ids_BL = torch.tensor([row.known for row in rows], device=model.device)
    if not cached:
        return _decode_uncached(model, ids_BL, rows, sampling)
    # The model's own generation settings (penalties, other samplers) would change the distribution.
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with evaluation_mode(model):
            model.generate(
                ids_BL,
                attention_mask=torch.ones_like(ids_BL),
                generation_config=GenerationConfig(
                    max_new_tokens=max(row.limit - row.begun for row in rows),
                    do_sample=False,
                    pad_token_id=0,
                ),
                logits_processor=LogitsProcessorList([_Draw(rows, sampling, ids_BL.device)]),
                stopping_criteria=StoppingCriteriaList([_AllDone(rows)]),
            )
    finally:
        model.generation_config = own


def _decode_uncached(model: Any, ids_BL: Tensor, rows: list[Row], sampling: Sampling) -> None:
    """Decode rows with a forward over all their tokens for each token; ids_BL are those that are known."""
    draw = _Draw(rows, sampling, ids_BL.device)
    with evaluation_mode(model):
        while not all(row.done for row in rows):
            out = model(input_ids=ids_BL, attention_mask=torch.ones_like(ids_BL), use_cache=False)
            token_B1 = draw(ids_BL, out.logits[:, -1].float()).argmax(1, keepdim=True)
            ids_BL = torch.cat([ids_BL, token_B1], 1)


_EXACT: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
CHECKED = 4
"""Tokens that are decoded to check that a cache gives the numbers of the model's own forward."""


def has_exact_cache(model: Any) -> bool:
    """Return whether a model's cached decoding agrees with its own forward; checked once per model.

    Raise StepError if decoding without a cache does not either.
    """
    if model not in _EXACT:
        exact = _compare_decoding(model, cached=True)
        if not exact and not _compare_decoding(model, cached=False):
            raise StepError(
                f"engine torch: decoding a {model.config.model_type} model token by token fails or gives other numbers "
                "than its own forward in the installed transformers, with and without a cache; sample it otherwise"
            )
        _EXACT[model] = exact
    return _EXACT[model]


def _compare_decoding(model: Any, *, cached: bool) -> bool:
    """Return whether decoding is exact; what computes in bfloat16 is compared in float32 first."""
    with in_float32(model) as rounds:
        exact = _is_exact(model, cached=cached)
    return exact and (not rounds or _is_exact(model, cached=cached, proven=True))


def _is_exact(model: Any, *, cached: bool, proven: bool = False) -> bool:
    """Return whether decoding a few tokens works and gives the log-probabilities of the model's own forward."""
    plain = Sampling(0.0, max_new_tokens=CHECKED)
    size = model.get_input_embeddings().weight.shape[0]
    prompts = [[(3 + 5 * i + 11 * row) % size for i in range(9)] for row in range(2)]
    rows = [Row(Request(prompt, 1, seed=0), 0, plain, ends=()) for prompt in prompts]
    try:
        _decode(model, rows, plain, cached)
    except UNFIT:
        return False
    ids_BL = torch.tensor([row.known + row.completion for row in rows], device=model.device)
    with evaluation_mode(model):
        logits_BLV = model(input_ids=ids_BL, use_cache=False).logits[:, -CHECKED - 1 : -1]
    truth_BL = logits_BLV.float().log_softmax(-1).gather(2, ids_BL[:, -CHECKED:, None])[..., 0]
    mixed = logits_BLV.dtype in LOW
    return is_close(torch.tensor([row.logprobs for row in rows]), truth_BL.cpu(), mixed=mixed, proven=proven)


def describe_missing_cache(model: Any) -> dict[str, str]:
    """Return the note `decoding` of a model that was decoded without its cache; empty for any other."""
    if _EXACT.get(model, True):
        return {}
    why = "its cache in the installed transformers fails or gives other numbers than its own forward"
    return {"decoding": f"no cache, a forward over all tokens for each ({model.config.model_type}: {why})"}


class UncachedFlight(InFlight):
    """Stepwise generation without a cache: every step computes all tokens of all rows again."""

    mode = staticmethod(evaluation_mode)
    caches = False

    def _prefill(self, numbers: list[int]) -> None:
        # Nothing is cached, so prompts have no prefix.
        self.prefilled.update({key: Prefilled(None, 0) for key in numbers})

    def _next_logits(self) -> Tensor:
        rows = []
        for seat, count in zip(self.sample_B.tolist(), self.count_B.tolist(), strict=True):
            prompt = self.requests[self.seated[seat].key].prompt_ids if seat != self.void else [0]
            rows.append(prompt + self.tokens_NK[seat, :count].tolist())
        longest = max(map(len, rows))
        ids_BL = self._tensor([row + [0] * (longest - len(row)) for row in rows])
        real_BL = self._tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        at_B = torch.arange(len(rows), device=ids_BL.device), self._tensor([len(row) - 1 for row in rows])
        given = {"input_ids": ids_BL, "attention_mask": real_BL, "use_cache": False}
        if choose_forward(self.model).head == "own":
            return self.model(**given).logits[at_B]
        return compute_logits(self.model, get_body(self.model)(**given)[0][at_B])
