"""Decoding with a model's own cache, for architectures whose attention does not fit slots.

Requests whose known tokens are equally many are decoded together by transformers' `generate`, so that no row is padded
and hybrids, windows and state-space models keep whatever cache they have. Tokens come from our sampler and streams, so
completions are those that slots would give. In flight, where completions come and go, nothing is cached: each token
costs a forward over all that came before it.

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
from learning.models.packed import is_close
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import StepError


def generate_with_own_cache(
    model: Any, requests: Sequence[Request], sampling: Sampling, ends: tuple[int, ...], max_rows: int
) -> list[list[Generation]]:
    """Return `n` generations of each request; what is left when `target` is reached is suspended without a token.

    Raises StepError for a model whose cache is wrong in the installed transformers.
    """
    require_exact_cache(model)
    made: list[list[Generation]] = [[Generation([], [], "suspended") for _ in range(r.n)] for r in requests]
    wanted = [(number, place) for number, request in enumerate(requests) for place in range(request.n)]
    wanted.sort(key=lambda one: _count_known(requests[one[0]]))
    ended = 0
    while wanted and (sampling.target is None or ended < sampling.target):
        length = _count_known(requests[wanted[0][0]])
        batch = [one for one in wanted[:max_rows] if _count_known(requests[one[0]]) == length]
        wanted = wanted[len(batch) :]
        rows = [Row(requests[number], place, sampling, ends) for number, place in batch]
        _decode(model, rows, sampling)
        for (number, place), row in zip(batch, rows, strict=True):
            made[number][place] = row.generation(sampling)
            ended += made[number][place].finish != "suspended"
    return made


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
        self.stopped = False

    @property
    def done(self) -> bool:
        """Whether it has ended or reached its limit."""
        return self.stopped or len(self.completion) >= self.limit

    def take(self, token: int, logprob: float, entropy: float | None) -> None:
        """Add a token, unless it has ended."""
        if self.done:
            return
        self.completion.append(token)
        self.logprobs.append(logprob)
        self.entropies += [] if entropy is None else [entropy]
        self.stopped = any(tuple(self.completion[-len(end) :]) == end for end in self.ends)

    def generation(self, sampling: Sampling) -> Generation:
        """Return what was sampled in this call."""
        full = len(self.completion) == sampling.max_new_tokens
        finish = "stop" if self.stopped else "length" if full else "suspended"
        return Generation(self.completion[self.begun :], self.logprobs, finish, self.entropies)


class _Draw(LogitsProcessor):
    """Puts the next tokens of our sampler in the place of the scores."""

    def __init__(self, rows: list[Row], sampling: Sampling, device: torch.device) -> None:
        self.rows, self.sampling = rows, sampling
        self.heat_B = torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
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
            entropy=sampling.entropy,
        )
        entropies = [None] * len(rows) if picked.entropy_B is None else picked.entropy_B.tolist()
        for row, *token in zip(rows, picked.token_B.tolist(), picked.logprob_B.tolist(), entropies, strict=True):
            row.take(*token)
        return torch.full_like(scores, -torch.inf).scatter(1, picked.token_B[:, None], 0.0)


class _AllDone(StoppingCriteria):
    """Ends when every row has."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        done = all(row.done for row in self.rows)
        return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)


def _decode(model: Any, rows: list[Row], sampling: Sampling) -> None:
    """Decode rows whose known tokens are equally many until all are done."""
    ids_BL = torch.tensor([row.known for row in rows], device=model.device)
    # The model's own generation settings (penalties, other samplers) would change the distribution.
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with evaluation_mode(model):
            model.generate(
                ids_BL,
                attention_mask=torch.ones_like(ids_BL),
                generation_config=GenerationConfig(
                    max_new_tokens=max(row.limit - row.begun for row in rows), do_sample=False, pad_token_id=0
                ),
                logits_processor=LogitsProcessorList([_Draw(rows, sampling, ids_BL.device)]),
                stopping_criteria=StoppingCriteriaList([_AllDone(rows)]),
            )
    finally:
        model.generation_config = own


_EXACT: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
CHECKED = 4
"""Tokens that are decoded to see whether a cache gives the model's own numbers."""


def require_exact_cache(model: Any) -> None:
    """Raise StepError for a model whose cached decoding gives other numbers than its own forward; tried once."""
    if model not in _EXACT:
        plain = Sampling(0.0, max_new_tokens=CHECKED)
        size = model.get_input_embeddings().weight.shape[0]
        prompts = [[(3 + 5 * i + 11 * row) % size for i in range(9)] for row in range(2)]
        rows = [Row(Request(prompt, 1, seed=0), 0, plain, ends=()) for prompt in prompts]
        _decode(model, rows, plain)
        ids_BL = torch.tensor([row.known + row.completion for row in rows], device=model.device)
        with evaluation_mode(model):
            logits_BLV = model(input_ids=ids_BL, use_cache=False).logits[:, -CHECKED - 1 : -1]
        truth_BL = logits_BLV.float().log_softmax(-1).gather(2, ids_BL[:, -CHECKED:, None])[..., 0]
        _EXACT[model] = is_close(torch.tensor([row.logprobs for row in rows]), truth_BL.cpu())
    if not _EXACT[model]:
        raise StepError(
            f"engine torch: decoding a {model.config.model_type} model with its cache gives other numbers than its own "
            "forward in the installed transformers; sample it with another engine"
        )


class UncachedFlight(InFlight):
    """Flight without a cache: every step computes all tokens of all rows again."""

    mode = staticmethod(evaluation_mode)

    def _prefill(self, wanted: list[int]) -> None:
        """Keep nothing of prompts."""
        self.prefilled.update({key: Prefilled(None, 0) for key in wanted})

    def _next_logits(self) -> Tensor:
        rows = []
        for seat, count in zip(self.sample_B.tolist(), self.count_B.tolist(), strict=True):
            prompt = self.requests[self.seated[seat].key].prompt_ids if seat != self.void else [0]
            rows.append(prompt + self.tokens_NK[seat, :count].tolist())
        longest = max(map(len, rows))
        ids_BL = self._tensor([row + [0] * (longest - len(row)) for row in rows])
        real_BL = self._tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        logits_BLV = self.model(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits
        return logits_BLV[torch.arange(len(rows), device=ids_BL.device), self._tensor([len(r) - 1 for r in rows])]
