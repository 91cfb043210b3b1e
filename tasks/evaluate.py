"""kind: evaluate — several models on the same held-out problems: a table with intervals, paired differences, gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learning.agents.acting import env_at, rows_at
from learning.api.spending import Desk
from learning.data.row_journal import RowJournal
from learning.data.rows import read_rows
from learning.environments.making import playing
from learning.evaluation.asking import Asking, run_program
from learning.evaluation.evaluation import ALL, Scores, comparisons, metric_name, table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.gate_statistics import check_gates, gate_outcomes
from learning.evaluation.sampled_answers import AnswerSample, best_of, sample_rows, weighted_scores
from learning.generation.replicas.engine_loading import engine_for, policy_for
from learning.lookup import Bound, bind
from learning.merge.weight_geometry import weight_lines
from learning.models.policy import load_policy, set_determinism, untied
from learning.samples.engine_protocol import Sampling
from learning.sampling.placed_rewards import place_rewards
from schemas.errors import StepError
from schemas.schedules import Number
from schemas.stages.evaluate import Evaluate
from tasks.context import Context, Result
from tasks.remote import Bills, desk_of, spending

Row = dict[str, Any]
SHOWN_PER_FAMILY = 4
REPEAT = 1_000_003
"""Between the seeds of repeated evaluations: far enough that no stage's own seed is one of them."""


def run(stage: Evaluate, context: Context) -> Result:
    """AnswerSample every model on every problem, score, and report; flows acts on the gates."""
    set_determinism(context.seed, context.num_threads)
    names = list(stage.models) or ["model"]
    ports = {name: f"models.{name}" for name in stage.models} or {"model": "model"}
    ports |= {name: f"against.{name}" for name in stage.against}
    problems, repeated = gather(stage, context)
    families = [row["family"] for row in problems]
    check_gates(stage, names, families)
    again = rounds(stage, names)
    samples, scores, calls = {}, {}, {}
    work = Work(stage, context, problems, total=(len(ports) + sum(map(len, again))) * len(problems))
    for name, port in ports.items():
        samples[name], scores[name], calls[name] = work.evaluated(port, context.seed)
    repeats, said = [], []
    for number, chosen in enumerate(again):
        found = {name: work.evaluated(ports[name], context.seed + REPEAT * (number + 1)) for name in chosen}
        repeats.append({name: score_PN for name, (_, score_PN, _) in found.items()})
        said.append({name: texts_of(groups) for name, (groups, _, _) in found.items()})
    texts = {name: texts_of(groups) for name, groups in samples.items()}
    measured = Scores(scores, families, repeats, texts, said, first=names[0])
    results = {
        "confidence": stage.confidence,
        "problems": len(problems),
        "repeated": repeated,
        "table": table(stage, measured, context.seed),
        "comparisons": comparisons(stage, measured, context.seed),
    }
    if stage.solver:
        results["calls"] = calls
    if stage.env or stage.agent or stage.agents:
        results["episodes"] = {name: told_of_episodes(groups) for name, groups in samples.items()}
    if stage.weight_diff:
        results["weights"] = weights(stage, context, {name: ports[name] for name in names})
    results["gates"] = gate_outcomes(stage, measured, context.seed)
    write_report(context.output("report"), results, sample_rows_of(problems, samples, scores))
    return Result(flat(results, scores, names[-1]), results | {"samples": shown(problems, samples, scores)})


def gather(stage: Evaluate, context: Context) -> tuple[list[Row], int]:
    """Held-out problems, each once, at most `limit` of each source; how many came twice."""
    sources = [bind(use, f"tasks.{i}", context.inputs)() for i, use in enumerate(stage.tasks)]
    if stage.prompts is not None:
        sources.append(read_rows(context.input("prompts"), "prompts"))
    found = [row for source in sources for row in source[: stage.limit]]
    if not found:
        raise StepError("evaluate: no problems to evaluate on")
    unique = {row["id"]: row for row in reversed(found)}
    return list(reversed(unique.values())), len(found) - len(unique)


def rounds(stage: Evaluate, names: list[str]) -> list[list[str]]:
    """For each further evaluation that gates want for their noise floor, the models that take part."""
    wanted = [(gate.noise_repeats, gate.model or names[-1], gate.against) for gate in stage.gate if gate.noise_repeats]
    there = {*names, *stage.against}
    return [
        list(dict.fromkeys(m for count, *pair in wanted if count > number for m in pair if m in there))
        for number in range(max((count for count, *_ in wanted), default=0))
    ]


@dataclass
class Work:
    """Models asked one after the other, told as progress through `total` problems."""

    stage: Evaluate
    context: Context
    problems: list[Row]
    total: int
    done: int = 0
    asked: int = 0
    """Evaluations so far, in an order that a step always has."""

    def __post_init__(self) -> None:
        stage, context = self.stage, self.context
        self.desk = desk_of(context, stage.max_tokens_total, stage.max_cost)
        self.bills = Bills(context, self.desk)
        rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
        selector = [bind(stage.selector, "selector", context.inputs)] if stage.selector is not None else []
        found = place_rewards([*rewards, *selector], context.actors)
        self.rewards, self.selector = found[: len(rewards)], found[len(rewards) :]
        self.spend = context.spend
        self.shown: set[str] = set()

    def evaluated(self, port: str, seed: int) -> tuple[list[list[AnswerSample]], np.ndarray, dict[str, int]]:
        """Completions of one model, their scores (P, N), and with a program what it asked.

        All models draw the same random numbers from a seed.
        """
        try:
            samples, calls = self._sampled(port, seed)
            samples = selected(self.selector, self.problems, samples, self.desk, self.shown)
            self.done += len(self.problems)
            weights = [use.weight for use in self.stage.rewards]
            return samples, score(self.rewards, weights, self.problems, samples, self.desk, self.shown), calls
        finally:
            self.bills.tell()

    def _sampled(self, port: str, seed: int) -> tuple[list[list[AnswerSample]], dict[str, int]]:
        """What a killed step had sampled is not sampled again."""
        stage, context, folder = self.stage, self.context, self.context.input(port)
        policy = policy_for(folder, context.device, context.actors)
        agent = context.inputs.get(f"agents.{port.partition('.')[2]}", context.inputs.get("agent"))
        env, problems = env_at(agent, stage.env), list(rows_at(agent, self.problems))
        self.asked += 1
        with (
            RowJournal(context.checkpoints / f"sampled-{self.asked}.jsonl") as journal,
            engine_for(stage.engine, policy, context.actors, folder, self.desk) as plain,
            playing(plain, env, policy.tokenizer, context.inputs) as engine,
        ):
            self.spend = spending(context, engine)
            sampling = Sampling(stage.temperature, stage.max_completion_length)
            if stage.solver:
                asking = Asking(engine, policy.tokenizer, sampling, seed, spend=self.spend, journal=journal)
                program = bind(stage.solver, "solver", context.inputs)
                found = run_program(program, asking, problems, stage.num_generations)
                context.progress(self.done + len(self.problems), self.total)
                return found, {"calls": asking.calls, "longest_call": asking.longest}
            how = {"n": stage.num_generations, "seed": seed, "sampling": sampling, "journal": journal}
            return sample_rows(engine, policy.tokenizer, problems, on_progress=self._told, **how), {}

    def _told(self, here: int, tokens: int) -> None:
        self.spend(tokens)
        self.bills.tell()
        self.context.progress(self.done + here, self.total)


def texts_of(samples: list[list[AnswerSample]]) -> np.ndarray:
    """What was said, (P, N)."""
    return np.array([[one.text for one in group] for group in samples], dtype=object)


def told_of_episodes(samples: list[list[AnswerSample]]) -> dict[str, float]:
    """Whole turns of the model per episode, and how many of them the environment could not carry out."""
    turns = [one.turns for group in samples for one in group]
    failed = sum(not turn.ok for of in turns for turn in of)
    return {"turns": sum(map(len, turns)) / len(turns), "failed_turns": failed / len(turns)}


def weights(stage: Evaluate, context: Context, ports: dict[str, str]) -> list[Row]:
    """Every measure of every model's weights against those of the first."""
    words = [use.use.rpartition(":")[2] for use in stage.weight_diff]
    names = [n if words.count(n) == 1 else metric_name(u) for n, u in zip(words, stage.weight_diff, strict=True)]
    measures = {n: bind(u, f"weight_diff.{i}") for i, (n, u) in enumerate(zip(names, stage.weight_diff, strict=True))}
    (first, port), *others = ports.items()
    before = untied(load_policy(context.input(port)).model)
    lines: list[Row] = []
    for name, other in others:
        lines += weight_lines(name, first, before, untied(load_policy(context.input(other)).model), measures)
    return lines


def selected(
    selector: Sequence[Bound], problems: list[Row], groups: list[list[AnswerSample]], desk: Desk, shown: set[str]
) -> list[list[AnswerSample]]:
    """Of every problem's samples the one that the selector likes best; all of them without a selector."""
    if not selector:
        return groups
    rows = [row for row, group in zip(problems, groups, strict=True) for _ in group]
    samples = [one for group in groups for one in group]
    return best_of(groups, weighted_scores(selector, [1.0], rows, [one.text for one in samples], desk, samples, shown))


def score(
    rewards: Sequence[Bound],
    weights: Sequence[Number],
    problems: list[Row],
    samples: list[list[AnswerSample]],
    desk: Desk,
    shown: set[str],
) -> np.ndarray:
    """Scores (P, N), NaN where a reward could say nothing."""
    rows = [row for row, group in zip(problems, samples, strict=True) for _ in group]
    flat_samples = [one for group in samples for one in group]
    found = weighted_scores(rewards, weights, rows, [one.text for one in flat_samples], desk, flat_samples, shown)
    return np.array([np.nan if s is None else s for s in found]).reshape(len(problems), -1)


def flat(results: Row, scores: dict[str, np.ndarray], last: str) -> dict[str, float | int]:
    """Metrics for gates, loops and MLflow: `accuracy` of the last model, `accuracy.<model>[.<family>]`."""
    found: dict[str, float | int] = {"problems": results["problems"]}
    for line in results["table"]:
        name = f"{line['metric']}.{line['model']}"
        found[name if line["family"] == ALL else f"{name}.{line['family']}"] = line["value"]
        if line["family"] == ALL and line["model"] == last:
            found[line["metric"]] = line["value"]
    for model, counts in results.get("calls", {}).items():
        found |= {f"{what}.{model}": count for what, count in counts.items()}
    for model, told in results.get("episodes", {}).items():
        found |= {f"{what}.{model}": value for what, value in told.items()}
    for line in results.get("weights", []):
        if line["value"] is not None:
            found[f"{line['measure']}.{line['model']}"] = line["value"]
    found["unscorable"] = int(sum(np.isnan(score_PN).sum() for score_PN in scores.values()))
    found["gates_failed"] = sum(not gate["passed"] for gate in results["gates"])
    return found


def sample_rows_of(problems: list[Row], samples: dict[str, Any], scores: dict[str, np.ndarray]) -> list[Row]:
    """Every sample of every model, one row each."""
    return [
        {
            "model": model,
            "id": row["id"],
            "family": row["family"],
            "sample": n,
            "prompt": row["prompt"][-1]["content"],
            "answer": row["answer"],
            "completion": one.whole or one.text,
            "truncated": one.finish == "length",
            "score": None if np.isnan(scores[model][p, n]) else float(scores[model][p, n]),
        }
        for model, groups in samples.items()
        for p, (row, group) in enumerate(zip(problems, groups, strict=True))
        for n, one in enumerate(group)
    ]


def shown(problems: list[Row], samples: dict[str, Any], scores: dict[str, np.ndarray]) -> list[Row]:
    """A few problems with every model's first completion, side by side."""
    picked: list[Row] = []
    count: dict[str, int] = {}
    for p, row in enumerate(problems):
        count[row["family"]] = count.get(row["family"], 0) + 1
        if count[row["family"]] <= SHOWN_PER_FAMILY:
            said = {model: groups[p][0].whole or groups[p][0].text for model, groups in samples.items()}
            marks = {model: None if np.isnan(s[p, 0]) else float(s[p, 0]) for model, s in scores.items()}
            shared = {"family": row["family"], "prompt": row["prompt"][-1]["content"], "answer": row["answer"]}
            picked.append(shared | {"completions": said, "scores": marks})
    return picked
