"""Continuous batching in the torch engine: samples start and end at any time and run in one batch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learning.generation.engines.slots import Slots, compute_slot_logits, prefill
from learning.generation.engines.token_sampling import pick


@dataclass(frozen=True)
class PromptRequest:
    """A prompt and the settings that all its samples share."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0
    alternatives: int | None = None
    """Most likely tokens to report log-probabilities of, in addition to the sampled one; None: no log-probabilities."""


@dataclass(frozen=True)
class Token:
    """One token of a sample; log-probabilities are the model's own, before temperature and top_p."""

    id: int
    logprob: float | None = None
    others: tuple[tuple[int, float], ...] = ()


@dataclass
class Sample:
    """One completion in progress."""

    request: PromptRequest
    number: int
    """Index of the sample in its request; selects its random stream."""
    owner: Any
    """State of the caller; not used by the batch."""
    count: int = 0
    last: int = 0
    over: bool = False
    """Set by the caller to end the sample."""
    stream: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        """Create its random stream."""
        key = np.array([self.request.seed, self.number], dtype=np.uint64)
        self.stream, self.last = np.random.Generator(np.random.Philox(key=key)), self.request.prompt_ids[-1]

    @property
    def position(self) -> int:
        """Return the position of its last token."""
        return len(self.request.prompt_ids) - 1 + self.count


class Batch:
    """At most `max_slots` samples of at most `max_length` tokens each, prompt and completion."""

    def __init__(self, model: torch.nn.Module, max_slots: int, max_length: int):
        self.model, self.max_slots, self.max_length = model, max_slots, max_length
        self.device = next(model.parameters()).device
        self.slots = Slots(model, max_slots, max_length)
        self.samples: list[Sample] = []

    @property
    def room(self) -> int:
        """Return how many samples can be admitted now."""
        return self.max_slots - len(self.samples)

    def admit(self, request: PromptRequest, samples: list[Sample]) -> None:
        """Start samples of one prompt, at most `room`; the prompt is computed once."""
        rows = self._tensor(range(len(self.samples), len(self.samples) + len(samples)))
        prefix_ids = request.prompt_ids[:-1]
        prefix = prefill(self.model, self._tensor(prefix_ids)[None]) if prefix_ids else None
        self.slots.place(rows, prefix, torch.zeros_like(rows), torch.full_like(rows, len(prefix_ids)))
        self.samples += samples

    def step(self) -> list[tuple[Sample, Token]]:
        """Return one token for every sample."""
        position_B = self._tensor([sample.position for sample in self.samples])
        token_B = self._tensor([sample.last for sample in self.samples])
        logits_BV = compute_slot_logits(self.model, self.slots, token_B, position_B)
        tokens = self._sample(logits_BV)
        step_tokens = self._with_logprobs(tokens, logits_BV)
        for sample, token in zip(self.samples, tokens, strict=True):
            sample.last, sample.count = token, sample.count + 1
        return list(zip(self.samples, step_tokens, strict=True))

    def leave(self) -> None:
        """Remove finished samples and close the gaps."""
        stay = [b for b, sample in enumerate(self.samples) if not sample.over]
        holes = [b for b, sample in enumerate(self.samples[: len(stay)]) if sample.over]
        movers = [b for b in stay if b >= len(stay)]
        if holes:
            self.slots.move(self._tensor(movers), self._tensor(holes))
        remaining = self.samples[: len(stay)]
        for hole, mover in zip(holes, movers, strict=True):
            remaining[hole] = self.samples[mover]
        self.samples = remaining

    def _sample(self, logits_BV: Tensor) -> list[int]:
        temperatures = [sample.request.temperature for sample in self.samples]
        drawn = torch.tensor([[sample.stream.random()] for sample in self.samples], dtype=torch.float64)
        nucleus = any(sample.request.top_p < 1 for sample in self.samples)
        return pick(
            logits_BV,
            torch.tensor(temperatures, dtype=torch.float32, device=self.device),
            drawn.to(self.device) if max(temperatures) > 0 else None,
            greedy=min(temperatures) <= 0,
            place_B=logits_BV.new_zeros(0),
            processor=self._nucleus if nucleus else None,
        ).token_B.tolist()

    def _nucleus(self, logits_BV: Tensor, place_B: Tensor) -> Tensor:
        """Keep the fewest tokens whose probabilities reach top_p (Holtzman et al. 2020), never fewer than one."""
        top_p_B1 = torch.tensor([[s.request.top_p] for s in self.samples], dtype=torch.float32, device=self.device)
        sorted_BV, order_BV = logits_BV.sort(-1, descending=True)
        share_BV = sorted_BV.softmax(-1)
        before_BV = share_BV.cumsum(-1) - share_BV
        cut_BV = ((before_BV >= top_p_B1) & (top_p_B1 < 1)).index_fill(1, self._tensor([0]), False)
        return logits_BV.masked_fill(torch.zeros_like(cut_BV).scatter(1, order_BV, cut_BV), float("-inf"))

    def _with_logprobs(self, tokens: list[int], logits_BV: Tensor) -> list[Token]:
        alternatives = [sample.request.alternatives for sample in self.samples]
        if all(each is None for each in alternatives):
            return [Token(token) for token in tokens]
        logp_BV = logits_BV.float().log_softmax(-1)
        own_B = logp_BV.gather(1, self._tensor(tokens)[:, None])[:, 0].tolist()
        most = min(max(each or 0 for each in alternatives), logp_BV.shape[1])
        best = logp_BV.topk(most)
        values, ids = best.values.tolist(), best.indices.tolist()
        return [
            Token(token, own, tuple(zip(ids[b][:number], values[b][:number], strict=True)))
            if (number := alternatives[b]) is not None
            else Token(token)
            for b, (token, own) in enumerate(zip(tokens, own_B, strict=True))
        ]

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self.device)
