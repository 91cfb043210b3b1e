"""Which part of a completion a token belongs to, by the tags that the model writes: `<search>…</search>`."""

import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from learning.batch.batch import Batch
from learning.data.chat import decode
from learning.models.sharded_model import Trained
from learning.samples.engine_protocol import hash_name
from learning.samples.sample import Sample
from schemas.stages.rl import Rl

OPEN = re.compile(r"<([A-Za-z_][\w-]*)>")


def find_spans(text: str) -> list[tuple[int, int, str]]:
    """Return begin, end and name of every pair of tags in a text, the tags included; of nested pairs the outer one.

    A tag without its closing one begins no span.
    """
    spans: list[tuple[int, int, str]] = []
    unclosed: set[str] = set()
    at = 0
    while match := OPEN.search(text, at):
        close = f"</{match[1]}>"
        end = -1 if match[1] in unclosed else text.find(close, match.end())
        if end < 0:
            unclosed.add(match[1])
            at = match.end()
        else:
            at = end + len(close)
            spans.append((match.start(), at, match[1]))
    return spans


def name_tokens(texts: Sequence[str]) -> list[str]:
    """Return the name of the tag that each token is in, given the texts of the tokens in order; empty for none."""
    names = [""] * len(texts)
    spans = find_spans("".join(texts))
    begin, place = 0, 0
    for token, text in enumerate(texts):
        end = begin + len(text)
        while place < len(spans) and spans[place][1] <= begin:
            place += 1
        if place < len(spans) and spans[place][0] < end:
            names[token] = spans[place][2]
        begin = end
    return names


def add_tags(
    batch: Batch, samples: Sequence[Sample], trained: Trained, stage: Rl, tokenizer: PreTrainedTokenizerBase
) -> Batch:
    """Add the token column `tag`: a hash of the name of the tag that a sampled token is in, 0 outside of all tags.

    `samples` are the paths of the batch in their order. Every turn of an episode is read by itself.
    """
    values: list[int] = []
    for sample in samples:
        ids = sample.completion_ids[sample.given :]
        names = [""] * len(ids)
        for turn in _list_turns(sample.own):
            names[turn.start : turn.stop] = name_tokens([decode(tokenizer, [ids[place]]) for place in turn])
        values += [hash_name(name) if name else 0 for name, own in zip(names, sample.own, strict=True) if own]
    return batch.with_tokens(tag=torch.tensor(values, dtype=torch.long))


def _list_turns(own: Sequence[bool]) -> list[range]:
    """Return the places of each run of tokens that the model sampled."""
    turns: list[range] = []
    for place, flag in enumerate(own):
        if flag and turns and turns[-1].stop == place:
            turns[-1] = range(turns[-1].start, place + 1)
        elif flag:
            turns.append(range(place, place + 1))
    return turns
