"""kind: evaluate — several models on the same held-out problems: a table with intervals, paired differences, gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from learning.agents.acting import load_env, load_rows
from learning.api.spending import SpendingAccount
from learning.data.row_journal import RowJournal
from learning.data.rows import Row, read_rows
from learning.environments.making import open_environment
from learning.evaluation.answer_likelihood import measure_answer_logprobs
from learning.evaluation.asking import Asking, run_solver
from learning.evaluation.evaluated import Evaluated
from learning.evaluation.evaluation import ALL, Scores, has_episodes, make_comparisons, make_metric_name, make_table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.gate_statistics import check_gates, judge_gates
from learning.evaluation.role_scores import tabulate_roles
from learning.evaluation.sampled_answers import (
    AnswerSample,
    collect_texts,
    compute_weighted_scores,
    describe_completions,
    measure_truncated,
    sample_rows,
    select_best,
    summarise_episodes,
)
from learning.evaluation.scored_tasks import ScoredAnswers, ScoredTasks, ScoringModel
from learning.generation.replicas.engine_loading import load_sampling_policy, open_engine
from learning.lookup import Bound, bind
from learning.merge.weight_geometry import measure_weights
from learning.models.policy import Policy, get_untied_weights, load_policy, set_determinism
from learning.samples.engine_protocol import Sampling
from learning.sampling.placed_rewards import place_rewards
from learning.sampling.processing import bind_processors
from learning.sampling.scoring import PlacedReward
from schemas.errors import StepError
from schemas.evaluation_slots import ANSWER_LOGPROBS, SCORED_TASKS, EvaluationTaskUse
from schemas.number_schedules import Number
from schemas.stages.evaluate import Evaluate
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, choose_spend, open_account, recall_tokens
from tasks.training_rows import describe_trained_problems

SHOWN_PER_FAMILY = 4
REPEAT = 1_000_003
"""Difference of the seeds of repeated evaluations: so large that the seed of no stage is one of them."""


def run(stage: Evaluate, context: Context) -> Result:
    """Sample from every model on every problem, score, and report; `flows` acts on the gates."""
    return compare_models(stage, context, Evaluation)


def compare_models(stage: Evaluate, context: Context, evaluation: "type[Evaluation]") -> Result:
    """Return the report of a stage whose models are evaluated by `evaluation`."""
    set_determinism(context.seed, context.num_threads)
    names = list(stage.models) or ["model"]
    ports = {name: f"models.{name}" for name in stage.models} or {"model": "model"}
    ports |= {name: f"against.{name}" for name in stage.against}
    problems, repeated = gather_problems(stage, context)
    scored = load_scored_tasks(stage, context)
    rows = [*problems, *(row for tasks in scored for row in tasks.rows)]
    families = [row["family"] for row in rows]
    check_gates(stage, names, families)
    again = choose_repeats(stage, names)
    work = evaluation(stage, context, problems, scored, total=(len(ports) + sum(map(len, again))) * len(rows))
    evaluated = {name: work.evaluate(port, context.seed) for name, port in ports.items()}
    samples = {name: one.samples for name, one in evaluated.items()}
    scores = {name: one.score_PN for name, one in evaluated.items()}
    repeats, repeated_texts = [], []
    for number, chosen in enumerate(again):
        repetition = {name: work.evaluate(ports[name], context.seed + REPEAT * (number + 1)) for name in chosen}
        repeats.append({name: one.score_PN for name, one in repetition.items()})
        repeated_texts.append({name: collect_texts(one.samples) for name, one in repetition.items()})
    texts = {name: collect_texts(groups) for name, groups in samples.items()}
    likelihoods = measure_answers(stage, context, ports, problems, len(rows))
    reported = {name: one.reported for name, one in evaluated.items()}
    measured = Scores(scores, families, repeats, texts, repeated_texts, likelihoods, reported, first=names[0])
    results = {
        "confidence": stage.confidence,
        "problems": len(rows),
        "repeated": repeated,
        "table": make_table(stage, measured, context.seed),
        "comparisons": make_comparisons(stage, measured, context.seed),
    }
    if calls := {name: one.calls for name, one in evaluated.items() if one.calls}:
        results["calls"] = calls
    if stage.roles:
        results["roles"] = tabulate_roles(stage, {n: one.roles for n, one in evaluated.items()}, families, context.seed)
    if scored:
        results[SCORED_TASKS] = {name: one.summary for name, one in evaluated.items()}
    if has_episodes(stage):
        results["episodes"] = {name: summarise_episodes(groups) for name, groups in samples.items()}
    if stage.weight_diff:
        results["weights"] = compare_weights(stage, context, {name: ports[name] for name in names})
    results["gates"] = judge_gates(stage, measured, context.seed)
    write_report(context.output("report"), results, make_sample_rows(rows, samples, scores))
    return Result(
        flatten_metrics(results, scores, names[-1]) | measure_truncated(samples),
        results | {"samples": select_examples(rows, samples, scores)},
        [*describe_completions(stage, samples, scores, work.shown), *describe_trained_problems(rows, context)],
    )


def gather_problems(stage: Evaluate, context: Context) -> tuple[list[Row], int]:
    """Return the distinct held-out problems, at most `limit` of each source, and the number of repetitions."""
    generators = ((f"tasks.{i}", use) for i, use in enumerate(stage.tasks) if use.use != SCORED_TASKS)
    sources = [bind(use, port, context.inputs)() for port, use in generators]
    if stage.prompts is not None:
        sources.append(read_rows(context.input("prompts"), "prompts"))
    problems = [row for source in sources for row in source[: stage.limit]]
    if not problems and not any(use.use == SCORED_TASKS for use in stage.tasks):
        raise StepError("evaluate: no problems to evaluate on")
    unique = {row["id"]: row for row in reversed(problems)}
    return list(reversed(unique.values())), len(problems) - len(unique)


def load_scored_tasks(stage: Evaluate, context: Context) -> list[ScoredTasks]:
    """Return the tasks that a library prompts and scores. Raise StepError if one cannot be loaded or is repeated."""
    loaded: list[ScoredTasks] = []
    for i, use in enumerate(stage.tasks):
        if use.use == SCORED_TASKS:
            limited = EvaluationTaskUse.model_validate({"limit": stage.limit} | use.model_dump())
            loaded.append(bind(limited, f"tasks.{i}", context.inputs)())
    families = [family for tasks in loaded for family in {row["family"] for row in tasks.rows}]
    for family in families:
        if families.count(family) > 1:
            raise StepError(f"evaluate: task {family} of {SCORED_TASKS} is there twice; evaluate it in two stages")
    return loaded


def measure_answers(
    stage: Evaluate, context: Context, ports: dict[str, str], problems: list[Row], size: int
) -> dict[str, np.ndarray]:
    """Return the log-probability of every answer by model, (size,); empty if no metric requests it.

    NaN for the rows after `problems`, which are those of a library.
    """
    if not any(ANSWER_LOGPROBS in bind(use, f"metrics.{i}").asks for i, use in enumerate(stage.metrics)):
        return {}
    likelihoods: dict[str, np.ndarray] = {}
    for name, port in ports.items():
        policy = load_policy(context.input(port), device=context.device, dtype=stage.dtype)
        likelihoods[name] = np.full(size, np.nan)
        likelihoods[name][: len(problems)] = measure_answer_logprobs(policy, problems)
    return likelihoods


def choose_repeats(stage: Evaluate, names: list[str]) -> list[list[str]]:
    """Return the models of each further evaluation that gates need for their noise floor."""
    repeats = [(gate.noise_repeats, gate.model or names[-1], gate.against) for gate in stage.gate if gate.noise_repeats]
    models = {*names, *stage.against}
    return [
        list(dict.fromkeys(m for count, *pair in repeats if count > number for m in pair if m in models))
        for number in range(max((count for count, *_ in repeats), default=0))
    ]


@dataclass
class Evaluation:
    """Models evaluated one after the other, with progress reported over `total` problems."""

    stage: Evaluate
    context: Context
    problems: list[Row]
    scored: Sequence[ScoredTasks]
    """Tasks that a library prompts and scores."""
    total: int
    done: int = 0
    started: int = 0
    """Evaluations started so far; their order is the same in every attempt of a step."""

    def __post_init__(self) -> None:
        stage, context = self.stage, self.context
        self.account = open_account(context, stage.max_tokens_total, stage.max_cost)
        self.spending = SpendingReporter(context, self.account)
        rewards = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
        selector = [bind(stage.selector, "selector", context.inputs)] if stage.selector is not None else []
        placed = place_rewards([*rewards, *selector], context.actors)
        self.rewards, self.selector = placed[: len(rewards)], placed[len(rewards) :]
        self.spend = context.spend
        self.shown: dict[str, str] = {}

    def evaluate(self, port: str, seed: int) -> Evaluated:
        """Return the completions of one model and their scores; all models use the same random numbers."""
        try:
            samples, calls, answers = self._sample(port, seed)
            episodes = has_episodes(self.stage)
            samples = select_samples(self.selector, self.problems, samples, self.account, self.shown, episodes=episodes)
            weights = [use.weight for use in self.stage.rewards]
            score_PN = score_samples(
                self.rewards, weights, self.problems, samples, self.account, self.shown, episodes=episodes
            )
            refuse_no_scores(port, self.stage, self.problems, score_PN)
            evaluated = Evaluated(samples, score_PN, calls)
            for each in answers:
                evaluated = evaluated.extend(each)
            return evaluated
        finally:
            self.spending.report()

    def _sample(self, port: str, seed: int) -> tuple[list[list[AnswerSample]], dict[str, int], list[ScoredAnswers]]:
        """Return samples, calls and answers to libraries' tasks; those of an earlier attempt are in the journal."""
        stage, context, folder = self.stage, self.context, self.context.input(port)
        policy = load_sampling_policy(folder, context.device, context.actors, stage, stage.dtype)
        name = port.partition(".")[2]
        agent = context.inputs.get(f"agents.{name}", context.inputs.get("agent"))
        place, own = (f"envs.{name}", stage.envs[name]) if name in stage.envs else ("env", stage.env)
        env, problems = load_env(agent, own), list(load_rows(agent, self.problems))
        self.started += 1
        with (
            RowJournal(context.checkpoints / f"sampled-{self.started}.jsonl") as journal,
            open_engine(stage.engine, policy, context.actors, folder, self.account, stage) as plain,
            open_environment(plain, env, policy.tokenizer, context.inputs, policy.max_length, place) as engine,
        ):
            self.spend = choose_spend(context, engine)
            recall_tokens(context, engine, journal.tokens)
            process = bind_processors(stage.logits_processors, name, context.inputs)
            sampling = Sampling(stage.temperature, stage.max_completion_length, processor=process)
            if solver := self._find_solver(name):
                asking = Asking(engine, policy.tokenizer, sampling, seed, spend=self.spend, journal=journal)
                samples = run_solver(solver, asking, problems, stage.num_generations)
                self.done += len(self.problems)
                context.progress(self.done, self.total)
                return samples, {"calls": asking.calls, "longest_call": asking.longest}, []
            how = {"n": stage.num_generations, "seed": seed, "sampling": sampling, "journal": journal}
            samples = sample_rows(engine, policy.tokenizer, problems, on_progress=self._report, **how)
            self.done += len(self.problems)
            model = ScoringModel(engine, policy, partial(self._load_weights, port, policy), seed, journal, self._report)
            return samples, {}, [self._answer(tasks, model) for tasks in self.scored]

    def _find_solver(self, name: str) -> Bound | None:
        """Return the solver of a model, its own before that of all models."""
        if name in self.stage.solvers:
            return bind(self.stage.solvers[name], f"solvers.{name}", self.context.inputs)
        return bind(self.stage.solver, "solver", self.context.inputs) if self.stage.solver else None

    def _answer(self, tasks: ScoredTasks, model: ScoringModel) -> ScoredAnswers:
        answers = tasks.answer(model)
        self.done += len(tasks.rows)
        return answers

    def _load_weights(self, port: str, policy: Policy) -> Policy:
        """Return the policy whose forward scores texts: the engine's, unless workers sample with their own."""
        actors, device = self.context.actors, self.context.device
        elsewhere = actors is not None and actors.size("rollout")
        return load_policy(self.context.input(port), device=device, dtype=self.stage.dtype) if elsewhere else policy

    def _report(self, done: int, tokens: int) -> None:
        self.spend(tokens)
        self.spending.report()
        self.context.progress(self.done + done, self.total)


def compare_weights(stage: Evaluate, context: Context, ports: dict[str, str]) -> list[Row]:
    """Return every measure of every model's weights against those of the first."""
    words = [use.use.rpartition(":")[2] for use in stage.weight_diff]
    names = [n if words.count(n) == 1 else make_metric_name(u) for n, u in zip(words, stage.weight_diff, strict=True)]
    measures = {n: bind(u, f"weight_diff.{i}") for i, (n, u) in enumerate(zip(names, stage.weight_diff, strict=True))}
    (first, port), *others = ports.items()
    before = get_untied_weights(load_policy(context.input(port)).model)
    lines: list[Row] = []
    for name, other in others:
        lines += measure_weights(
            name, first, before, get_untied_weights(load_policy(context.input(other)).model), measures
        )
    return lines


def select_samples(
    selector: Sequence[Bound | PlacedReward],
    problems: list[Row],
    groups: list[list[AnswerSample]],
    account: SpendingAccount,
    shown: dict[str, str],
    *,
    episodes: bool,
) -> list[list[AnswerSample]]:
    """Return for every problem the sample that the selector scores highest; all samples without a selector."""
    if not selector:
        return groups
    rows = [row for row, group in zip(problems, groups, strict=True) for _ in group]
    samples = [one for group in groups for one in group]
    texts = [one.text for one in samples]
    scores = compute_weighted_scores(selector, [1.0], rows, texts, account, samples, shown, episodes=episodes)
    return select_best(groups, scores)


def score_samples(
    rewards: Sequence[Bound | PlacedReward],
    weights: Sequence[Number],
    problems: list[Row],
    samples: list[list[AnswerSample]],
    account: SpendingAccount,
    shown: dict[str, str],
    *,
    episodes: bool,
) -> np.ndarray:
    """Return scores (P, N), NaN where a reward gives none."""
    rows = [row for row, group in zip(problems, samples, strict=True) for _ in group]
    flat_samples = [one for group in samples for one in group]
    texts = [one.text for one in flat_samples]
    flat_scores = compute_weighted_scores(
        rewards, weights, rows, texts, account, flat_samples, shown, episodes=episodes
    )
    return np.array([np.nan if s is None else s for s in flat_scores]).reshape(len(problems), -1 if problems else 1)


def refuse_no_scores(port: str, stage: Evaluate, problems: list[Row], score_PN: np.ndarray) -> None:
    """Raise StepError if no completion of a model has a score."""
    if score_PN.size > 1 and np.isnan(score_PN).all():
        rewards = ", ".join(use.use for use in stage.rewards)
        raise StepError(
            f"evaluate: none of {score_PN.size} completions of `{port}` has a score, so nothing is measured: at least "
            f"one of the rewards ({rewards}) returns None or raises for each, first for row {problems[0]['id']!r}. "
            "Does the reward find what it needs in the rows (`answer`, `metadata`)?"
        )


def flatten_metrics(results: Row, scores: dict[str, np.ndarray], last: str) -> dict[str, float | int]:
    """Return metrics for gates, loops and MLflow: `accuracy` of the last model, `accuracy.<model>[.<family>]`."""
    metrics: dict[str, float | int] = {"problems": results["problems"]}
    for line in results["table"]:
        name = f"{line['metric']}.{line['model']}"
        metrics[name if line["family"] == ALL else f"{name}.{line['family']}"] = line["value"]
        if line["family"] == ALL and line["model"] == last:
            metrics[line["metric"]] = line["value"]
    for model, counts in results.get("calls", {}).items():
        metrics |= {f"{what}.{model}": count for what, count in counts.items()}
    for model, values in results.get("episodes", {}).items():
        metrics |= {f"{what}.{model}": value for what, value in values.items()}
    for line in results.get("roles", {}).get("table", []):
        if line["family"] == ALL:
            metrics[f"role/{line['role']}/{line['metric']}.{line['model']}"] = line["value"]
    for line in results.get("weights", []):
        if line["value"] is not None:
            metrics[f"{line['measure']}.{line['model']}"] = line["value"]
    metrics["unscorable"] = int(sum(np.isnan(score_PN).sum() for score_PN in scores.values()))
    metrics["gates_failed"] = sum(not gate["passed"] for gate in results["gates"])
    return metrics


def make_sample_rows(
    problems: list[Row], samples: dict[str, list[list[AnswerSample]]], scores: dict[str, np.ndarray]
) -> list[Row]:
    """Return every sample of every model, one row each."""
    return [
        {
            "model": model,
            "id": row["id"],
            "family": row["family"],
            "sample": n,
            "prompt": row["prompt"][-1]["content"],
            "answer": row["answer"],
            "completion": one.transcript or one.text,
            "truncated": one.finish == "length",
            "score": None if np.isnan(scores[model][p, n]) else float(scores[model][p, n]),
        }
        for model, groups in samples.items()
        for p, (row, group) in enumerate(zip(problems, groups, strict=True))
        for n, one in enumerate(group)
    ]


def select_examples(
    problems: list[Row], samples: dict[str, list[list[AnswerSample]]], scores: dict[str, np.ndarray]
) -> list[Row]:
    """Return a few problems with the first completion of each model."""
    picked: list[Row] = []
    count: dict[str, int] = {}
    for p, row in enumerate(problems):
        count[row["family"]] = count.get(row["family"], 0) + 1
        if count[row["family"]] <= SHOWN_PER_FAMILY:
            completions = {model: groups[p][0].transcript or groups[p][0].text for model, groups in samples.items()}
            marks = {model: None if np.isnan(s[p, 0]) else float(s[p, 0]) for model, s in scores.items()}
            shared = {"family": row["family"], "prompt": row["prompt"][-1]["content"], "answer": row["answer"]}
            picked.append(shared | {"completions": completions, "scores": marks})
    return picked
