"""kind: synthesize — prompts alone, with a teacher's completions, or with a model's own samples."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from learning.data.questions import Inquiry
from learning.data.rows import SCHEMAS, Row, open_row_writer, read_rows, scan_rows
from learning.lookup import Bound, bind
from learning.sampling.placed_rewards import place_rewards
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from schemas.use import TeacherUse
from tasks.context import Context, Result
from tasks.remote import Bills, choose_spend, make_desk

if TYPE_CHECKING:
    from tasks.inquired import Inquired

PROBLEMS = 1000
"""Problems that a teacher answers before the rows are written."""
SAMPLES = 32_768
"""Samples of a model that are held in memory; the same on any number of workers, since rewards see them together."""
SAMPLES_TO_CAP = 512
"""Likewise where the stage has a cap on tokens, which is looked at after each such part."""
SHOWN = ("family", "prompt", "answer", "completion", "chosen", "rejected", "margin")
EXAMPLES = 8


def run(stage: Synthesize, context: Context) -> Result:
    """Gather problems, let the author write, keep what passes, and say how much of it did."""
    problems, repeated = gather_problems(stage, context)
    tally = Tally(Counter(row["family"] for row in problems))
    with open_row_writer(context.output(stage.emit), stage.emit) as writer:
        if stage.earlier is not None:
            for batch in scan_rows(context.input("earlier"), "preference_pairs"):
                writer.write(pa.Table.from_batches([batch]))
        for generated, made in write_rows_of(stage, context, problems, tally):
            tally.add(generated, made)
            rows = [add_notes(row, stage.notes) for row in made]
            writer.write(pa.Table.from_pylist(rows, schema=SCHEMAS[stage.emit]))
    if not tally.totals["accepted"]:
        raise StepError(
            f"synthesize: none of {tally.totals['generated']} samples was accepted; lower min_reward or min_margin, "
            f"raise num_generations, or start from a better model{tally.why}"
        )
    return tally.report(repeated)


def write_rows_of(
    stage: Synthesize, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield what the author wrote for some problems at a time, and the rows made of it."""
    if stage.emit == "prompts":
        yield problems, problems
    elif stage.teacher:
        yield from ask_teacher(stage, stage.teacher, context, problems, tally)
    else:
        choose = accept_samples if stage.emit == "chat" else make_pairs
        yield from ((tried, choose(stage, tried)) for tried in sample_model(stage, context, problems, tally))


def gather_problems(stage: Synthesize, context: Context) -> tuple[list[Row], int]:
    """Return problems of all generators (or of the stage named by `prompts`), each once; how many came twice."""
    if stage.prompts is not None:
        problems = read_rows(context.input("prompts"), "prompts")
    else:
        bound = [bind(use, f"problems.{i}", context.inputs) for i, use in enumerate(stage.problems)]
        problems = [row for generator in bound for row in generator()]
    if not problems:
        raise StepError("synthesize: no problems; look at what the stage before it dropped")
    unique = {row["id"]: row for row in reversed(problems)}
    return list(reversed(unique.values())), len(problems) - len(unique)


def ask_teacher(
    stage: Synthesize, use: TeacherUse, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield the teacher's completion of every problem; each problem has a random stream of its own."""
    teacher = bind(use, "teacher", context.inputs)
    for start in range(0, len(problems), PROBLEMS):
        rows = problems[start : start + PROBLEMS]
        texts = [teacher(row, np.random.default_rng([context.seed, i])) for i, row in enumerate(rows, start)]
        if isinstance(texts[0], Inquiry):
            from tasks.inquired import Inquired  # its client takes a second to import

            tally.inquired = tally.inquired or Inquired(stage, context, texts, len(problems))
            yield tally.inquired.some(rows, texts)
            continue
        made = [row | {"completion": make_completion(text)} for row, text in zip(rows, texts, strict=True)]
        yield made, made
        context.progress(start + len(rows), len(problems))


def sample_model(stage: Synthesize, context: Context, problems: list[Row], tally: "Tally") -> Iterator[list[Row]]:
    """Yield a model's samples, one row each. What a killed step had sampled is not sampled again."""
    # A programmatic teacher needs no torch, whose import takes seconds.
    from learning.data.row_journal import RowJournal
    from learning.evaluation.sampled_answers import compute_weighted_scores, sample_rows
    from learning.generation.replicas.engine_loading import load_sampling_policy, open_engine
    from learning.models.policy import set_determinism
    from learning.samples.engine_protocol import Sampling

    set_determinism(context.seed, context.num_threads)
    rewards = place_rewards(bind_rewards(stage, context), context.actors)
    policy = load_sampling_policy(context.input("model"), context.device, context.actors)
    desk = make_desk(context, stage.max_tokens_total, stage.max_cost)
    bills = Bills(context, desk)
    score = partial(compute_weighted_scores, rewards, [use.weight for use in stage.rewards], desk=desk, shown=set())
    search = bind(stage.search, "search", context.inputs)
    sampling, used = Sampling(stage.temperature, stage.max_completion_length), 0
    size = max(1, (SAMPLES_TO_CAP if stage.max_tokens_total else SAMPLES) // stage.num_generations)
    with (
        RowJournal(context.checkpoints / "sampled.jsonl") as journal,
        open_engine(stage.engine, policy, context.actors, context.input("model"), desk) as engine,
    ):
        spend = choose_spend(context, engine)
        for start in range(0, len(problems), size):

            def report(done: int, tokens: int, before: int = start) -> None:
                spend(tokens)
                context.progress(before + done, len(problems))

            how = {"n": stage.num_generations, "seed": context.seed, "sampling": sampling, "journal": journal}
            ask = partial(sample_rows, engine, policy.tokenizer, on_progress=report, **how)
            tried = search(problems[start : start + size], ask, score)
            bills.tell()
            yield tried
            used += sum(len(policy.tokenizer.encode(row["text"], add_special_tokens=False)) for row in tried)
            left = len(problems) - start - size
            if stage.max_tokens_total and used >= stage.max_tokens_total and left > 0:
                tally.capped = {"capped": True, "missing": left * stage.num_generations}
                return


def bind_rewards(stage: Synthesize, context: Context) -> list[Bound]:
    """Return the functions that score samples."""
    return [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]


def accept_samples(stage: Synthesize, tried: list[Row]) -> list[Row]:
    """Return the samples that ended by themselves with at least `min_reward`, each text once per problem."""
    kept = {}
    for row in tried:
        if row["whole"] and row["score"] is not None and row["score"] >= stage.min_reward:
            kept.setdefault((row["id"], row["text"]), row | {"completion": make_completion(row["text"])})
    return list(kept.values())


def make_pairs(stage: Synthesize, tried: list[Row]) -> list[Row]:
    """Return the best and worst sample of each problem, if they differ by `min_margin`; the first of equals."""
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
            sides = {
                "chosen": make_completion(best["text"]),
                "rejected": make_completion(worst["text"]),
                "margin": margin,
            }
            pairs.append(add_notes(best, scores) | sides)
    return pairs


def add_notes(row: Row, notes: Mapping[str, Any]) -> Row:
    """Return the row with notes in its metadata."""
    return row | {"metadata": json.dumps(json.loads(row["metadata"] or "{}") | dict(notes))} if notes else row


def make_completion(text: str) -> list[dict[str, str]]:
    """Return a completion as messages."""
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
        """Return metrics and details of the finished stage."""
        counts = {name: getattr(self, name) for name in self.totals}
        table: list[Row] = [{"family": f} | {name: of[f] for name, of in counts.items()} for f in sorted(self.problems)]
        for line in table:
            line["yield"] = line["accepted"] / line["generated"] if line["generated"] else 0.0
        shares = {"yield": self.totals["accepted"] / self.totals["generated"], "repeated": repeated}
        found = self.totals | shares | {"unscorable": self.unscorable} | self.capped
        details: Row = {"yield": table, "examples": self.examples[:EXAMPLES]}
        if self.inquired is not None:
            details["yield"], metrics, more = self.inquired.report(self.problems)
            found, details = found | metrics, details | more
        return Result(found, details)
