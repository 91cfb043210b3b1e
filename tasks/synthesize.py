"""kind: synthesize — prompts alone, with a teacher's completions, or with a model's own samples."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from learning.data.messages import make_batch
from learning.data.questions import Inquiry
from learning.data.rows import SCHEMAS, Row, open_row_writer, read_rows, scan_rows
from learning.lookup import Bound, bind
from learning.samples.truncation import describe_truncated
from learning.sampling.placed_rewards import place_rewards
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from schemas.use import TeacherUse
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, choose_spend, open_account, recall_tokens

if TYPE_CHECKING:
    from tasks.remote_teacher import RemoteTeacher

PROBLEMS = 1000
"""Problems that a teacher answers before their rows are written."""
SAMPLES = 32_768
"""Samples of a model in memory at once; independent of the number of workers, since rewards see them together."""
SAMPLES_TO_CAP = 512
"""The same for a stage with a cap on tokens, which is checked after each such part."""
SHOWN = ("family", "prompt", "answer", "completion", "chosen", "rejected", "margin")
EXAMPLES = 8


def run(stage: Synthesize, context: Context) -> Result:
    """Gather problems, generate completions or pairs, write those that pass, and report the yield."""
    problems, repeated = gather_problems(stage, context)
    tally = Tally(Counter(row["family"] for row in problems))
    with open_row_writer(context.output(stage.emit), stage.emit) as writer:
        if stage.earlier is not None:
            for batch in scan_rows(context.input("earlier"), "preference_pairs"):
                writer.write(pa.Table.from_batches([batch]))
        for generated, accepted in generate_rows(stage, context, problems, tally):
            tally.add(generated, accepted)
            rows = [add_notes(row, stage.notes) for row in accepted]
            writer.write(make_batch(rows, SCHEMAS[stage.emit]))
    if not tally.totals["accepted"]:
        raise StepError(
            f"synthesize: none of {tally.totals['generated']} samples was accepted; lower min_reward or min_margin, "
            f"raise num_generations, or start from a better model{tally.describe_ends()}"
            + "".join(f"; {notice}" for notice in tally.describe_samples(stage.max_completion_length))
        )
    return tally.report(repeated, stage.max_completion_length)


def generate_rows(
    stage: Synthesize, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield the generated samples of a batch of problems, and the rows to write for them."""
    if stage.emit == "prompts":
        yield problems, problems
    elif stage.teacher:
        yield from ask_teacher(stage, stage.teacher, context, problems, tally)
    else:
        choose = accept_samples if stage.emit == "chat" else make_pairs
        yield from ((samples, choose(stage, samples)) for samples in sample_model(stage, context, problems, tally))


def gather_problems(stage: Synthesize, context: Context) -> tuple[list[Row], int]:
    """Return the problems of all generators or of the stage `prompts`, and the number of repetitions left out."""
    if stage.prompts is not None:
        problems = read_rows(context.input("prompts"), "prompts")
    else:
        bound = [bind(use, f"problems.{i}", context.inputs) for i, use in enumerate(stage.problems)]
        problems = [row for generator in bound for row in generator()]
    if not problems:
        raise StepError("synthesize: no problems; check what the previous stage dropped")
    unique = {row["id"]: row for row in reversed(problems)}
    return list(reversed(unique.values())), len(problems) - len(unique)


def ask_teacher(
    stage: Synthesize, use: TeacherUse, context: Context, problems: list[Row], tally: "Tally"
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield the teacher's completions and the accepted ones; each problem has its own random stream."""
    teacher = bind(use, "teacher", context.inputs)
    for start in range(0, len(problems), PROBLEMS):
        rows = problems[start : start + PROBLEMS]
        texts = [teacher(row, np.random.default_rng([context.seed, i])) for i, row in enumerate(rows, start)]
        if isinstance(texts[0], Inquiry):
            from tasks.remote_teacher import RemoteTeacher  # its client takes a second to import

            tally.teacher = tally.teacher or RemoteTeacher(stage, context, texts, len(problems))
            yield tally.teacher.answer(rows, texts)
            continue
        completed = [row | {"completion": make_completion(text)} for row, text in zip(rows, texts, strict=True)]
        yield completed, completed
        context.progress(start + len(rows), len(problems))


def sample_model(stage: Synthesize, context: Context, problems: list[Row], tally: "Tally") -> Iterator[list[Row]]:
    """Yield a model's samples, one row each; those of an earlier attempt are read from the journal."""
    # A programmatic teacher needs no torch, whose import takes seconds.
    from learning.data.row_journal import RowJournal
    from learning.evaluation.sampled_answers import compute_weighted_scores, sample_rows
    from learning.generation.replicas.engine_loading import load_sampling_policy, open_engine
    from learning.models.policy import set_determinism
    from learning.samples.engine_protocol import Sampling

    set_determinism(context.seed, context.num_threads)
    rewards = place_rewards(bind_rewards(stage, context), context.actors)
    policy = load_sampling_policy(context.input("model"), context.device, context.actors, stage, stage.dtype)
    account = open_account(context, stage.max_tokens_total, stage.max_cost)
    spending = SpendingReporter(context, account)
    score = partial(
        compute_weighted_scores, rewards, [use.weight for use in stage.rewards], account=account, shown=tally.failures
    )
    search = bind(stage.search, "search", context.inputs)
    sampling, used = Sampling(stage.temperature, stage.max_completion_length), 0
    size = max(1, (SAMPLES_TO_CAP if stage.max_tokens_total else SAMPLES) // stage.num_generations)
    with (
        RowJournal(context.checkpoints / "sampled.jsonl") as journal,
        open_engine(stage.engine, policy, context.actors, context.input("model"), account, stage) as engine,
    ):
        spend = choose_spend(context, engine)
        recall_tokens(context, engine, journal.tokens)
        for start in range(0, len(problems), size):

            def report(done: int, tokens: int, before: int = start) -> None:
                spend(tokens)
                context.progress(before + done, len(problems))

            how = {"n": stage.num_generations, "seed": context.seed, "sampling": sampling, "journal": journal}
            ask = partial(sample_rows, engine, policy.tokenizer, on_progress=report, **how)
            samples = search(problems[start : start + size], ask, score)
            spending.report()
            yield samples
            used += sum(len(policy.tokenizer.encode(row["text"], add_special_tokens=False)) for row in samples)
            left = len(problems) - start - size
            if stage.max_tokens_total and used >= stage.max_tokens_total and left > 0:
                tally.capped = {"capped": True, "missing": left * stage.num_generations}
                return


def bind_rewards(stage: Synthesize, context: Context) -> list[Bound]:
    """Return the functions that score samples."""
    return [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]


def accept_samples(stage: Synthesize, samples: list[Row]) -> list[Row]:
    """Return the complete samples with a score of at least `min_reward`, each text once per problem."""
    accepted = {}
    for row in samples:
        if row["finished"] and row["score"] is not None and row["score"] >= stage.min_reward:
            accepted.setdefault((row["id"], row["text"]), row | {"completion": make_completion(row["text"])})
    return list(accepted.values())


def make_pairs(stage: Synthesize, samples: list[Row]) -> list[Row]:
    """Return the best and worst sample of each problem, if they differ by `min_margin`; the first of equals."""
    groups: dict[str, list[Row]] = {}
    for row in samples:
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


def add_notes(row: Row, notes: Mapping[str, object]) -> Row:
    """Return the row with notes in its metadata."""
    return row | {"metadata": json.dumps(json.loads(row["metadata"] or "{}") | dict(notes))} if notes else row


def make_completion(text: str) -> list[dict[str, str]]:
    """Return a completion as messages."""
    return [{"role": "assistant", "content": text}]


@dataclass
class Tally:
    """Counts by family, and examples spread over all rows; `unscorable` counts samples without a score."""

    problems: Counter[str]
    generated: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    unscorable: int = 0
    truncated: int = 0
    """Samples of a model that hit the length limit."""
    failures: dict[str, str] = field(default_factory=dict)
    """First failure of each reward that has raised."""
    examples: list[Row] = field(default_factory=list)
    stride: int = 1
    teacher: "RemoteTeacher | None" = None
    """A remote teacher, which has further metrics and details."""
    capped: Row = field(default_factory=dict)
    """Metrics about the cap on tokens, if sampling reached it."""

    def describe_ends(self) -> str:
        """Return the outcomes of a remote teacher's replies for an error message; empty without such a teacher."""
        return f" ({self.teacher.describe_ends(self.problems)})" if self.teacher is not None else ""

    @property
    def totals(self) -> dict[str, int]:
        """Counts over all families."""
        return {name: getattr(self, name).total() for name in ("problems", "generated", "accepted")}

    def add(self, generated: list[Row], accepted: list[Row]) -> None:
        """Count a batch."""
        before = self.accepted.total()
        self.generated.update(row["family"] for row in generated)
        self.accepted.update(row["family"] for row in accepted)
        self.unscorable += sum(row.get("score", 0.0) is None for row in generated)
        self.truncated += sum(not row.get("finished", True) for row in generated)
        for place, row in enumerate(accepted, before):
            if place % self.stride == 0:
                self.examples.append({key: row[key] for key in SHOWN if key in row})
            if len(self.examples) == 2 * EXAMPLES:
                self.examples, self.stride = self.examples[::2], 2 * self.stride

    def describe_samples(self, max_completion_length: int) -> list[str]:
        """Return sentences about samples that were truncated or have no score."""
        generated = self.generated.total()
        notices = describe_truncated(self.truncated, generated, max_completion_length)
        if self.unscorable:
            why = "; ".join(self.failures.values()) or "a reward returned None for them"
            notices.append(f"{self.unscorable} of {generated} samples have no score: {why}")
        return notices

    def report(self, repeated: int, max_completion_length: int) -> Result:
        """Return metrics and details of the finished stage."""
        counts = {name: getattr(self, name) for name in self.totals}
        table: list[Row] = [{"family": f} | {name: of[f] for name, of in counts.items()} for f in sorted(self.problems)]
        for line in table:
            line["yield"] = line["accepted"] / line["generated"] if line["generated"] else 0.0
        shares = {"yield": self.totals["accepted"] / self.totals["generated"], "repeated": repeated}
        metrics = self.totals | shares | {"unscorable": self.unscorable} | self.capped
        details: Row = {"yield": table, "examples": self.examples[:EXAMPLES]}
        if self.teacher is not None:
            details["yield"], more_metrics, more_details = self.teacher.report(self.problems)
            metrics, details = metrics | more_metrics, details | more_details
        return Result(metrics, details, self.describe_samples(max_completion_length))
