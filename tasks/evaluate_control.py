"""kind: evaluate_control — episodes of policies from the same starts: a table with intervals, differences, gates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from learning.control.losses.critics import load_critic, value_starts
from learning.control.networks.build import Networks
from learning.control.policies.playing import FunctionActor, play
from learning.control.policies.policy import load_control_policy, load_networks
from learning.control.reports.aggregates import make_run_lines
from learning.control.stepping.episode_tasks import EpisodeTasks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Make, Worlds, require_libraries
from learning.data.rows import Row
from learning.evaluation.evaluation import Comparison, Scores, compute_values, make_comparisons, make_table
from learning.evaluation.evaluation_report import write_report
from learning.evaluation.gate_statistics import check_gates, judge_gates
from learning.lookup import bind
from learning.models.policy import set_determinism
from schemas.stages.evaluate_control import EvaluateControl
from tasks.context import Context, Result


def run(stage: EvaluateControl, context: Context) -> Result:
    """Play `episodes` starts with every policy, and report; `flows` acts on the gates."""
    require_libraries()
    set_determinism(context.seed, context.num_threads)
    names = [*stage.policies, *stage.models]
    makes = [bind(stage.env, "env", context.inputs)]
    makes += [bind(use, f"other_envs.{i}", context.inputs) for i, use in enumerate(stage.other_envs)]
    worlds = Worlds(makes[0], 1, context.seed, "spaces")
    worlds.close()
    for i, make in enumerate(makes[1:]):
        other = Worlds(make, 1, context.seed, "spaces")
        other.close()
        worlds.spaces.require(other.spaces, f"other_envs.{i}")
    compared = Comparison(
        dict.fromkeys(stage.policies, "") | stage.models,
        stage.metrics,
        stage.confidence,
        stage.num_bootstrap,
        stage.gate,
        threshold=np.inf,
    )
    check_gates(compared, names, [])
    scores: dict[str, np.ndarray] = {}
    samples: list[Row] = []
    for done, name in enumerate(names):
        scores[name] = play_everywhere(stage, context, name, makes, worlds.spaces)
        samples += make_sample_rows(name, scores[name])
        context.progress(done + 1, len(names))
    measured = Scores(scores, [None] * stage.episodes, first=names[0])
    values = compute_values(compared, measured)
    resampling = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": context.seed}
    results: Row = {
        "confidence": stage.confidence,
        "problems": stage.episodes,
        "table": make_table(compared, measured, context.seed) + make_run_lines(values, **resampling),
        "comparisons": make_comparisons(compared, measured, context.seed),
        "gates": judge_gates(compared, measured, context.seed),
    }
    write_report(context.output("report"), results, samples)
    metrics: dict[str, float | int] = {"episodes": stage.episodes}
    for line in results["table"]:
        metrics[f"{line['metric']}.{line['model']}"] = line["value"]
        if line["model"] == names[-1]:
            metrics[line["metric"]] = line["value"]
    metrics["gates_failed"] = sum(not gate["passed"] for gate in results["gates"])
    return Result(metrics, results)


def play_everywhere(
    stage: EvaluateControl, context: Context, name: str, makes: Sequence[Make], spaces: Spaces
) -> np.ndarray:
    """Return the returns (P starts, N environments) of what acts under a name."""
    actor = load_actor(stage, context, name, spaces)
    torch.manual_seed(context.seed)  # drawn actions are the same, whichever policies were played before
    starts, played = range(stage.episodes), []
    for make in makes:
        tasks = make_tasks(stage, context, name, make)
        played.append(play(make, actor, starts, context.seed, "report", explore=stage.explore, tasks=tasks))
    return np.stack(played, 1)


def make_tasks(stage: EvaluateControl, context: Context, name: str, make: Make) -> EpisodeTasks | None:
    """Return what chooses the tasks of a model's episodes by its critic; None where the environment draws them."""
    if stage.teacher is None:
        return None
    tasks = EpisodeTasks(bind(stage.teacher, "teacher", context.inputs), context.seed)
    folder = context.input(f"models.{name}")
    policy = load_control_policy(folder)
    critic = Networks(policy.spaces, policy.settings).make_state_value()
    tasks.value_of = value_starts(make(), load_critic(critic, load_networks(folder)))
    return tasks


def load_actor(stage: EvaluateControl, context: Context, name: str, spaces: Spaces) -> Any:
    """Return what acts under a name: a function of `policies`, or the actor of a trained policy."""
    if name in stage.policies:
        return FunctionActor(bind(stage.policies[name], f"policies.{name}", context.inputs), spaces, context.seed)
    policy = load_control_policy(context.input(f"models.{name}"))
    spaces.require(policy.spaces, f"models.{name}")
    return policy.actor


def make_sample_rows(name: str, return_PN: np.ndarray) -> list[Row]:
    """Return a row per episode, in the columns that evaluations have; `sample` is the number of the environment."""
    return [
        {
            "model": name,
            "id": f"start-{start}",
            "family": None,
            "sample": number,
            "prompt": "",
            "answer": None,
            "completion": "",
            "truncated": False,
            "score": float(earned),
        }
        for start, earned_N in enumerate(return_PN)
        for number, earned in enumerate(earned_N)
    ]
