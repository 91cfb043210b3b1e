"""kind: synthesize — prompts alone, with a teacher's completions, or with a model's own samples."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from learning.data.rows import SCHEMAS, read_rows, row_writer, scan_rows
from learning.data.teacher_request import Inquiry
from learning.lookup import Bound, bind
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from tasks.context import Context, Result
from tasks.remote import Bills, desk_of, spending

if TYPE_CHECKING:
    from tasks.inquired import Inquired

Row = dict[str, Any]
PROBLEMS = 1000
"""Problems that a teacher writes about before what it wrote is put down."""
SAMPLES = 32_768
"""Samples of a model that are held in memory; the same on any number of workers, since rewards see them together."""
SAMPLES_TO_CAP = 512
"""Likewise where the stage has a cap on tokens, which is looked at after each such part."""
SHOWN = ("family", "prompt", "answer", "completion", "chosen", "rejected", "margin")
EXAMPLES = 8


def run(stage: Synthesize, context: Context) -> Result:
    """Gather problems, let the author write, keep what passes, and say how much of it did."""
    problems, repeated = gather(stage, context)
    tally = Tally(Counter(row["family"] for row in problems))
    with row_writer(context.output(stage.emit), stage.emit) as writer:
        if stage.earlier is not None:
            for batch in scan_rows(context.input("earlier"), "preference_pairs"):
                writer.write(pa.Table.from_batches([batch]))
        for generated, made in written(stage, context, problems, tally):
            tally.add(generated, made)
            rows = [noted(row, stage.notes) for row in made]
            writer.write(pa.Table.from_pylist(rows, schema=SCHEMAS[stage.emit]))
    if not tally.totals["accepted"]:
        raise StepError(
            f"synthesize: none of {tally.totals['generated']} samples was accepted; lower min_reward or min_margin, "
            f"raise num_generations, or start from a better model{tally.why}"
        )
    return tally.report(repeated)


def written(
    stage: Synthesize, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """What the author wrote for some of the problems after the others, and the rows made of it."""
    if stage.emit == "prompts":
        yield problems, problems
    elif stage.teacher:
        yield from taught(stage, context, problems, tally)
    else:
        choose = accepted if stage.emit == "chat" else paired
        yield from ((tried, choose(stage, tried)) for tried in sampled(stage, context, problems, tally))


def gather(stage: Synthesize, context: Context) -> tuple[list[Row], int]:
    """Problems of all generators (or of the stage named by `prompts`), each once; how many came twice."""
    if stage.prompts is not None:
        found = read_rows(context.input("prompts"), "prompts")
    else:
        bound = [bind(use, f"problems.{i}", context.inputs) for i, use in enumerate(stage.problems)]
        found = [row for generator in bound for row in generator()]
    if not found:
        raise StepError("synthesize: no problems; look at what the stage before it dropped")
    unique = {row["id"]: row for row in reversed(found)}
    return list(reversed(unique.values())), len(found) - len(unique)


def taught(
    stage: Synthesize, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """The teacher's completion of every problem; each problem has a random stream of its own."""
    teacher = bind(stage.teacher, "teacher", context.inputs)
    for start in range(0, len(problems), PROBLEMS):
        rows = problems[start : start + PROBLEMS]
        texts = [teacher(row, np.random.default_rng([context.seed, i])) for i, row in enumerate(rows, start)]
        if isinstance(texts[0], Inquiry):
            from tasks.inquired import Inquired  # its client takes a second to import

            tally.inquired = tally.inquired or Inquired(stage, context, texts, len(problems))
            yield tally.inquired.some(rows, texts)
            continue
        made = [row | {"completion": said(text)} for row, text in zip(rows, texts, strict=True)]
        yield made, made
        context.progress(start + len(rows), len(problems))


def sampled(stage: Synthesize, context: Context, problems: list[Row], tally: "Tally") -> Iterator[list[Row]]:
    """A model's samples, one row each. What a killed step had sampled is not sampled again."""
    # A programmatic teacher needs no torch, whose import takes seconds.
    from learning.data.row_journal import RowJournal
    from learning.evaluation.sampled_answers import sample_rows, weighted_scores
    from learning.generation.replicas.engine_loading import engine_for, policy_for
    from learning.models.policy import set_determinism
    from learning.samples.engine_protocol import Sampling
    from learning.sampling.placed_rewards import place_rewards

    set_determinism(context.seed, context.num_threads)
    rewards = place_rewards(bound_rewards(stage, context), context.actors)
    policy = policy_for(context.input("model"), context.device, context.actors)
    desk = desk_of(context, stage.max_tokens_total, stage.max_cost)
    bills = Bills(context, desk)
    score = partial(weighted_scores, rewards, [use.weight for use in stage.rewards], desk=desk, shown=set())
    search = bind(stage.search, "search", context.inputs)
    sampling, used = Sampling(stage.temperature, stage.max_completion_length), 0
    size = max(1, (SAMPLES_TO_CAP if stage.max_tokens_total else SAMPLES) // stage.num_generations)
    with (
        RowJournal(context.checkpoints / "sampled.jsonl") as journal,
        engine_for(stage.engine, policy, context.actors, context.input("model"), desk) as engine,
    ):
        spend = spending(context, engine)
        for start in range(0, len(problems), size):

            def told(done: int, tokens: int, before: int = start) -> None:
                spend(tokens)
                context.progress(before + done, len(problems))

            how = {"n": stage.num_generations, "seed": context.seed, "sampling": sampling, "journal": journal}
            ask = partial(sample_rows, engine, policy.tokenizer, on_progress=told, **how)
            tried = search(problems[start : start + size], ask, score)
            bills.tell()
            yield tried
            used += sum(len(policy.tokenizer.encode(row["text"], add_special_tokens=False)) for row in tried)
            left = len(problems) - start - size
            if stage.max_tokens_total and used >= stage.max_tokens_total and left > 0:
                tally.capped = {"capped": True, "missing": left * stage.num_generations}
                return


def bound_rewards(stage: Synthesize, context: Context) -> list[Bound]:
    """The functions that score samples."""
    return [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]


def accepted(stage: Synthesize, tried: list[Row]) -> list[Row]:
    """Rejection: samples that ended by themselves with at least `min_reward`, the same text for a problem once."""
    kept = {}
    for row in tried:
        if row["whole"] and row["score"] is not None and row["score"] >= stage.min_reward:
            kept.setdefault((row["id"], row["text"]), row | {"completion": said(row["text"])})
    return list(kept.values())


def paired(stage: Synthesize, tried: list[Row]) -> list[Row]:
    """Best and worst sample of each problem, if their rewards differ by `min_margin`; the first among equals."""
    groups: dict[str, list[Row]] = {}
    for row in tried:
        if row["score"] is not None:
            groups.setdefault(row["id"], []).append(row)
    pairs = []
    for group in groups.values():
        best, worst = max(group, key=lambda row: row["score"]), min(group, key=lambda row: row["score"])
        margin = best["score"] - worst["score"]
        if margin >= stage.min_margin:
            scores = {"chosen_score": best["score"], "rejected_score": worst["score"]}
            sides = {"chosen": said(best["text"]), "rejected": said(worst["text"]), "margin": margin}
            pairs.append(noted(best, scores) | sides)
    return pairs


def noted(row: Row, notes: Mapping[str, Any]) -> Row:
    """The row with notes in its metadata."""
    return row | {"metadata": json.dumps(json.loads(row["metadata"] or "{}") | dict(notes))} if notes else row


def said(text: str) -> list[dict[str, str]]:
    """A completion as messages."""
    return [{"role": "assistant", "content": text}]


@dataclass
class Tally:
    """Counts by family, and a few examples from all over; `unscorable` are samples that no reward could judge."""

    problems: Counter[str]
    generated: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    unscorable: int = 0
    examples: list[Row] = field(default_factory=list)
    stride: int = 1
    inquired: "Inquired | None" = None
    """A remote teacher's replies, which know more of themselves than can be counted here."""
    capped: Row = field(default_factory=dict)
    """Metrics of a cap that was reached while a model was sampled from."""

    @property
    def why(self) -> str:
        """What became of a remote teacher's replies, for an error; empty where there are none."""
        return f" ({self.inquired.why(self.problems)})" if self.inquired is not None else ""

    @property
    def totals(self) -> dict[str, int]:
        """Counts in all."""
        return {name: getattr(self, name).total() for name in ("problems", "generated", "accepted")}

    def add(self, generated: list[Row], made: list[Row]) -> None:
        """Count some."""
        before = self.accepted.total()
        self.generated.update(row["family"] for row in generated)
        self.accepted.update(row["family"] for row in made)
        self.unscorable += sum(row.get("score", 0.0) is None for row in generated)
        for place, row in enumerate(made, before):
            if place % self.stride == 0:
                self.examples.append({key: row[key] for key in SHOWN if key in row})
            if len(self.examples) == 2 * EXAMPLES:
                self.examples, self.stride = self.examples[::2], 2 * self.stride

    def report(self, repeated: int) -> Result:
        """What there is to say of a stage that has ended."""
        counts = {name: getattr(self, name) for name in self.totals}
        table = [{"family": f} | {name: of[f] for name, of in counts.items()} for f in sorted(self.problems)]
        for line in table:
            line["yield"] = line["accepted"] / line["generated"] if line["generated"] else 0.0
        shares = {"yield": self.totals["accepted"] / self.totals["generated"], "repeated": repeated}
        found = self.totals | shares | {"unscorable": self.unscorable} | self.capped
        details: Row = {"yield": table, "examples": self.examples[:EXAMPLES]}
        if self.inquired is not None:
            details["yield"], metrics, more = self.inquired.report(self.problems)
            found, details = found | metrics, details | more
        return Result(found, details)
