"""Rows as the steps of a plan encode them: filled into the model's chat template, with what has a loss in marks."""

from collections.abc import Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING

from flows.planning.memory_lengths import PlanRows, load_tokenizer
from flows.planning.memory_models import KnownModel, PlanModels
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.chat_settings import read_chat
from schemas.errors import PosttrainError, printable
from schemas.plan import Plan, Step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from learning.data.rows import Row

OPEN, CLOSE = "«", "»"
"""Marks around what has a loss."""
ENCODING = ("sft", "preference", "reward_model", "rl", "evaluate")
"""Kinds whose rows go through a tokenizer."""


def render_examples(plan: Plan, layout: Layout, size: int) -> Iterator[str]:
    """Yield lines with the first rows of each step as it encodes them; none of rows that are not known before a run."""
    models, rows = PlanModels(plan, layout), PlanRows(plan, layout)
    for step in plan.steps:
        known = [model for _, model in models.ports(step).items() if isinstance(model, KnownModel)]
        if step.kind in ENCODING and known:
            yield from _render_step(step, rows, known[0], size)


def _render_step(step: Step, rows: PlanRows, model: KnownModel, size: int) -> Iterator[str]:
    from learning.data.chat_settings import apply_chat  # imports transformers

    first = rows.read_first(step, size)
    if not first or (tokenizer := load_tokenizer(model)) is None:
        return
    apply_chat(tokenizer, read_chat(step.settings))
    for row in islice(first, size):
        try:
            for ids, learned in encode_example(row, tokenizer, step.settings):
                loss = f"{sum(learned)} with a loss, between {OPEN} and {CLOSE}" if any(learned) else "none with a loss"
                yield f"{step.name}: {row['id']}: {len(ids)} tokens, {loss}"
                yield "\n".join(f"  {printable(line)}" for line in mark_loss(tokenizer, ids, learned).split("\n"))
        except PosttrainError as error:
            yield f"{step.name}: {row['id']}: {error}"


def encode_example(
    row: "Row", tokenizer: "PreTrainedTokenizerBase", settings: JsonObject
) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield the ids of a row and which of them have a loss: of a pair each side, of a prompt none."""
    from learning.data.chat import encode_episode, encode_prompt  # imports transformers
    from learning.data.examples import encode_row

    if row.get("completion"):
        example = encode_row(tokenizer, row, settings.get("train_on", "last"))
        yield example.ids, example.learned
        return
    sides = [row[side] for side in ("chosen", "rejected") if row.get(side)]
    for side in sides:
        prompt, turns = encode_episode(tokenizer, row["prompt"], side, row)
        yield [*prompt, *turns.ids], [False] * len(prompt) + turns.learned
    if not sides:
        ids = encode_prompt(tokenizer, row["prompt"], row)
        yield ids, [False] * len(ids)


def mark_loss(tokenizer: "PreTrainedTokenizerBase", ids: list[int], learned: list[bool]) -> str:
    """Return the text of ids with marks around each part that has a loss."""
    parts = []
    for has_loss, group in groupby(zip(ids, learned, strict=True), key=lambda pair: pair[1]):
        text = str(tokenizer.decode([token for token, _ in group], clean_up_tokenization_spaces=False))
        parts.append(f"{OPEN}{text}{CLOSE}" if has_loss else text)
    return "".join(parts)
