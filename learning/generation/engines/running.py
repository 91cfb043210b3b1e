"""Decoding of the torch engine: continuous batching of samples over slots.

A prompt is computed once per request; its keys and values are copied to the slots of its samples. A slot whose sample
has ended is refilled with the next one, so the batch stays full until the queue is empty and shrinks then. A sample
draws its random numbers from Philox with the key (seed, number), so it does not depend on the rest of the batch.

Shapes: B slots in use, S slots, N samples, K tokens of a completion at most, V vocabulary, X slots to fill,
E tokens that end a completion.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from learning.generation.engines.slots import Prefix, Slots, compute_slot_logits, prefill
from learning.generation.engines.token_sampling import pick
from learning.samples.engine_protocol import Generation, Request, Sampling, reads_contexts

PREFILL_TOKENS = 16384
"""Tokens of right-padded prompts in one forward pass."""
SLACK = 8
"""Slots are refilled or compacted when one in this many is empty."""
SHARED_SCORES = 1 << 15
"""Scores of prompts, in all heads, that a decode step is spared, from which sharing prompts is faster on a CPU."""
ROWS = ("sample_B", "token_B", "position_B", "count_B")


def gains_from_sharing(model: Any, requests: list[Request], max_slots: int) -> bool:
    """Return whether attention to prompts is faster if all samples of a prompt attend to it together, on a CPU."""
    total = sum(request.n for request in requests)
    spared = sum((request.n - 1) * (len(request.prompt_ids) + len(request.begun)) for request in requests if request.n)
    heads = getattr(model.config.get_text_config(), "num_attention_heads", 1)
    return model.device.type == "cpu" and spared * heads * min(1.0, max_slots / total) >= SHARED_SCORES


@dataclass
class Prefilled:
    """The keys and values of a request's prompt: a row of a batch, or None for a prompt of one token."""

    prefix: Prefix | None
    row: int


class Decoding:
    """Slots, and the tokens, log-probabilities and entropies of the samples in them.

    Row b of the slots holds sample `sample_B[b]`, which has `count_B[b]` tokens; a row with sample `void` is empty, and
    its results are ignored. `requests` and `known` (prompt and begun tokens) are indexed by a number of the request.
    """

    requests: dict[int, Request]
    known: dict[int, list[int]]

    def __init__(
        self,
        model: torch.nn.Module,
        sampling: Sampling,
        ends: tuple[int, ...],
        samples: int,
        slots: tuple[int, int],
        rows: int,
        shares: bool = False,
    ):
        """Take the stop tokens, the initial slots with the most columns, and the maximum number of slots.

        With `shares`, columns are for the tokens after prompts only.
        """
        self.model, self.sampling, self.void = model, sampling, samples
        self.device = next(model.parameters()).device
        self.ends_E = self._tensor(list(ends))
        self.prefilled: dict[int, Prefilled] = {}
        self.num_slots, most = slots[0], sampling.max_new_tokens
        self.slots = Slots(model, *slots, shares=shares)
        self.tokens_NK = self._zeros(samples + 1, most)
        self.logprobs_NK = self._zeros(samples + 1, most, dtype=torch.float32)
        self.entropies_NK = self._zeros(samples + 1, most if sampling.entropy else 0, dtype=torch.float32)
        self.kept_NK = [[""] * (most if sampling.kept_tokens else 0) for _ in range(samples + 1)]
        self.uniform_SK = self._zeros(rows, most, dtype=torch.float64)
        self.length_N, self.stopped_N = self._zeros(samples + 1), self._zeros(samples + 1, dtype=torch.bool)
        self.limit_N = self._zeros(samples + 1) + most
        self.heat_N = self._zeros(samples + 1, dtype=torch.float32) + 1.0
        self.any_drawn = self.any_greedy = False
        self.sample_B = self.token_B = self.position_B = self.count_B = self._zeros(0)
        self.empty: list[int] = []
        self.request_of: dict[int, int] = {}
        """Number of the request of each sample that has been in a slot."""

    def _limit(self, request: Request) -> int:
        """Return the number of tokens at which a completion is suspended or ends."""
        window, most = self.sampling.window, self.sampling.max_new_tokens
        most = most if request.limit is None else min(most, request.limit)
        return most if window is None else min(most, len(request.begun) + window)

    def _temperature(self, request: Request) -> float:
        return self.sampling.temperature if request.temperature is None else request.temperature

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _tensor(self, values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _waiting(self) -> int:
        """Return the number of samples that are not in a slot yet."""
        raise NotImplementedError

    def _admit(self, number: int) -> None:
        """Start the next waiting samples."""
        raise NotImplementedError

    def fill(self) -> bool:
        """Give empty slots to waiting samples, or compact the slots if none waits; return whether any is left."""
        waiting, used = self._waiting(), len(self.sample_B)
        free = len(self.empty) + self.num_slots - used
        if waiting and free * SLACK >= self.num_slots:
            self._admit(min(waiting, free))
        elif not waiting and len(self.empty) * SLACK >= used:
            self._compact()
        return len(self.sample_B) > 0

    def _start(self, chosen: list[tuple[int, int]], samples: list[int]) -> None:
        """Start samples, each given as (request, index), in empty slots, then in unused ones."""
        number = len(chosen)
        if not self.slots.shares:
            longest = max(len(self.known[r]) for r, _ in chosen)
            self.slots.reserve(longest, keeps=len(self.empty) < len(self.sample_B))
        reused, self.empty = self.empty[:number], self.empty[number:]
        slots = reused + list(range(len(self.sample_B), len(self.sample_B) + number - len(reused)))
        self._prefill([r for r in dict.fromkeys(r for r, _ in chosen) if r not in self.prefilled])
        grown = self._zeros(number - len(reused))
        for name in ROWS:
            setattr(self, name, torch.cat([getattr(self, name), grown]))
        self.request_of.update(zip(samples, (r for r, _ in chosen), strict=True))
        at_X, samples_X, known = self._tensor(slots), self._tensor(samples), [self.known[r] for r, _ in chosen]
        begun = [self.requests[r].begun for r, _ in chosen]
        self.sample_B[at_X] = samples_X
        self.token_B[at_X] = self._tensor([ids[-1] for ids in known])
        self.position_B[at_X] = self._tensor([len(ids) - 1 for ids in known])
        self.count_B[at_X] = self._tensor([len(ids) for ids in begun])
        for sample, ids in zip(samples, begun, strict=True):
            if ids:
                self.tokens_NK[sample, : len(ids)] = self._tensor(list(ids))
        self._set_limits(chosen, samples_X)
        if self.any_drawn:
            self.uniform_SK[at_X] = self._draw_uniforms(chosen)
        self._place(chosen, slots)
        self.length_N[samples_X] = self.count_B[at_X]

    def _set_limits(self, chosen: list[tuple[int, int]], samples_X: Tensor) -> None:
        """Set the token limits and temperatures of samples."""
        heats = [self._temperature(self.requests[r]) for r, _ in chosen]
        self.limit_N[samples_X] = self._tensor([self._limit(self.requests[r]) for r, _ in chosen])
        self.heat_N[samples_X] = torch.tensor(heats, dtype=torch.float32, device=self.device)
        self.any_drawn, self.any_greedy = self.any_drawn or max(heats) > 0, self.any_greedy or min(heats) <= 0

    def _draw_uniforms(self, chosen: list[tuple[int, int]]) -> Tensor:
        """Return numbers in [0, 1) for every token of the samples (X, K); the first ones do not depend on K."""
        streams = [(self.requests[r].seed, self.requests[r].first + i) for r, i in chosen]
        keys = [np.array(stream, dtype=np.uint64) for stream in streams]
        drawn = [np.random.Generator(np.random.Philox(key=key)).random(self.sampling.max_new_tokens) for key in keys]
        return torch.from_numpy(np.stack(drawn)).to(self.device)

    def _prefill(self, numbers: list[int]) -> None:
        """Compute the known tokens of requests except the last one, with which every sample starts."""
        ordered = sorted(numbers, key=lambda r: len(self.known[r]))
        while ordered:
            width = len(self.known[ordered[0]]) - 1
            take = 1
            if width == 0:
                self.prefilled[ordered.pop(0)] = Prefilled(None, 0)
                continue
            while take < len(ordered) and (take + 1) * len(self.known[ordered[take]]) <= PREFILL_TOKENS:
                if self.slots.keeps_states and len(self.known[ordered[take]]) > width + 1:
                    break  # padding would change the states
                take += 1
            group, ordered = ordered[:take], ordered[take:]
            prompts = [self.known[r][:-1] for r in group]
            width = len(prompts[-1])
            ids = self._tensor([ids + [0] * (width - len(ids)) for ids in prompts])
            prefix = prefill(self.model, ids)
            self.prefilled.update({r: Prefilled(prefix, row) for row, r in enumerate(group)})

    def _place(self, chosen: list[tuple[int, int]], slots: list[int]) -> None:
        """Copy the prompts' keys and values to the slots, one prefix at a time."""
        groups: dict[int, list[int]] = {}
        for x, (r, _) in enumerate(chosen):
            groups.setdefault(id(self.prefilled[r].prefix), []).append(x)
        for members in groups.values():
            prefixes = [self.prefilled[chosen[x][0]] for x in members]
            lengths = [len(self.known[chosen[x][0]]) - 1 for x in members]
            at_X, source_X = self._tensor([slots[x] for x in members]), self._tensor([p.row for p in prefixes])
            self.slots.place(at_X, prefixes[0].prefix, source_X, self._tensor(lengths))

    def _compact(self) -> None:
        """Move the last rows into the empty ones."""
        empty, used = set(self.empty), len(self.sample_B)
        left = used - len(empty)
        to_X = self._tensor([b for b in range(left) if b in empty])
        from_X = self._tensor([b for b in range(left, used) if b not in empty])
        if len(to_X):
            self.slots.move(from_X, to_X)
            self.uniform_SK[to_X] = self.uniform_SK[from_X]
        for name in ROWS:
            rows_B = getattr(self, name)
            rows_B[to_X] = rows_B[from_X]
            setattr(self, name, rows_B[:left])
        self.empty = []

    def advance(self) -> None:
        """Decode one token for every slot."""
        self._take(self._next_logits())
        live_B = self.sample_B < self.void
        self.count_B = self.count_B + live_B
        self.position_B = self.position_B + live_B
        stopped_B = live_B & self._stops()
        ended_B = stopped_B | (live_B & (self.count_B == self.limit_N[self.sample_B]))
        if ended_B.any():
            self._end(ended_B, stopped_B)

    def _next_logits(self) -> Tensor:
        """Return the logits (B, V) after the last token of every row."""
        return compute_slot_logits(self.model, self.slots, self.token_B, self.position_B)

    def _take(self, logits_BV: Tensor) -> None:
        """Sample the next tokens and store them."""
        sample_B, count_B, sampling = self.sample_B, self.count_B, self.sampling
        uniform_B1 = self.uniform_SK[: len(logits_BV)].gather(1, count_B[:, None]) if self.any_drawn else None
        picked = pick(
            logits_BV,
            self.heat_N[sample_B],
            uniform_B1,
            greedy=self.any_greedy,
            place_B=count_B,
            processor=sampling.processor,
            contexts_B=self._list_contexts() if reads_contexts(sampling.processor) else None,
            entropy=sampling.entropy,
            kept_tokens=sampling.kept_tokens,
        )
        self.token_B = picked.token_B
        self.tokens_NK[sample_B, count_B] = picked.token_B
        self.logprobs_NK[sample_B, count_B] = picked.logprob_B
        if picked.entropy_B is not None:
            self.entropies_NK[sample_B, count_B] = picked.entropy_B
        if picked.kept is not None:
            for sample, count, record in zip(sample_B.tolist(), count_B.tolist(), picked.kept, strict=True):
                self.kept_NK[sample][count] = record

    def _list_contexts(self) -> list[list[int]]:
        """Return the tokens of prompt and completion of every row; none of an empty row."""
        rows = zip(self.sample_B.tolist(), self.count_B.tolist(), self.tokens_NK[self.sample_B].tolist(), strict=True)
        return [
            [] if sample == self.void else [*self.requests[self.request_of[sample]].prompt_ids, *ids[:count]]
            for sample, count, ids in rows
        ]

    def _stops(self) -> Tensor:
        """Return the rows that end with a stop token or a stop sequence (B,)."""
        stopped_B = torch.isin(self.token_B, self.ends_E)
        for sequence in self.sampling.stop:
            match_B = self.count_B >= len(sequence)
            for back, token in enumerate(reversed(sequence)):
                at_B = (self.count_B - 1 - back).clamp(min=0)
                match_B = match_B & (self.tokens_NK[self.sample_B, at_B] == token)
            stopped_B = stopped_B | match_B
        return stopped_B

    def _end(self, ended_B: Tensor, stopped_B: Tensor) -> None:
        """Store the ends of samples and empty their rows."""
        samples = self.sample_B[ended_B]
        self.stopped_N[samples] = stopped_B[ended_B]
        self.length_N[samples] = self.count_B[ended_B]
        self._vacate(ended_B)

    def _vacate(self, left_B: Tensor) -> None:
        """Mark rows as empty."""
        self.sample_B[left_B] = self.void
        self.count_B[left_B] = 0
        self.position_B[left_B] = 0
        self.empty += left_B.nonzero()[:, 0].tolist()

    def _finish(self, length: int, stopped: bool) -> Literal["stop", "length", "suspended"]:
        full = length == self.sampling.max_new_tokens
        return "stop" if stopped else "length" if full else "suspended"


class Running(Decoding):
    """The samples of one call, in the order of its requests."""

    def __init__(
        self,
        model: torch.nn.Module,
        requests: list[Request],
        sampling: Sampling,
        ends: tuple[int, ...],
        max_slots: int,
        *,
        shares: bool = False,
    ):
        self.requests = dict(enumerate(requests))
        self.known = {r: [*request.prompt_ids, *request.begun] for r, request in enumerate(requests)}
        self.queue = [(r, i) for r, request in enumerate(requests) for i in range(request.n)]
        self.next, self.ended = 0, 0
        total = len(self.queue)
        columns = sampling.max_new_tokens + (0 if shares else max(len(r.prompt_ids) for r in requests))
        slots = min(max_slots, total)
        super().__init__(model, sampling, ends, total, (slots, columns), slots, shares)

    def _waiting(self) -> int:
        return len(self.queue) - self.next

    def fill(self) -> bool:
        """As `Decoding.fill`, until the target number of completions have ended."""
        if self.sampling.target is not None and self.ended >= self.sampling.target:
            return False
        return super().fill()

    def _admit(self, number: int) -> None:
        self._start(self.queue[self.next : self.next + number], list(range(self.next, self.next + number)))
        self.next += number
        unfinished = {r for r, _ in self.queue[self.next : self.next + 1]}
        self.prefilled = {r: p for r, p in self.prefilled.items() if r in unfinished}

    def _end(self, ended_B: Tensor, stopped_B: Tensor) -> None:
        # A sample at the end of its window is suspended, not ended.
        done_B = stopped_B[ended_B] | (self.count_B[ended_B] == self.sampling.max_new_tokens)
        self.ended += int(done_B.sum())
        super()._end(ended_B, stopped_B)

    def results(self) -> list[list[Generation]]:
        """Return the generations by request; samples still in a slot or in the queue are suspended."""
        live_B = self.sample_B < self.void
        self.length_N[self.sample_B[live_B]] = self.count_B[live_B]
        tokens, logprobs, entropies = self.tokens_NK.tolist(), self.logprobs_NK.tolist(), self.entropies_NK.tolist()
        generations: list[list[Generation]] = [[] for _ in self.requests]
        ends = zip(self.length_N.tolist(), self.stopped_N.tolist(), strict=True)
        for sample, ((r, _), (length, stopped)) in enumerate(zip(self.queue, ends, strict=False)):
            new = slice(len(self.requests[r].begun), length)
            finish = self._finish(length, stopped)
            columns = (tokens[sample][new], logprobs[sample][new], finish, entropies[sample][new])
            generations[r].append(Generation(*columns, kept=self.kept_NK[sample][new]))
        return generations
