"""What rewards say of a model's own completions before training: how they are spread, and where nothing is learned."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from schemas.base import JsonObject

BINS = 10


@dataclass(frozen=True)
class Bin:
    """How many completions have a reward from `low` to `high`, both included."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class RewardDistribution:
    """Rewards of several completions per problem."""

    problems: int
    completions: int
    mean: float | None
    """Of the completions with a score; None if there are none."""
    std: float | None
    """Over all of them, with n − 1; None for fewer than two."""
    equal_groups: float | None
    """Share of the problems whose scored completions, two or more, have the same reward: their advantages are 0."""
    unscorable: float
    """Share of the completions without a score."""
    cut: float
    """Share of the completions that the limit of their length has cut."""
    bins: tuple[Bin, ...]

    def to_json(self) -> JsonObject:
        """Return the fields as plain values."""
        return asdict(self)


def describe_rewards(groups: Sequence[Sequence[float | None]], cut: int) -> RewardDistribution:
    """Return the distribution of the rewards of each problem's completions; `cut` of them were cut."""
    total = sum(map(len, groups))
    scored = [[score for score in group if score is not None] for group in groups]
    scores = [score for group in scored for score in group]
    compared = [len(set(group)) == 1 for group in scored if len(group) > 1]
    return RewardDistribution(
        problems=len(groups),
        completions=total,
        mean=fmean(scores) if scores else None,
        std=stdev(scores) if len(scores) > 1 else None,
        equal_groups=sum(compared) / len(compared) if compared else None,
        unscorable=(total - len(scores)) / total,
        cut=cut / total,
        bins=tuple(make_bins(scores)),
    )


def make_bins(scores: Sequence[float]) -> list[Bin]:
    """Return one bin per value if there are few values, else ten bins of equal width."""
    counts = Counter(scores)
    if len(counts) <= BINS:
        return [Bin(value, value, count) for value, count in sorted(counts.items())]
    low, width = min(scores), (max(scores) - min(scores)) / BINS
    places = Counter(min(int((score - low) / width), BINS - 1) for score in scores)
    return [Bin(low + i * width, low + (i + 1) * width, places[i]) for i in range(BINS)]
