"""What the curves of an rl stage can show, and the rule that what goes by a point names one of them."""

import re
from collections.abc import Iterator, Sequence

from schemas.asynchrony_rules import keeps_older
from schemas.errors import Problem
from schemas.graph import StepInfo
from schemas.renamed import now_called, renamed_metric
from schemas.stages.rl import Rl
from schemas.suggestions import suggest
from schemas.tree import join, problem
from schemas.use import ControllerUse, RolloutUse, Use
from schemas.validation import follow

ALWAYS = (
    "reward", "completions", "completion_length", "truncated", "unscorable", "trained", "broken_logprobs",
    "sampled_tokens", "tokens_per_second", "generation_seconds", "learning_rate", "clip_fraction", "entropy",
    "kl_to_sampler", "logprob_gap", "grad_norm",
)  # fmt: skip
OF_CRITIC = ("value", "value_loss", "value_grad_norm", "explained_variance")
OF_NETWORK = ("loss", "grad_norm", "mean", "explained_variance")
OF_AGE = ("staleness", "staleness_max", "older_tokens")
OF_STREAM = (
    "trainer_wait_seconds", "generator_idle_share", "generator_seconds", "groups_ready", "groups_under_way",
    "groups_overlapped", "sampled_length", "trained_length",
)  # fmt: skip
OPTION = re.compile(r"metric|objective|best")
"""Options of controllers that name points; a map names them by its keys."""


def points_of(info: StepInfo, stage: Rl) -> list[str]:
    """Names of all points that an iteration of a stage can have."""
    found = [*ALWAYS, *(f"reward/{name}" for name in numbered(stage.rewards))]
    found += [f"loss/{name}" for name in numbered(stage.loss_terms)]
    found += [f"controller/{name}" for name in stage.controllers]
    found += [f"{name}/{what}" for name, one in stage.auxiliary_models.items() if one.target for what in OF_NETWORK]
    if stage.critic is not None:
        found += OF_CRITIC
    if stage.eval_prompts is not None:
        found += ["eval_reward", "reward_gap"]
    if any(keeps_older(slot) for slot in info.slots):
        found += OF_AGE
    if any("stream" in slot.signature.supplied for slot in info.slots if isinstance(slot.use, RolloutUse)):
        found += OF_STREAM
    if any("lp_ref_T" in slot.signature.supplied for slot in info.slots):
        found.append("kl")
    return found


def numbered(uses: Sequence[Use]) -> list[str]:
    """Name of each function in curves: its own, numbered from the second of the same name."""
    found: list[str] = []
    for use in uses:
        seen = sum(n == use.use or n.startswith(f"{use.use}#") for n in found)
        found.append(f"{use.use}#{seen + 1}" if seen else use.use)
    return found


def point_problems(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Controllers and watches that go by a point which no iteration has: they would do nothing."""
    known = points_of(info, stage)
    said = [(f"watch.{i}.metric", watch.metric) for i, watch in enumerate(stage.watch)]
    for slot in (
        slot for slot in info.slots if isinstance(slot.use, ControllerUse) and "metrics" in slot.signature.supplied
    ):
        for option, value in slot.values.items():
            if OPTION.fullmatch(option):
                names = [value] if isinstance(value, str) else value if isinstance(value, dict) else []
                said += [(join(slot.path, option), str(name)) for name in names]
    for where, name in said:
        if name not in known:
            message, advice = f"no iteration has a metric `{name}`", suggest(name, known, "metrics")
            if name == "kl":
                advice = "nothing compares with a reference here: add `{use: kl, coef: 0.0}` to `loss_terms`"
            elif (new := renamed_metric(name, known)) is not None:
                message, advice = now_called(name, new), f"write `{new}` in its place"
            yield problem(follow(info.node, where).mark, join(info.path, where), message, advice)
