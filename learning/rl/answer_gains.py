"""How much each turn of an episode raises the policy's probability of the row's answer.

Before the first turn and after every answered turn, the answer is put behind the context that the policy then has, and
its probability is read in one pass without a gradient: exp of the mean log-probability of its tokens. The gain of a
turn is the probability after it minus the one before.

Shapes: M tokens of all segments, T sampled tokens, N probes (contexts with the answer behind them).
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from learning.batch.batch import Batch
from learning.batch.micro_batches import statistics_of
from learning.data.chat import encode_text
from learning.models.sharded_model import Trained
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.stages.rl import Rl


def add_gains(
    batch: Batch, samples: Sequence[Sample], trained: Trained, stage: Rl, tokenizer: PreTrainedTokenizerBase
) -> Batch:
    """Add the token column `gain`: that of the token's turn; 0 for a turn that nothing follows.

    `samples` are the paths of the batch in their order. The answer follows the stage's `answer_prefix`, whose tokens
    are read but not counted. Raise StepError for an episode whose row has no answer.
    """
    probes, numbers = _build_probes(samples, tokenizer, stage.answer_prefix)
    gains: list[list[float]] = [[] for _ in samples]
    if probes is not None:
        chance_N = measure_probes(probes, trained, stage)
        for place, of_sample in enumerate(numbers):
            chances = [float(chance_N[number]) for number in of_sample]
            gains[place] = [after - before for before, after in pairwise(chances)]
    turn_T, path_T = batch.sampled("turn").tolist(), batch.path_T.tolist()
    values = [gains[path][turn] if turn < len(gains[path]) else 0.0 for path, turn in zip(path_T, turn_T, strict=True)]
    return batch.with_tokens(gain=torch.tensor(values, dtype=torch.float64))


def measure_probes(probes: Batch, trained: Trained, stage: Rl) -> Tensor:
    """Return the probability of the answer in each probe (N,)."""
    lp_T = statistics_of(
        probes,
        trained.model,
        ("lp",),
        max_tokens=stage.max_tokens_per_micro_batch,
        temperature=stage.temperature,
        each=trained.each,
    )["lp"]
    total_N = torch.zeros(probes.num_paths, dtype=lp_T.dtype).index_add(0, probes.path_T, lp_T)
    return (total_N / probes.path_T.bincount(minlength=probes.num_paths)).exp()


class Probes:
    """Segments of the contexts and of the answers behind them, under construction."""

    def __init__(self) -> None:
        self.segments: list[list[int]] = []
        self.parents: list[int] = []
        self.leaves: list[int] = []
        self.learn: list[bool] = []
        self.owner: list[int] = []
        self.groups: list[int] = []

    def grow(self, ids: Sequence[int], parent: int) -> int:
        """Add a segment of context and return its index."""
        return self._add(ids, parent, [False] * len(ids))

    def probe(self, context: int, prefix: Sequence[int], answer: Sequence[int], group: int) -> int:
        """Add a probe behind a context and return its number."""
        counted = [False] * len(prefix) + [True] * len(answer)
        self.leaves.append(self._add([*prefix, *answer], context, counted))
        self.groups.append(group)
        return len(self.leaves) - 1

    def _add(self, ids: Sequence[int], parent: int, learn: list[bool]) -> int:
        self.segments.append(list(ids))
        self.parents.append(parent)
        self.learn += learn
        self.owner += [len(self.leaves)] * len(ids)
        return len(self.segments) - 1

    def build(self) -> Batch:
        """Return the batch; a path is a probe."""
        numbers = torch.arange(len(self.leaves))
        tokens = {"learn": torch.tensor(self.learn), "owner": torch.tensor(self.owner)}
        paths = {"path": numbers, "group": torch.tensor(self.groups)}
        return Batch(self.segments, self.parents, self.leaves, tokens, paths)


def _build_probes(
    samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, prefix: str
) -> tuple[Batch | None, list[list[int]]]:
    """Return the probes, None without any, and for each sample their numbers: before its turns, then after each."""
    made, roots, numbers = Probes(), dict[tuple[int, tuple[int, ...]], tuple[int, int]](), list[list[int]]()
    before = encode_text(tokenizer, prefix) if prefix else []
    for sample in samples:
        numbers.append([])
        if not any(turn.observed for turn in sample.turns):
            continue
        text = sample.row.get("answer")
        if not text:
            raise StepError(f"gain_T: row {sample.row.get('id')} has no answer whose probability could be measured")
        answer = encode_text(tokenizer, str(text))
        key = (sample.group, (*sample.prompt_ids, *sample.completion_ids[: sample.given]))
        if key not in roots:
            context = made.grow(key[1], -1)
            roots[key] = context, made.probe(context, before, answer, sample.group)
        context, first = roots[key]
        numbers[-1].append(first)
        at = sample.given
        for turn in sample.turns:
            middle, end = at + turn.sampled, at + turn.sampled + turn.observed
            if turn.observed:
                ids = sample.completion_ids[middle if turn.rebuilt else at : end]
                context = made.grow(ids, -1 if turn.rebuilt else context)
                numbers[-1].append(made.probe(context, before, answer, sample.group))
            at = end
    return (made.build() if made.leaves else None), numbers
