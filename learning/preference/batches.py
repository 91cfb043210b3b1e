"""Preference pairs as token ids: encoding, the split by prompt, and groups that fit into one forward.

Pairs that fit into memory stay there; of more, the ids are kept on disk and read when their turn comes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from learning.data.chat import encode_answer, encode_episode
from learning.data.held_out import hash_prompt, split_rows
from learning.data.rows import Row, count_rows, fits_in_memory, read_rows, scan_rows
from learning.data.stored_rows import RowSubset, StoredRows, iterate_rows, store_rows

TOKENS = pa.list_(pa.int32())
MARKS = pa.list_(pa.bool_())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", TOKENS),
        ("chosen", TOKENS),
        ("rejected", TOKENS),
        ("margin", pa.float64()),
        ("metadata", pa.string()),
        ("chosen_observed", MARKS),
        ("rejected_observed", MARKS),
        ("size", pa.int32()),
        ("cut", pa.int32()),
    ]
)


SIDES = ("chosen", "rejected")


class Sized(Protocol):
    """What has a number of tokens."""

    @property
    def size(self) -> int:
        """Return its tokens."""
        ...


Part = TypeVar("Part", bound=Sized)


@dataclass(frozen=True)
class Pair:
    """One prompt with a chosen and a rejected completion, as token ids; `margin` is None where the row has none.

    Of a row with one completion and a label, the other side is empty.
    """

    id: str
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    margin: float | None
    metadata: str | None = None
    """JSON text of the stage that made the pair."""
    chosen_observed: list[bool] = field(default_factory=list)
    """Which tokens of the chosen completion are no words of the assistant; empty: none."""
    rejected_observed: list[bool] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Tokens when the prompt is stored once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)

    def cut(self, length: int) -> "Pair":
        """Return the pair with the first `length` tokens of each completion."""
        sides = {side: getattr(self, side)[:length] for side in SIDES}
        return replace(
            self, **sides, **{f"{side}_observed": getattr(self, f"{side}_observed")[:length] for side in SIDES}
        )

    def list_learned(self, side: str) -> list[bool]:
        """Return which tokens of a side count: the assistant's words, and what ends its turns."""
        observed: list[bool] = getattr(self, f"{side}_observed")
        return [not one for one in observed] or [True] * len(getattr(self, side))

    def count_learned(self, side: str) -> int:
        """Return the number of tokens of a side that count."""
        return len(getattr(self, side)) - sum(getattr(self, f"{side}_observed"))


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs that fit, and how many rows were over the limit: left out, or cut."""

    pairs: Sequence[Pair]
    too_long: int
    cut: int


def read_pairs(
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    max_length: int,
    folder: Path,
    *,
    truncate: bool = False,
    episodes: bool = False,
) -> EncodedPairs:
    """Return the pairs of an artifact; ids that do not fit into memory are kept in `folder`.

    `truncate` and `episodes` are those of `encode_pair`.
    """
    if fits_in_memory(data):
        rows = read_rows(data, "preference_pairs")
        encoded = [encode_pair(tokenizer, row, max_length, truncate=truncate, episodes=episodes) for row in rows]
        pairs = [pair for pair, _ in encoded if pair is not None]
        cut = sum(is_cut for pair, is_cut in encoded if pair is not None)
        return EncodedPairs(pairs, len(rows) - len(pairs), cut)

    def encode(row: Row) -> list[Row]:
        pair, is_cut = encode_pair(tokenizer, row, max_length, truncate=truncate, episodes=episodes)
        return [] if pair is None else [asdict(pair) | {"size": pair.size, "cut": int(is_cut)}]

    def make(row: Row) -> Pair:
        del row["size"], row["cut"]
        return Pair(**row)

    def source(start: int) -> Iterator[Row]:
        return iterate_rows(scan_rows(data, "preference_pairs", start=start))

    count = count_rows(data, "preference_pairs")
    stored = store_rows(folder, SCHEMA, count, source, encode, make)
    return EncodedPairs(stored, count - len(stored), int(stored.column("cut").sum()))


def encode_pair(
    tokenizer: PreTrainedTokenizerBase, row: Row, max_length: int, *, truncate: bool = False, episodes: bool = False
) -> tuple[Pair | None, bool]:
    """Return a row as token ids, and whether completions were cut; None if it does not fit into `max_length` tokens.

    A pair does not fit, either, if its prompt leaves no room for a completion, or if its sides are equal once cut.
    `truncate`: of completions over the limit the first tokens are kept (TRL's `keep_start`). `episodes`: completions
    may have several turns, of which the assistant's count.
    """
    prompt, sides, observed = list[int](), dict[str, list[int]](), dict[str, list[bool]]()
    for side in SIDES:
        sides[side], observed[side] = [], []
        if row[side] and episodes and len(row[side]) > 1:
            prompt, turns = encode_episode(tokenizer, row["prompt"], row[side], row)
            sides[side], observed[side] = turns.ids, [not learned for learned in turns.learned]
        elif row[side]:
            prompt, sides[side] = encode_answer(tokenizer, row["prompt"], row[side], row)
    chosen, rejected = (sides[side] for side in SIDES)
    pair = Pair(
        row["id"], prompt, chosen, rejected, row["margin"], row["metadata"], observed["chosen"], observed["rejected"]
    )
    room = max_length - len(prompt)
    if max(len(pair.chosen), len(pair.rejected)) <= room:
        return pair, False
    cut = pair.cut(max(room, 0))
    return (cut if truncate and room > 0 and cut.chosen != cut.rejected else None), True


def count_tokens(pairs: Sequence[Sized]) -> list[int]:
    """Return tokens of each row."""
    if isinstance(pairs, RowSubset) and isinstance(pairs.rows, StoredRows):
        return pairs.rows.column("size")[pairs.numbers].tolist()
    return pairs.column("size").tolist() if isinstance(pairs, StoredRows) else [pair.size for pair in pairs]


def split_by_prompt(pairs: Sequence[Pair], fraction: float) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """Return pairs to train on, and held-out pairs: those of the prompts whose hash is among the smallest `fraction`.

    A prompt lies wholly on one side, whatever the seed; at least one prompt is on each. Raises StepError when there
    are not two prompts.
    """
    return split_rows(pairs, (hash_prompt(pair.prompt) for pair in pairs), fraction)


def group_by_tokens(pairs: Iterable[Part], max_tokens: int) -> list[list[Part]]:
    """Return consecutive rows in groups of at most `max_tokens` tokens (a longer one is alone)."""
    return list(iterate_groups(pairs, max_tokens))


def iterate_groups(pairs: Iterable[Part], max_tokens: int) -> Iterator[list[Part]]:
    """Yield the groups of `group_by_tokens`, one after the other."""
    group: list[Part] = []
    size = 0
    for pair in pairs:
        if group and size + pair.size > max_tokens:
            yield group
            group, size = [], 0
        group.append(pair)
        size += pair.size
    if group:
        yield group
