"""kind: synthesize — prompts alone, with a programmatic teacher's completions, or with a model's own samples."""

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from learning.lookup import bind
from learning.rows import read_rows, write_rows
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from tasks.context import Context, Result

Row = dict[str, Any]


def run(stage: Synthesize, context: Context) -> Result:
    """Gather problems, let the author write, keep what passes, and say how much of it did."""
    problems, repeated = gather(stage, context)
    if stage.emit == "prompts":
        generated, made = problems, problems
    elif stage.teacher:
        generated = made = taught(stage, context, problems)
    else:
        generated, made = sampled(stage, context, problems)
    if not made:
        raise StepError(
            f"synthesize: none of {len(generated)} samples was accepted; lower min_reward or min_margin, raise "
            "num_generations, or start from a better model"
        )
    earlier = read_rows(context.input("earlier"), "preference_pairs") if stage.earlier is not None else []
    write_rows(context.output(stage.emit), stage.emit, earlier + [noted(row, stage.notes) for row in made])
    return report(problems, generated, made, repeated)


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


def taught(stage: Synthesize, context: Context, problems: list[Row]) -> list[Row]:
    """The teacher's completion of every problem; each problem has a random stream of its own."""
    teacher = bind(stage.teacher, "teacher", context.inputs)
    made = []
    for index, row in enumerate(problems):
        made.append(row | {"completion": said(teacher(row, np.random.default_rng([context.seed, index])))})
        if (index + 1) % 1000 == 0:
            context.progress(index + 1, len(problems))
    return made


def sampled(stage: Synthesize, context: Context, problems: list[Row]) -> tuple[list[Row], list[Row]]:
    """A model's samples, one row each, and the rows made of those that pass."""
    # A programmatic teacher needs no torch, whose import takes seconds.
    from learning.engines.load import make_engine
    from learning.engines.protocol import Sampling
    from learning.policy import load_policy, set_determinism
    from learning.sampling import sample_rows, weighted_scores

    set_determinism(context.seed, context.num_threads)
    rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
    policy = load_policy(context.input("model"), device=context.device)

    def told(done: int, tokens: int) -> None:
        context.spend(tokens)
        context.progress(done, len(problems))

    ask = partial(
        sample_rows,
        make_engine(stage.engine, policy),
        policy.tokenizer,
        n=stage.num_generations,
        seed=context.seed,
        sampling=Sampling(stage.temperature, stage.max_completion_length),
        on_progress=told,
    )
    score = partial(weighted_scores, rewards, [use.weight for use in stage.rewards])
    tried = bind(stage.search, "search", context.inputs)(problems, ask, score)
    choose = accepted if stage.emit == "chat" else paired
    return tried, choose(stage, tried)


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


def report(problems: list[Row], generated: list[Row], made: list[Row], repeated: int) -> Result:
    """Counts in all and by family; `unscorable` are samples that a reward could say nothing about."""
    columns = {"problems": problems, "generated": generated, "accepted": made}
    counts = {name: Counter(row["family"] for row in rows) for name, rows in columns.items()}
    table = [
        {"family": family} | {name: counts[name][family] for name in columns} for family in sorted(counts["problems"])
    ]
    for line in table:
        line["yield"] = line["accepted"] / line["generated"]
    totals = {name: len(rows) for name, rows in columns.items()}
    unscorable = sum(row.get("score", 0.0) is None for row in generated)
    shares = {"yield": len(made) / len(generated), "repeated": repeated, "unscorable": unscorable}
    shown = ("family", "prompt", "answer", "completion", "chosen", "rejected", "margin")
    examples = [{key: row[key] for key in shown if key in row} for row in made[:: max(1, len(made) // 8)][:8]]
    return Result(totals | shares, {"yield": table, "examples": examples})
