"""Tasks of lm-eval (EleutherAI's Language Model Evaluation Harness): its own, and task files of the user.

lm-eval writes the prompts and scores the answers. This module loads its tasks without a download, and turns its results
into rows and scores, so that intervals, paired tests and gates treat them as those of any other task.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.evaluation.sampled_answers import AnswerSample
from learning.evaluation.scored_tasks import ScoredAnswers, ScoredTasks, ScoringModel
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.references import AnyRef

PER_UNIT = ("weighted_perplexity", "bits_per_byte")
"""Aggregations of lm-eval over pairs (log-likelihood, number of words or bytes)."""


def lm_eval(
    *,
    tasks: list[str],
    num_fewshot: Annotated[int, Field(ge=0)] | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    include_path: AnyRef | None = None,
    apply_chat_template: bool = False,
    fewshot_as_multiturn: bool = True,
    metric: str | None = None,
    seed: int = 1234,
) -> ScoredTasks:
    """Evaluate on tasks of lm-eval, which prompts and scores; needs `pip install 'posttrain[evals]'`.

    `tasks` are names of its tasks and groups, or of task files in the folder `include_path`, whose data files lie there
    too. `limit` are the first problems of each task, `seed` draws the examples of `num_fewshot`. `metric` names the
    metric that scores an answer (`acc_norm`, or with a filter `exact_match,strict-match`); null: each task's first.
    """
    folder = None if include_path is None else Path(include_path)
    options = {"apply_chat_template": apply_chat_template, "fewshot_as_multiturn": fewshot_as_multiturn}
    return HarnessTasks(_load_tasks(tasks, folder, num_fewshot), limit, metric, options, seed)


class HarnessTasks:
    """Loaded tasks of lm-eval."""

    def __init__(
        self, loaded: Any, limit: int | None, metric: str | None, options: Mapping[str, Any], seed: int
    ) -> None:
        self.loaded, self.limit, self.metric, self.options = loaded, limit, metric, options
        self.seed = seed
        self.rows = self._make_rows()

    def _make_rows(self) -> list[Row]:
        """Return the problems: question without examples, reference answer, and the task as family."""
        return [
            {
                "id": f"{name}/{number}",
                "prompt": [{"role": "user", "content": str(task.doc_to_text(doc))}],
                "answer": _describe_target(task, doc),
                "family": name,
                "metadata": None,
            }
            for name, task in self.loaded["tasks"].items()
            for number, doc in task.doc_iterator(limit=self.limit)
        ]

    @property
    def test_tasks(self) -> list[str]:
        """Return the names of the tasks that evaluate a test split, which lm-eval prefers to a validation split."""
        return [name for name, task in self.loaded["tasks"].items() if task.has_test_docs()]

    def answer(self, model: ScoringModel) -> ScoredAnswers:
        """Return a model's answers to all tasks with lm-eval's scores. Raise StepError if a task cannot be run."""
        from lm_eval.evaluator import evaluate

        from learning.evaluation.lm_eval_model import EngineLM  # imports lm-eval

        for task in self.loaded["tasks"].values():
            task.set_fewshot_seed(seed=self.seed)  # every model gets the same examples
        try:
            results: Any = evaluate(
                EngineLM(model, len(self.rows)), self.loaded, limit=self.limit, bootstrap_iters=0, **self.options
            )
        except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
            raise StepError(f"lm_eval: {type(error).__name__}: {error}") from error
        return self._collect(results)

    def _collect(self, results: Any) -> ScoredAnswers:
        places = {row["id"]: place for place, row in enumerate(self.rows)}
        reported: dict[str, np.ndarray] = {}
        samples: list[AnswerSample] = [AnswerSample("", "stop")] * len(places)
        score_P = np.full(len(places), np.nan)
        for name, task in self.loaded["tasks"].items():
            values = _read_values(task, results["samples"][name])
            chosen = self._choose_metric(name, values)
            for metric, by_number in values.items():
                value_P = reported.setdefault(metric, np.full(len(places), np.nan))
                for number, value in by_number.items():
                    value_P[places[f"{name}/{number}"]] = value
                    if metric == chosen:
                        score_P[places[f"{name}/{number}"]] = value
            for sample in results["samples"][name]:
                samples[places[f"{name}/{sample['doc_id']}"]] = AnswerSample(_describe_answer(task, sample), "stop")
        summary = {
            name: {key: value for key, value in line.items() if isinstance(value, int | float) and math.isfinite(value)}
            for name, line in sorted(results["results"].items())
        }
        return ScoredAnswers(samples, score_P, reported, summary)

    def _choose_metric(self, task: str, values: Mapping[str, object]) -> str | None:
        """Return the metric that scores the answers of a task. Raise StepError if it does not have the named one."""
        if self.metric is None:
            return next(iter(values), None)
        if self.metric not in values:
            raise StepError(
                f"lm_eval: task {task} has no metric `{self.metric}` with a value per answer; "
                f"it has {', '.join(values) or 'none'}"
            )
        return self.metric


def _load_tasks(names: Sequence[str], folder: Path | None, num_fewshot: int | None) -> Any:
    """Return lm-eval's tasks and groups. Raise StepError if lm-eval or a task is missing, or a task is unsafe."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise StepError(f"lm_eval: {error}: pip install 'posttrain[evals]'") from error
    _quieten()
    # lm-eval reads data files relative to the working folder, and downloads what is not there.
    with contextlib.chdir(folder or Path.cwd()), _refuse_downloads():
        own = TaskManager(include_path=".", include_defaults=False) if folder else None
        only_own = own is not None and set(names) <= set(own.all_subtasks)
        manager = own if own and only_own else TaskManager(include_path="." if folder else None)
        if unknown := sorted(set(names) - set(manager.all_tasks)):
            raise StepError(f"lm_eval: there is no task `{unknown[0]}`, neither of lm-eval nor in `include_path`")
        loaded: Any = {}
        for name in names:
            try:
                part: Any = manager.load([name])
            except Exception as error:  # data sets and functions of task files raise anything
                raise StepError(f"lm_eval: task {name} cannot be loaded: {type(error).__name__}: {error}") from error
            for what, entries in part.items():
                loaded.setdefault(what, {}).update(entries)
    for name, task in loaded["tasks"].items():
        _prepare(name, task, num_fewshot)
    return loaded


def _prepare(name: str, task: Any, num_fewshot: int | None) -> None:
    """Set the number of examples as lm-eval's command line does. Raise StepError for an unsafe task."""
    if getattr(task, "UNSAFE_CODE", False) or task.get_config("unsafe_code"):
        raise StepError(
            f"lm_eval: task {name} executes programs that the model writes, outside of any sandbox; use the "
            "environment `program` or a tool in the sandbox instead (docs/sandbox.md)"
        )
    if getattr(task, "MULTIMODAL", False):
        raise StepError(f"lm_eval: task {name} has images, which no engine here takes")
    given = task.get_config("num_fewshot")
    if given is None or (num_fewshot is not None and given != 0):
        task.set_config(key="num_fewshot", value=num_fewshot or 0)


def _read_values(task: Any, samples: Sequence[JsonObject]) -> dict[str, dict[int, float]]:
    """Return the value of each problem by metric, those of the task's first filter first.

    A pair (log-likelihood, words or bytes) becomes the log-likelihood per unit. Metrics whose values mean nothing for
    a single answer, such as those of a corpus, are left out.
    """
    from lm_eval.api.metrics import mean
    from lm_eval.api.registry import get_aggregation

    aggregations, per_unit = task.aggregation(), [get_aggregation(name) for name in PER_UNIT]
    filters = list(dict.fromkeys(sample["filter"] for sample in samples))
    values: dict[str, dict[int, float]] = {}
    for sample in samples:
        for metric in sample["metrics"]:
            value, how = sample[metric], aggregations.get(metric)
            if how in per_unit:
                value = value[0] / max(value[1], 1)
            elif how is not mean or not isinstance(value, int | float | np.number | np.bool_):
                continue
            label = metric if sample["filter"] == filters[0] else f"{metric},{sample['filter']}"
            values.setdefault(label, {})[sample["doc_id"]] = float(value)
            if len(filters) > 1 and sample["filter"] == filters[0]:
                values.setdefault(f"{metric},{sample['filter']}", {})[sample["doc_id"]] = float(value)
    return values


def _describe_target(task: Any, doc: JsonObject) -> str:
    """Return the reference answer as text: of a choice its text."""
    target = task.doc_to_target(doc)
    if isinstance(target, int) and task.get_config("doc_to_choice") is not None:
        choices = task.doc_to_choice(doc)
        return str(choices[target]) if 0 <= target < len(choices) else str(target)
    return str(target)


def _describe_answer(task: Any, sample: JsonObject) -> str:
    """Return a model's answer: the completion, the choice of highest log-likelihood, or the log-likelihood alone."""
    first = sample["resps"][0][0]
    if isinstance(first, str):
        return first
    likelihoods = [each[0][0] if isinstance(each[0], tuple | list) else each[0] for each in sample["resps"]]
    if len(likelihoods) > 1:
        return str(sample["arguments"][int(np.argmax(likelihoods))][-1]).strip()
    return f"{likelihoods[0]:.6g}"


@contextlib.contextmanager
def _refuse_downloads() -> Iterator[None]:
    """Keep data sets from being downloaded: what a step reads is there before it runs."""
    import datasets.config
    import huggingface_hub.constants

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before


def _quieten() -> None:
    """Turn off progress bars and remarks; what matters raises an error."""
    import datasets

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
