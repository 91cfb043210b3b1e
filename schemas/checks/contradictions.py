"""Rules for rl settings that would run and learn the wrong thing, judged by settings and signatures.

No rule depends on the name of a function, only on its parameters and options.
"""

from collections.abc import Iterator
from typing import Any

from schemas.addresses import REFERENCE
from schemas.auxiliary import CriticLossUse, TargetUse
from schemas.checks.asynchrony import check_asynchrony, returns_older_samples
from schemas.checks.auxiliaries import check_auxiliary_models
from schemas.checks.metrics import check_metrics, number_repeated_names
from schemas.checks.roles import check_roles
from schemas.errors import Problem
from schemas.source.tree import join_path
from schemas.source.validation import follow_path
from schemas.stages.rl import Rl
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.supplied import MOVING
from schemas.use import (
    AdvantageUse,
    ExtraSamplesUse,
    FilterGroupsUse,
    ImportanceCorrectionUse,
    LossTermUse,
    PolicyLossUse,
    PromptSamplerUse,
    RatioUse,
    ResampleUse,
    RolloutUse,
    TokenMaskUse,
    Use,
)

EXACT_ENGINES = ("torch", "vllm")
"""Engines that record the tokens that each one was sampled from."""
ATTEMPTS = ("attempts", "proposals")
"""Turn orders in which a role makes several attempts, each a sample of its own."""


def find_contradictions(info: StepInfo, stage: Rl) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that refuse an rl stage, and those that only warn."""
    refused = [
        _check_weights,
        _check_group_size,
        _check_k,
        _check_estimator,
        _check_double_ratio,
        _check_external_samples,
        _check_older_samples,
        _check_partial,
        _check_stored_parts,
        _check_temperature,
        _check_kept_tokens,
        _check_critic,
    ]
    warned = [_check_bias, _check_sequence_clip, _check_unreachable_clip, _check_unused]
    named = [
        _check_reward_names,
        _check_controllers,
        _check_references,
        check_auxiliary_models,
        check_asynchrony,
        check_metrics,
        check_roles,
    ]
    problems = ([p for rule in rules for p in rule(info, stage)] for rules in ([*refused, *named], warned))
    return next(problems), next(problems)


def _find_slots(info: StepInfo, *kinds: type[Use]) -> Iterator[Slot]:
    return (slot for slot in info.slots if isinstance(slot.use, kinds))


def _reads_column(info: StepInfo, column: str, *kinds: type[Use]) -> bool:
    return any(column in slot.signature.supplied for slot in _find_slots(info, *kinds))


def _check_weights(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if stage.rewards and all(use.weight == 0 for use in stage.rewards):
        message = "every reward has weight 0, so that every completion is worth the same"
        yield info.problem("rewards", message, "give one a weight; rewards of weight 0 are only recorded")


def _groups_are_plain(stage: Rl) -> bool:
    """Return whether a group is `num_generations` samples of one problem and nothing else."""
    return stage.prompt_sampler == Rl.model_fields["prompt_sampler"].default and not (
        stage.extra_samples or stage.resample or _makes_attempts(stage)
    )


def _makes_attempts(stage: Rl) -> bool:
    """Return whether a role may make several attempts in an episode, which are a group of their own."""
    order = stage.turn_order
    return order is not None and (":" in order.use or order.use in ATTEMPTS)


def _is_from_preset(info: StepInfo, stage: Rl, where: str) -> bool:
    """Return whether the value at a path comes from the stage's preset."""
    return follow_path(info.node, where).mark.file == f"recipes/algorithms/{stage.algorithm}.yaml"


def _trusts_samples(info: StepInfo, ratio: tuple[str, ...]) -> bool:
    """Return whether a plain policy gradient treats samples as the policy's own: no ratio uses any of the columns."""
    if any(_reads_column(info, column, RatioUse) for column in ratio) or any(
        _find_slots(info, ImportanceCorrectionUse)
    ):
        return False
    plain = {"log_ratio_T", "lp_T", "advantage_T"}
    return all(plain.issuperset(slot.signature.supplied) for slot in _find_slots(info, PolicyLossUse))


def _count_updates(stage: Rl) -> int:
    return stage.num_iterations * stage.num_mini_batches


def _check_group_size(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if stage.num_generations > 1 or not _groups_are_plain(stage):
        return
    for slot in _find_slots(info, AdvantageUse):
        if "group" in (slot.values.get("by"), slot.values.get("within")):
            message = f"`{slot.use.use}` by group with one completion per prompt makes every advantage 0"
            yield info.problem(slot.path, message, "raise `num_generations`, or write `by: batch`")


def _check_k(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _find_slots(info, AdvantageUse):
        k = slot.values.get("k")
        if isinstance(k, int) and k > stage.num_generations and _groups_are_plain(stage):
            message = f"k is {k}, but a group has {stage.num_generations} completions"
            yield info.problem(join_path(slot.path, "k"), message, "lower k or raise `num_generations`")


def _check_estimator(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _find_slots(info, LossTermUse):
        if slot.values.get("estimator") == "k1" and not slot.values.get("importance"):
            message = "the estimator k1 has no effect as a loss term: the mean of its gradient is 0"
            yield info.problem(join_path(slot.path, "estimator"), message, "use k2 or k3")


def _check_double_ratio(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _reads_column(info, "lp_behav_T", RatioUse):
        return
    for slot in _find_slots(info, ImportanceCorrectionUse):
        if slot.values.get("reweight") is True:
            message = (
                f"both `{stage.ratio.use}` and `{slot.use.use}` divide by the probability under the sampling policy"
            )
            advice = "write `ratio: decoupled`, or make the correction only mask: `reweight: false, outside: mask`"
            yield info.problem(slot.path, message, advice)


def _check_external_samples(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    origin = ("external_T", "source_T")
    if not _reads_column(info, "lp_behav_T", RatioUse) or any(
        _reads_column(info, t, RatioUse, PolicyLossUse) for t in origin
    ):
        return
    if any(
        t in s.signature.supplied
        for s in _find_slots(info, TokenMaskUse)
        if s.path.startswith("token_mask.")
        for t in origin
    ):
        return
    for slot in _find_slots(info, ExtraSamplesUse):
        if any(p.path.startswith(f"{slot.path}.") and "chat" in p.accepts for p in info.ports):
            message = (
                f"`{slot.use.use}` adds completions without a sampling probability, which `{stage.ratio.use}` needs"
            )
            advice = (
                "train on them with a loss term (`token_mask: [own]` here, `token_mask: [external]` there), or use "
                "a policy loss that supports them: `shaped_external`"
            )
            yield info.problem(slot.path, message, advice)


def _check_older_samples(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _trusts_samples(info, ("lp_behav_T",)):
        return
    for slot in _find_slots(info, RolloutUse, ExtraSamplesUse):
        if returns_older_samples(slot):
            message = f"`{slot.use.use}` returns samples of older weights, which `{stage.ratio.use}` treats as current"
            yield info.problem(
                slot.path, message, "write `ratio: token`, or add `importance_correction:` to `ratio: decoupled`"
            )


def _check_partial(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for rollout in _find_slots(info, RolloutUse):
        for slot in _find_slots(info, AdvantageUse):
            if rollout.values.get("partial") == "all" and "group" in (slot.values.get("by"), slot.values.get("within")):
                message = (
                    f"incomplete completions have no reward yet, but `{slot.use.use}` compares them within their group"
                )
                advice = "write `partial: wait`, or use advantages of a critic: `gae`"
                yield info.problem(join_path(rollout.path, "partial"), message, advice)


def _check_stored_parts(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield stores of a part of each group whose completions are compared with nothing but one another."""
    if any("replay" in (slot.values.get("of") or ()) for slot in _find_slots(info, AdvantageUse)):
        return
    for stored in _find_slots(info, ExtraSamplesUse):
        for slot in _find_slots(info, AdvantageUse):
            if stored.values.get("above_mean") and "group" in (slot.values.get("by"), slot.values.get("within")):
                message = (
                    f"what is stored of a group is above its mean, and `{slot.use.use}` compares it with its own mean"
                )
                advice = "add `{use: recent_baseline}` to `advantage`, last, which compares it with recent groups"
                yield info.problem(join_path(stored.path, "above_mean"), message, advice)


def _check_temperature(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _find_slots(info, PromptSamplerUse, RolloutUse, ResampleUse):
        for name, value in slot.values.items():
            if "temperature" in name and isinstance(value, int | float) and value == 0:
                message = "greedy completions (temperature 0) have no sampling probability to learn from"
                yield info.problem(join_path(slot.path, name), message, "write a small temperature, for example 0.1")


def _check_kept_tokens(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield what cannot be exact if only some tokens are sampled from."""
    if stage.kept_tokens is None:
        return
    if stage.logits_processors:
        message = "the loss sees which tokens were kept, but not how `logits_processors` changed their probabilities"
        yield info.problem("kept_tokens", message, "remove one of the two")
    if stage.engine.use not in EXACT_ENGINES:
        message = f"`engine: {stage.engine.use}` does not report the tokens that each one was sampled from"
        yield info.problem("kept_tokens", message, "use `engine: torch` or `engine: vllm`, or remove `kept_tokens`")
    for slot in info.slots:
        for column in ("lp_mean_T", "lp_mean_prox_T"):
            if column in slot.signature.supplied:
                message = f"`{slot.use.use}` needs the mean log-probability of all tokens, which is −∞ without some"
                yield info.problem(slot.path, message, "replace it, or remove `kept_tokens`")


def _check_critic(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    readers = [s for s in info.slots if "value_T" in s.signature.supplied and not isinstance(s.use, CriticLossUse)]
    if stage.critic is None:
        for slot in readers:
            message = f"`{slot.use.use}` needs the values of a critic, but this stage has no critic"
            yield info.problem(slot.path, message, "add `critic: {learning_rate: 1e-3}`")
    elif not any(isinstance(slot.use, AdvantageUse) for slot in readers):
        message = "the critic has no target: no function of `advantage` reads its values"
        yield info.problem("critic", message, "add `gae` to `advantage`, or remove the critic")


def _check_reward_names(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    reward_names = number_repeated_names(stage.rewards)
    columns = [column for name, block in stage.auxiliary_models.items() for column in block.columns(name)]
    named = [(f"advantage_streams.{i}.of", s.of) for i, s in enumerate(stage.advantage_streams) if s.of not in columns]
    named += [(join_path(s.path, "of"), s.values.get("of")) for s in _find_slots(info, TargetUse)]
    choosing = (*_find_slots(info, FilterGroupsUse, ResampleUse), *_find_slots(info, ExtraSamplesUse))
    named += [(join_path(slot.path, "reward"), slot.values.get("reward")) for slot in choosing]
    for where, name in named:
        if isinstance(name, str) and name not in reward_names:
            yield info.problem(where, f"no reward `{name}` in this stage", suggest(name, reward_names, "rewards"))


def _check_controllers(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for where, name in _find_controlled(info):
        if name not in stage.controllers:
            advice = suggest(name, stage.controllers, "controllers")
            yield info.problem(where, f"no controller `{name}` in this stage", advice)


def _check_references(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in info.slots:
        for column in slot.signature.supplied:
            name = column.removeprefix("lp_").removesuffix("_T")
            if REFERENCE.fullmatch(column) and column not in MOVING and name not in stage.references:
                message = f"`{slot.use.use}` needs `{column}`, but `references` has no `{name}`"
                advice = f"add `references: {{{name}: {{sync_steps: 1}}}}`; without `sync_steps` it is never updated"
                yield info.problem(slot.path, message, advice)


def _check_bias(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if _count_updates(stage) == 1:
        return
    for slot in _find_slots(info, LossTermUse):
        if slot.values.get("estimator") in ("k2", "k3") and slot.values.get("importance") is False:
            message = "with several updates per batch this estimate is biased, because it is not weighted by the ratio"
            yield info.problem(slot.path, message, "write `importance: true`")
    if _trusts_samples(info, ("lp_behav_T", "lp_prox_T")):
        message = (
            f"with several updates per batch `{stage.ratio.use}` is biased: it treats old samples as the policy's own"
        )
        yield info.problem("ratio", message, "write `ratio: token`, or one update per batch")


def _check_sequence_clip(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _reads_column(info, "path_T", RatioUse):
        return
    for slot in _find_slots(info, PolicyLossUse):
        epsilon, where = slot.values.get("epsilon"), join_path(slot.path, "epsilon")
        if isinstance(epsilon, float) and epsilon > 0.05 and not _is_from_preset(info, stage, where):
            message = f"epsilon {epsilon} never clips a ratio per sequence, because such ratios stay near 1"
            yield info.problem(where, message, "GSPO uses 3e-4 and 4e-4")


def _check_unreachable_clip(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield a clipping bound of the recipe that no ratio can reach."""
    fresh = _groups_are_plain(stage) and stage.rollout == Rl.model_fields["rollout"].default
    if _count_updates(stage) > 1 or not fresh:
        return
    for slot in _find_slots(info, PolicyLossUse):
        written, where = slot.use.options.get("epsilon"), join_path(slot.path, "epsilon")
        usual = slot.signature.options["epsilon"].default if "epsilon" in slot.signature.options else None
        if isinstance(written, float) and written != usual and not _is_from_preset(info, stage, where):
            message = "epsilon has no effect: with one update per batch of fresh samples the ratio is 1"
            yield info.problem(where, message, "raise `num_iterations` or `num_mini_batches`, or remove `epsilon`")


def _check_unused(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    columns = {name for slot in info.slots for name in slot.signature.supplied}
    for name in stage.references:
        if f"lp_{name}_T" not in columns:
            message = f"this reference is never used: no function needs `lp_{name}_T`"
            yield info.problem(
                join_path("references", name), message, "remove it, or add a function that compares with it"
            )
    used = {name for _, name in _find_controlled(info)}
    for name in stage.controllers:
        if name not in used:
            message = f"the controller `{name}` is never used"
            yield info.problem(
                join_path("controllers", name),
                message,
                f"write `{{controller: {name}}}` in place of a number, or remove it",
            )


def _find_controlled(info: StepInfo) -> Iterator[tuple[str, str]]:
    """Yield every place that refers to a controller, and the controller's name."""
    return _find_controller_references(info.dump(), "")


def _find_controller_references(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if set(value) == {"controller"} and isinstance(value["controller"], str):
            yield path, value["controller"]
        else:
            for key, child in value.items():
                yield from _find_controller_references(child, join_path(path, str(key)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _find_controller_references(child, join_path(path, index))
