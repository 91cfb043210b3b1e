"""The metrics of an rl stage, and the rule that controllers and watches name one of them."""

import re
from collections.abc import Iterator, Sequence

from schemas.checks.asynchrony import returns_older_samples
from schemas.errors import Problem, printable
from schemas.renamed import describe_renaming, find_renamed_metric
from schemas.source.tree import join_path, make_problem
from schemas.source.validation import follow_path
from schemas.stages.rl import Rl
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.use import ControllerUse, RolloutUse, Use

ALWAYS = (
    "reward",
    "reward_std",
    "completions",
    "completion_length",
    "truncated",
    "unscorable",
    "frac_reward_zero_std",
    "trained",
    "broken_logprobs",
    "sampled_tokens",
    "tokens_per_second",
    "generation_seconds",
    "learning_rate",
    "clip_fraction",
    "entropy",
    "kl_to_sampler",
    "logprob_gap",
    "grad_norm",
)
OF_CRITIC = ("value", "value_loss", "value_grad_norm", "explained_variance")
OF_NETWORK = ("loss", "grad_norm", "mean", "explained_variance")
OF_AGE = ("staleness", "staleness_max", "older_tokens")
OF_STREAM = (
    "trainer_wait_seconds",
    "generator_idle_share",
    "generator_seconds",
    "groups_ready",
    "groups_under_way",
    "groups_overlapped",
    "sampled_length",
    "trained_length",
)
OPTION = re.compile(r"metric|objective|best")
"""Options of controllers whose value is the name of a metric, or a map with names of metrics as keys."""


def list_metrics(info: StepInfo, stage: Rl) -> list[str]:
    """Return the names of all metrics that an iteration of a stage can report."""
    names = [*ALWAYS, *(f"reward/{name}" for name in number_repeated_names(stage.rewards))]
    names += [f"loss/{name}" for name in number_repeated_names(stage.loss_terms)]
    names += [f"controller/{name}" for name in stage.controllers]
    names += [f"{name}/{what}" for name, one in stage.auxiliary_models.items() if one.target for what in OF_NETWORK]
    if stage.critic is not None:
        names += OF_CRITIC
    if stage.eval_prompts is not None:
        names += [*list_evaluation_metrics(stage), "reward_gap"]
    if any(returns_older_samples(slot) for slot in info.slots):
        names += OF_AGE
    if any("stream" in slot.signature.supplied for slot in info.slots if isinstance(slot.use, RolloutUse)):
        names += OF_STREAM
    if any("lp_ref_T" in slot.signature.supplied for slot in info.slots):
        names.append("kl")
    return names


def list_evaluation_metrics(stage: Rl) -> list[str]:
    """Return the names of the metrics of held-out prompts."""
    rewards = [f"eval_reward/{name}" for name in number_repeated_names(stage.rewards)]
    return ["eval_reward", *rewards, "eval_completion_length"]


def number_repeated_names(uses: Sequence[Use]) -> list[str]:
    """Return the name of each function in metrics; the second one of the same name gets the suffix `#2`."""
    names: list[str] = []
    for use in uses:
        earlier = sum(n == use.use or n.startswith(f"{use.use}#") for n in names)
        names.append(f"{use.use}#{earlier + 1}" if earlier else use.use)
    return names


def check_metrics(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield controllers and watches that name a metric which no iteration reports."""
    reported = list_metrics(info, stage)
    best = stage.metric_for_best_model
    if best not in (evaluated := list_evaluation_metrics(stage)):
        where, advice = "metric_for_best_model", suggest(best, evaluated, "metrics")
        message = f"evaluations of this stage have no metric `{printable(best)}`"
        yield make_problem(follow_path(info.node, where).mark, join_path(info.path, where), message, advice)
    named = [(f"watch.{i}.metric", watch.metric) for i, watch in enumerate(stage.watch)]
    for slot in (
        slot for slot in info.slots if isinstance(slot.use, ControllerUse) and "metrics" in slot.signature.supplied
    ):
        for option, value in slot.values.items():
            if OPTION.fullmatch(option):
                names = [value] if isinstance(value, str) else value if isinstance(value, dict) else []
                named += [(join_path(slot.path, option), str(name)) for name in names]
    for where, name in named:
        if name not in reported:
            message, advice = f"this stage reports no metric `{name}`", suggest(name, reported, "metrics")
            if name == "kl":
                advice = "no function compares with a reference: add `{use: kl, coef: 0.0}` to `loss_terms`"
            elif (new := find_renamed_metric(name, reported)) is not None:
                message, advice = describe_renaming(name, new), f"write `{new}`"
            yield make_problem(follow_path(info.node, where).mark, join_path(info.path, where), message, advice)
