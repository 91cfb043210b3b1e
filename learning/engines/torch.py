"""Engine `torch`: samples with the policy itself, in this process; its log-probabilities equal the trainer's.

A prompt is computed once per request; its keys and values are copied to the slots of its samples. A slot whose sample
has ended is refilled with the next one, so the batch stays full until the queue is empty and shrinks then.
Sample i of a request draws its numbers from Philox with the key (seed, i): nothing else in the batch matters to it.

Shapes: B slots in use, N samples, K new tokens at most, V vocabulary, X slots to fill.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.engines.protocol import Generation, Request, Sampling
from learning.engines.slots import Prefix, Slots, slot_mode
from learning.policy import Policy
from schemas.errors import StepError

PREFILL_TOKENS = 16384
"""Tokens of right-padded prompts in one forward pass."""
FIXED_POINT = 2.0**52
"""Probability 1 as a whole number."""
SLACK = 8
"""One slot in so many may lie empty before slots are refilled or closed up."""


class Engine:
    """Continuous batching over a decoder-only model of transformers.

    `max_slots` is how many samples run at once. Nothing computed from weights outlives a call of `generate`.
    """

    def __init__(self, policy: Policy, *, max_slots: Annotated[int, Field(ge=1)] = 256) -> None:
        self.policy = policy
        self.max_slots = max_slots
        self.version = 0

    def sync(self, version: int) -> None:
        """The weights are those of the policy itself, and no prefix is kept: only the version is new."""
        self.version = version

    @torch.inference_mode()
    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """`n` generations of each request. Raises StepError for an empty prompt or one that leaves too little room."""
        self._check(requests, sampling)
        if not requests:
            return []
        model = self.policy.model
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        with slot_mode(model):
            batch = Running(model, requests, sampling, self.policy.tokenizer.eos_token_id, self.max_slots)
            while batch.fill():
                batch.advance()
        return batch.results()

    def _check(self, requests: list[Request], sampling: Sampling) -> None:
        room = self.policy.max_length - sampling.max_new_tokens
        for request in requests:
            if not 1 <= len(request.prompt_ids) <= room:
                raise StepError(
                    f"engine torch: a prompt of {len(request.prompt_ids)} tokens and a completion of up to "
                    f"{sampling.max_new_tokens} do not fit the model's {self.policy.max_length}; "
                    "lower max_completion_length or drop long prompts (and empty ones) in a curate stage"
                )


def draw(logp_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """Tokens (B,) by inverting the distribution at numbers in [0, 1); never one of probability 0.

    The sums are of whole numbers, so they do not depend on the order in which a device adds.
    """
    cdf_BV = (logp_BV.double().exp() * FIXED_POINT).long().cumsum(-1)
    total_B1 = cdf_BV[:, -1:]
    target_B1 = torch.minimum((uniform_B1 * total_B1).long(), total_B1 - 1)
    # Broken weights give no distribution: any token will do, its log-probability says what happened.
    return torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0].clamp(max=logp_BV.shape[1] - 1)


@dataclass
class Prefilled:
    """Where the keys and values of a request's prompt lie: a row of a batch, or nowhere for a prompt of one token."""

    prefix: Prefix | None
    row: int


class Running:
    """One call of `generate`: the samples, the queue, the slots.

    Row b of the slots holds sample `sample_B[b]`; a row with sample N lies empty and computes into the void.
    """

    def __init__(self, model: torch.nn.Module, requests: list[Request], sampling: Sampling, eos: int, max_slots: int):
        self.model, self.requests, self.sampling, self.eos = model, requests, sampling, eos
        self.device = next(model.parameters()).device
        self.queue = [(r, i) for r, request in enumerate(requests) for i in range(request.n)]
        self.next = 0
        self.prefilled: dict[int, Prefilled] = {}
        total, longest = len(self.queue), max(len(r.prompt_ids) for r in requests)
        self.num_slots = min(max_slots, total)
        self.slots = Slots(self.num_slots, longest + sampling.max_new_tokens, self.device)
        self.tokens_NK = self._zeros(total + 1, sampling.max_new_tokens)
        self.logprobs_NK = self._zeros(total + 1, sampling.max_new_tokens, dtype=torch.float32)
        self.uniform_SK = self._zeros(self.num_slots, sampling.max_new_tokens, dtype=torch.float64)
        self.length_N = self._zeros(total + 1)
        self.sample_B = self.token_B = self.position_B = self.count_B = self._zeros(0)
        self.empty: list[int] = []

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def fill(self) -> bool:
        """Give empty slots to waiting samples, or close up when none waits; False when all is done."""
        waiting, used = len(self.queue) - self.next, len(self.sample_B)
        free = len(self.empty) + self.num_slots - used
        if waiting and free * SLACK >= self.num_slots:
            self._admit(min(waiting, free))
        elif not waiting and len(self.empty) * SLACK >= used:
            self._close_up()
        return len(self.sample_B) > 0

    def _admit(self, number: int) -> None:
        """Start the next samples of the queue in empty slots, then in unused ones."""
        chosen = self.queue[self.next : self.next + number]
        reused, self.empty = self.empty[:number], self.empty[number:]
        slots = reused + list(range(len(self.sample_B), len(self.sample_B) + number - len(reused)))
        self._prefill([r for r in dict.fromkeys(r for r, _ in chosen) if r not in self.prefilled])
        grown = self._zeros(number - len(reused))
        for name in ("sample_B", "token_B", "position_B", "count_B"):
            setattr(self, name, torch.cat([getattr(self, name), grown]))
        at_X, prompts = self._tensor(slots), [self.requests[r].prompt_ids for r, _ in chosen]
        self.sample_B[at_X] = torch.arange(self.next, self.next + number, device=self.device)
        self.token_B[at_X] = self._tensor([ids[-1] for ids in prompts])
        self.position_B[at_X] = self._tensor([len(ids) - 1 for ids in prompts])
        self.count_B[at_X] = 0
        if self.sampling.temperature > 0:
            self.uniform_SK[at_X] = self._uniforms(chosen)
        self._place(chosen, slots)
        self.next += number
        unfinished = {r for r, _ in self.queue[self.next : self.next + 1]}
        self.prefilled = {r: p for r, p in self.prefilled.items() if r in unfinished}

    def _uniforms(self, chosen: list[tuple[int, int]]) -> Tensor:
        """Numbers in [0, 1) for every token of the samples (X, K); a sample's first ones do not depend on K."""
        keys = [np.array([self.requests[r].seed, i], dtype=np.uint64) for r, i in chosen]
        drawn = [np.random.Generator(np.random.Philox(key=key)).random(self.sampling.max_new_tokens) for key in keys]
        return torch.from_numpy(np.stack(drawn)).to(self.device)

    def _prefill(self, wanted: list[int]) -> None:
        """Compute the prompts of requests but for their last token, which begins every sample."""
        ordered = sorted(wanted, key=lambda r: len(self.requests[r].prompt_ids))
        while ordered:
            width = len(self.requests[ordered[0]].prompt_ids) - 1
            take = 1
            if width == 0:
                self.prefilled[ordered.pop(0)] = Prefilled(None, 0)
                continue
            while take < len(ordered) and (take + 1) * len(self.requests[ordered[take]].prompt_ids) <= PREFILL_TOKENS:
                take += 1
            group, ordered = ordered[:take], ordered[take:]
            prompts = [self.requests[r].prompt_ids[:-1] for r in group]
            width = len(prompts[-1])
            ids = self._tensor([ids + [0] * (width - len(ids)) for ids in prompts])
            prefix = Prefix()
            positions = torch.arange(width, device=self.device)[None]
            self.model.base_model(input_ids=ids, position_ids=positions, past_key_values=prefix, use_cache=True)
            self.prefilled.update({r: Prefilled(prefix, row) for row, r in enumerate(group)})

    def _place(self, chosen: list[tuple[int, int]], slots: list[int]) -> None:
        """Copy the prompts' keys and values to the slots, one prefix at a time."""
        groups: dict[int, list[int]] = {}
        for x, (r, _) in enumerate(chosen):
            groups.setdefault(id(self.prefilled[r].prefix), []).append(x)
        for members in groups.values():
            found = [self.prefilled[chosen[x][0]] for x in members]
            lengths = [len(self.requests[chosen[x][0]].prompt_ids) - 1 for x in members]
            at_X, source_X = self._tensor([slots[x] for x in members]), self._tensor([f.row for f in found])
            self.slots.place(at_X, found[0].prefix, source_X, self._tensor(lengths))

    def _close_up(self) -> None:
        """Move the last rows into the empty ones."""
        empty, used = set(self.empty), len(self.sample_B)
        left = used - len(empty)
        to_X = self._tensor([b for b in range(left) if b in empty])
        from_X = self._tensor([b for b in range(left, used) if b not in empty])
        if len(to_X):
            self.slots.move(from_X, to_X)
            self.uniform_SK[to_X] = self.uniform_SK[from_X]
        for name in ("sample_B", "token_B", "position_B", "count_B"):
            rows_B = getattr(self, name)
            rows_B[to_X] = rows_B[from_X]
            setattr(self, name, rows_B[:left])
        self.empty = []

    def advance(self) -> None:
        """One token for every slot."""
        bias = self.slots.aim(self.position_B)
        logits_BV = self.model(
            input_ids=self.token_B[:, None],
            position_ids=self.position_B[:, None],
            past_key_values=self.slots,
            use_cache=True,
            slot_bias=bias,
        ).logits[:, -1]
        self.token_B, logprob_B = self._pick(logits_BV)
        self.tokens_NK[self.sample_B, self.count_B] = self.token_B
        self.logprobs_NK[self.sample_B, self.count_B] = logprob_B
        live_B = self.sample_B < len(self.queue)
        self.count_B = self.count_B + live_B
        self.position_B = self.position_B + live_B
        ended_B = live_B & ((self.token_B == self.eos) | (self.count_B == self.sampling.max_new_tokens))
        if ended_B.any():
            self.length_N[self.sample_B[ended_B]] = self.count_B[ended_B]
            self.sample_B[ended_B] = len(self.queue)
            self.count_B[ended_B] = 0
            self.position_B[ended_B] = 0
            self.empty += ended_B.nonzero()[:, 0].tolist()

    def _pick(self, logits_BV: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens and their log-probabilities under the distribution sampled from."""
        temperature = self.sampling.temperature
        logits_BV = logits_BV.float()
        logp_BV = (logits_BV / temperature if temperature > 0 else logits_BV).log_softmax(-1)
        if temperature > 0:
            uniform_B1 = self.uniform_SK[: len(logits_BV)].gather(1, self.count_B[:, None])
            token_B = draw(logp_BV, uniform_B1)
        else:
            token_B = logits_BV.argmax(-1)
        return token_B, logp_BV.gather(1, token_B[:, None])[:, 0]

    def results(self) -> list[list[Generation]]:
        """The samples, by request."""
        tokens, logprobs, lengths = self.tokens_NK.tolist(), self.logprobs_NK.tolist(), self.length_N.tolist()
        made: list[list[Generation]] = [[] for _ in self.requests]
        for sample, (r, _) in enumerate(self.queue):
            ids = tokens[sample][: lengths[sample]]
            made[r].append(
                Generation(ids, logprobs[sample][: lengths[sample]], "stop" if ids[-1] == self.eos else "length")
            )
        return made

    def _tensor(self, values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
