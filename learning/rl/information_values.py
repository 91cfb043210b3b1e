"""What each turn of an episode contributes to the policy's probability of the row's answer: exact Shapley values.

The gain of a turn (`answer_gains`) depends on what came before it: of two that learn the same, the first gets all.
Here the value of a set of turns is the probability of the answer behind the prompt and these turns alone, in their
order, and a turn gets its mean gain over all orders in which the turns could be added (Shapley 1953). The values of an
episode add up to the gain of all its turns. The sets form a tree of prefixes, so that each is one more segment.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from learning.batch.batch import Batch
from learning.data.chat import encode_text
from learning.data.shapley import compute_shapley
from learning.models.sharded_model import Trained
from learning.rl.answer_gains import Probes, measure_probes
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.stages.rl import Rl

MAX_TURNS = 8
"""Answered turns of an episode; n of them need 2^n probabilities."""


def add_information_values(
    batch: Batch, samples: Sequence[Sample], trained: Trained, stage: Rl, tokenizer: PreTrainedTokenizerBase
) -> Batch:
    """Add the token column `shapley`: the value of the token's turn; 0 for a turn that nothing follows.

    `samples` are the paths of the batch in their order. Raise StepError for an episode without an answer in its row,
    with more than MAX_TURNS answered turns, or whose context was replaced.
    """
    made, numbers = Probes(), list[list[int]]()
    before = encode_text(tokenizer, stage.answer_prefix) if stage.answer_prefix else []
    for sample in samples:
        numbers.append(_add_sets(made, sample, before, tokenizer))
    values: list[list[float]] = [[] for _ in samples]
    if made.leaves:
        chance_N = measure_probes(made.build(), trained, stage).tolist()
        for place, of_sample in enumerate(numbers):
            size = len(of_sample).bit_length() - 1
            values[place] = compute_shapley([chance_N[number] for number in of_sample], size) if of_sample else []
    columns = zip(batch.path_T.tolist(), batch.sampled("turn").tolist(), strict=True)
    at_T = [_read(samples[path], values[path], turn) for path, turn in columns]
    return batch.with_tokens(shapley=torch.tensor(at_T, dtype=torch.float64))


def _add_sets(made: Probes, sample: Sample, before: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the numbers of the probes of all sets of a sample's answered turns, by mask; none without such turns."""
    name, pieces, at = sample.row.get("id"), list[list[int]](), sample.given
    for turn in sample.turns:
        end = at + turn.sampled + turn.observed
        if turn.rebuilt:
            raise StepError(f"shapley_T: the context of the episode of {name} was replaced; remove `env.context`")
        if turn.observed:
            pieces.append(sample.completion_ids[at:end])
        at = end
    if not pieces:
        return []
    if len(pieces) > MAX_TURNS:
        raise StepError(
            f"shapley_T: the episode of {name} has {len(pieces)} answered turns, which needs 2^{len(pieces)} "
            f"probabilities; set `max_turns` of the environment to at most {MAX_TURNS + 1}"
        )
    text = sample.row.get("answer")
    if not text:
        raise StepError(f"shapley_T: row {name} has no answer whose probability could be measured")
    answer = encode_text(tokenizer, str(text))
    context = made.grow([*sample.prompt_ids, *sample.completion_ids[: sample.given]], -1)
    contexts, probes = {0: context}, {0: made.probe(context, before, answer, sample.group)}
    for mask in range(1, 1 << len(pieces)):
        last = mask.bit_length() - 1
        contexts[mask] = made.grow(pieces[last], contexts[mask ^ 1 << last])
        probes[mask] = made.probe(contexts[mask], before, answer, sample.group)
    return [probes[mask] for mask in range(1 << len(pieces))]


def _read(sample: Sample, values: Sequence[float], turn: int) -> float:
    """Return the value of a turn by its number among all turns."""
    if turn >= len(sample.turns) or not sample.turns[turn].observed:
        return 0.0
    return values[sum(bool(earlier.observed) for earlier in sample.turns[:turn])]
