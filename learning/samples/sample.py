"""Requests for samples and the samples themselves: plain records, before any tensor exists.

Prompt samplers, rollouts, resampling and extra samples work on lists of these; `learning.batch.batch_layout` lays out
the samples that are trained on as a batch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from learning.samples.engine_protocol import Turn, are_memories
from schemas.base import JsonObject

Row = JsonObject
"""A row of a prompts table, or one that a slot's function made up."""
Messages = list[Row]
States = dict[str, Row]
"""Memory of slot functions, by the path of the slot; plain values, because checkpoints hold it as JSON."""
Source = Literal[
    "policy",
    "greedy",
    "expert",
    "replay",
    "hinted",
    "in_context",
    "teacher",
    "hot",
    "cold",
    "auxiliary",
    "reset",
    "peer",
]
SOURCES: tuple[str, ...] = get_args(Source)
"""Where a sample comes from; its place here is the code in the column `source`."""


@dataclass(frozen=True)
class SampleRequest:
    """`n` completions of one problem to be sampled."""

    row: Row
    n: int = 1
    source: str = "policy"
    temperature: float | None = None
    """None: the stage's; 0: greedy."""
    prompt: Messages | None = None
    """Sampled and trained under, instead of the row's prompt: one with a hint."""
    context: Messages | None = None
    """Sampled under, while training is under `prompt`: one with demonstrations."""
    begin: tuple[int, ...] = ()
    """Tokens that the completion starts with; they are context, without a loss."""
    group: int | None = None
    """The group to join; None: a new one."""


@dataclass
class Sample:
    """One completion with its scores."""

    row: Row
    group: int
    source: str
    prompt_ids: list[int]
    """Trained under."""
    completion_ids: list[int]
    """All tokens after the prompt, in the order of the episode; the first `given` were not sampled."""
    logprobs: list[float] | None
    """Of every completion token in the sampling context, 0 for given ones; None: no policy of ours sampled it."""
    finish: Literal["stop", "length", "suspended"]
    text: str
    """The completion decoded, given tokens too, without special tokens; of an episode the last of the model's turns."""
    given: int = 0
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Iteration whose weights sampled each completion token."""
    context_ids: list[int] | None = None
    """Prompt sampled under, where it is another than `prompt_ids`."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """Raw, by name of the reward."""
    reward: float | None = None
    """Weighted sum of the scores; None: could not be scored."""
    weight: float = 1.0
    """Factor on the weight of its tokens in the loss."""
    origins: list[int] = field(default_factory=list)
    """Random stream that sampled each completion token; equal in samples that branched later. Empty: no branches."""
    turns: list[Turn] = field(default_factory=list)
    """Whole turns of an episode, from the first token that was not given; empty: nothing answered the completion."""
    kept: list[str] = field(default_factory=list)
    """Record of the tokens that each completion token was sampled from, empty for given and observed ones
    (`learning.samples.kept_tokens`); no records: from the whole vocabulary."""

    @property
    def own(self) -> list[bool]:
        """Whether each token after the given ones was sampled (or is an expert's), not observed."""
        size = len(self.completion_ids) - self.given
        if not any(turn.observed for turn in self.turns):
            return [True] * size
        own = [flag for turn in self.turns for flag in [True] * turn.sampled + [False] * turn.observed]
        return own + [True] * (size - len(own))

    @property
    def num_turns(self) -> int:
        """Number of the model's actions, counting one that has not ended; 1 where nothing answers."""
        complete = sum(turn.sampled + turn.observed for turn in self.turns)
        is_open = not self.turns or complete < len(self.completion_ids) - self.given
        return are_memories(self.turns)[: len(self.turns) + is_open].count(False)

    @property
    def contexts(self) -> list[tuple[range, range]]:
        """Places, after the given tokens, of each context that replaced the one before, and of what follows it.

        The first is the prompt's: its own range is empty.
        """
        places, at = [0, 0], 0
        for turn in self.turns:
            at += turn.sampled
            if turn.rebuilt:
                places += [at, at + turn.observed]
            at += turn.observed
        places.append(len(self.completion_ids) - self.given)
        return [(range(a, b), range(b, c)) for a, b, c in zip(places[::2], places[1::2], places[2::2], strict=False)]

    def to_json(self) -> JsonObject:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: JsonObject) -> "Sample":
        """Return the sample that `to_json` gave."""
        return cls(**{**values, "turns": [Turn(**turn) for turn in values.get("turns", ())]})


def last_turn(given: int, turns: Sequence[Turn]) -> int:
    """Return where the model's last turn begins in a completion that starts with `given` tokens."""
    places = [0]
    for turn in turns:
        if turn.observed:
            places.append((places[-1] or given) + turn.sampled + turn.observed)
    return places[-1]


def by_group(samples: list[Sample]) -> dict[int, list[Sample]]:
    """Return the samples of each group, groups in the order of their first sample."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return groups


def transcript(decode: Callable[[list[int]], str], ids: list[int], turns: Sequence[Turn]) -> str:
    """Return an episode as text: a line for every turn of the model, and the environment's answer after an arrow.

    A context that replaces everything before it stands after a double arrow.
    """
    lines, at = [], 0
    for turn in turns:
        end = at + turn.sampled
        lines.append(decode(ids[at:end]))
        at = end + turn.observed
        lines += [f"{'⇒' if turn.rebuilt else '→'} {decode(ids[end:at])}"] if turn.observed else []
    return "\n".join([*lines, decode(ids[at:])] if at < len(ids) else lines)


class History:
    """`rates`: for every problem, by id, the mean of the first reward at each visit (an iteration that sampled it).

    `turns`: the most turns of a completion that this reward gave at least 1; of a problem without one nothing.
    """

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.turns: dict[str, int] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """Add the policy's own samples of an iteration, except those that have not ended or could not be scored."""
        own = [t for t in samples if t.source == "policy" and t.finish != "suspended"]
        for group in by_group(own).values():
            key = group[0].row["id"]
            scored = [(s, t) for t in group if (s := next(iter(t.scores.values()), None)) is not None]
            if scored:
                self.rates.setdefault(key, []).append(sum(s for s, _ in scored) / len(scored))
            if solved := [t.num_turns for s, t in scored if s >= 1]:
                self.turns[key] = max(self.turns.get(key, 0), *solved)

    def to_json(self) -> JsonObject:
        """Return it as plain values."""
        return {"rates": self.rates, "turns": self.turns}

    def load(self, values: JsonObject) -> None:
        """Restore what `to_json` returned."""
        self.rates = {key: list(rates) for key, rates in values["rates"].items()}
        self.turns = dict(values["turns"])
