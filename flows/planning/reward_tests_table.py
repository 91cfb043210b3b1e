"""The table of `posttrain test-reward`."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from learning.evaluation.reward_probes import Scored

SHOWN = 60
"""Characters of a completion in the table."""


def make_reward_table(step: str, results: Sequence[Scored]) -> Table:
    """Return a table with one row per tested completion."""
    failed = sum(not result.ok for result in results)
    verdict = f"{failed} of {len(results)} tests fail" if failed else f"all {len(results)} tests hold"
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
