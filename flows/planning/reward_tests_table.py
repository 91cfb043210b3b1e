"""The tables of `posttrain test-reward`."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from learning.evaluation.reward_distribution import RewardDistribution
from learning.evaluation.reward_probes import Scored
from lineage.reports.formatting import format_count

SHOWN = 60
"""Characters of a completion in the table."""
WIDTH = 40
"""Characters of the longest bar."""


def make_reward_table(step: str, results: Sequence[Scored]) -> Table:
    """Return a table with one row per tested completion."""
    failed = sum(not result.ok for result in results)
    some = f"{failed} of {format_count(len(results), 'test')} {'fails' if failed == 1 else 'fail'}"
    every = "the only test holds" if len(results) == 1 else f"all {len(results)} tests hold"
    verdict = some if failed else every
    caption = "every good answer must have a score, and everything else must score below it"
    table = Table(title=f"Rewards of {step}: {verdict}", caption=caption, title_justify="left", caption_justify="left")
    for column in ("row", "what", "completion", "score", ""):
        table.add_column(column, overflow="fold")
    for result in results:
        text = repr(result.completion)
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        score = "none" if result.score is None else f"{result.score:.4g}"
        mark = Text("ok", "green") if result.ok else Text("fails", "red")
        table.add_row(Text(result.row), result.kind, Text(shown), score, mark)
    return table


def make_distribution_table(step: str, rewards: RewardDistribution) -> Table:
    """Return a histogram of the rewards of a model's completions, with what they say about training on them."""
    sampled = f"{format_count(rewards.completions, 'completion')} of {format_count(rewards.problems, 'problem')}"
    title = f"Rewards of {step} on {sampled} by its model"
    table = Table(title=title, caption="\n".join(_describe(rewards)), title_justify="left", caption_justify="left")
    for column in ("reward", "completions", ""):
        table.add_column(column, justify="left" if not column else "right")
    most = max((one.count for one in rewards.bins), default=1)
    for one in rewards.bins:
        label = f"{one.low:.4g}" if one.low == one.high else f"{one.low:.4g} to {one.high:.4g}"
        table.add_row(label, str(one.count), "#" * -(-WIDTH * one.count // most))
    return table


def _describe(rewards: RewardDistribution) -> list[str]:
    lines = []
    if rewards.mean is not None:
        lines.append(f"mean {rewards.mean:.4g}" + ("" if rewards.std is None else f", std {rewards.std:.4g}"))
    if rewards.equal_groups is not None:
        why = "; from them group-relative advantages learn nothing" if rewards.equal_groups else ""
        lines.append(f"{rewards.equal_groups:.1%} of the problems have completions of equal reward{why}")
    lines.append(f"{rewards.unscorable:.1%} of the completions have no score")
    lines.append(f"{rewards.cut:.1%} of the completions were cut at max_completion_length")
    return lines
