"""Rules for rl settings that run and silently learn the wrong thing, from settings and signatures alone.

No rule knows a function by its name: what a function asks for and which options it has say what it does.
"""

from collections.abc import Iterator
from typing import Any

from schemas.addresses import REFERENCE
from schemas.auxiliary import CriticLossUse, TargetUse
from schemas.checks.asynchrony import check_asynchrony, returns_older_samples
from schemas.checks.auxiliaries import check_auxiliary_models
from schemas.checks.metrics import check_metrics, number_repeated_names
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


def find_contradictions(info: StepInfo, stage: Rl) -> tuple[list[Problem], list[Problem]]:
    """Return refused and warned combinations."""
    refused = [_groups_of_one, _more_than_sampled, _no_gradient, _twice, _external, _stale, _open, _greedy, _values]
    warned = [_biased, _wide_clip, _idle_clip, _unasked]
    named = [_rewards, _controls, _references, check_auxiliary_models, check_asynchrony, check_metrics]
    problems = ([p for rule in rules for p in rule(info, stage)] for rules in ([*refused, *named], warned))
    return next(problems), next(problems)


def _slots(info: StepInfo, *kinds: type[Use]) -> Iterator[Slot]:
    return (slot for slot in info.slots if isinstance(slot.use, kinds))


def _asks(info: StepInfo, column: str, *kinds: type[Use]) -> bool:
    return any(column in slot.signature.supplied for slot in _slots(info, *kinds))


def _groups_are_plain(stage: Rl) -> bool:
    """Return whether a group is `num_generations` samples of one problem and nothing else."""
    return stage.prompt_sampler == Rl.model_fields["prompt_sampler"].default and not (
        stage.extra_samples or stage.resample
    )


def _of_preset(info: StepInfo, stage: Rl, where: str) -> bool:
    """Return whether what stands there comes from the stage's preset."""
    return follow_path(info.node, where).mark.file == f"recipes/algorithms/{stage.algorithm}.yaml"


def _trusts_samples(info: StepInfo, ratio: tuple[str, ...]) -> bool:
    """Return whether a plain policy gradient treats samples as the policy's own: no ratio uses any of the columns."""
    if any(_asks(info, column, RatioUse) for column in ratio) or any(_slots(info, ImportanceCorrectionUse)):
        return False
    plain = {"log_ratio_T", "lp_T", "advantage_T"}
    return all(plain.issuperset(slot.signature.supplied) for slot in _slots(info, PolicyLossUse))


def _updates(stage: Rl) -> int:
    return stage.num_iterations * stage.num_mini_batches


def _groups_of_one(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if stage.num_generations > 1 or not _groups_are_plain(stage):
        return
    for slot in _slots(info, AdvantageUse):
        if "group" in (slot.values.get("by"), slot.values.get("within")):
            message = f"`{slot.use.use}` by group with one completion per prompt makes every advantage 0"
            yield info.problem(slot.path, message, "raise `num_generations`, or write `by: batch`")


def _more_than_sampled(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _slots(info, AdvantageUse):
        k = slot.values.get("k")
        if isinstance(k, int) and k > stage.num_generations and _groups_are_plain(stage):
            message = f"k is {k}, but a group has {stage.num_generations} completions"
            yield info.problem(join_path(slot.path, "k"), message, "lower k or raise `num_generations`")


def _no_gradient(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _slots(info, LossTermUse):
        if slot.values.get("estimator") == "k1" and not slot.values.get("importance"):
            message = "the gradient of the estimator k1 is 0 on average: as a term of the loss it does nothing"
            yield info.problem(join_path(slot.path, "estimator"), message, "use k2 or k3")


def _twice(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _asks(info, "lp_behav_T", RatioUse):
        return
    for slot in _slots(info, ImportanceCorrectionUse):
        if slot.values.get("reweight") is True:
            message = f"`{stage.ratio.use}` divides by the sampling policy, and `{slot.use.use}` does so once more"
            advice = "write `ratio: decoupled`, or let it only mask: `reweight: false, outside: mask`"
            yield info.problem(slot.path, message, advice)


def _external(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    told = ("external_T", "source_T")
    if not _asks(info, "lp_behav_T", RatioUse) or any(_asks(info, t, RatioUse, PolicyLossUse) for t in told):
        return
    if any(
        t in s.signature.supplied for s in _slots(info, TokenMaskUse) if s.path.startswith("token_mask.") for t in told
    ):
        return
    for slot in _slots(info, ExtraSamplesUse):
        if any(p.path.startswith(f"{slot.path}.") and "chat" in p.accepts for p in info.ports):
            message = f"`{slot.use.use}` adds what no policy sampled: `{stage.ratio.use}` has nothing to divide by"
            advice = (
                "leave them to a loss term (`token_mask: [own]` here, `token_mask: [external]` there), or take a "
                "policy loss that handles them: `shaped_external`"
            )
            yield info.problem(slot.path, message, advice)


def _stale(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _trusts_samples(info, ("lp_behav_T",)):
        return
    for slot in _slots(info, RolloutUse, ExtraSamplesUse):
        if returns_older_samples(slot):
            message = (
                f"`{slot.use.use}` keeps samples of older weights, and `{stage.ratio.use}` takes them for own ones"
            )
            yield info.problem(
                slot.path, message, "write `ratio: token`, or add `importance_correction:` to `ratio: decoupled`"
            )


def _open(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for drive in _slots(info, RolloutUse):
        for slot in _slots(info, AdvantageUse):
            if drive.values.get("partial") == "all" and "group" in (slot.values.get("by"), slot.values.get("within")):
                message = f"open ends have earned nothing yet, and `{slot.use.use}` compares them within their group"
                advice = "write `partial: wait`, or take advantages from a critic: `gae`"
                yield info.problem(join_path(drive.path, "partial"), message, advice)


def _greedy(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in _slots(info, PromptSamplerUse, RolloutUse, ResampleUse):
        for name, value in slot.values.items():
            if "temperature" in name and isinstance(value, int | float) and value == 0:
                message = "at temperature 0 nothing is sampled: such completions have no probability to learn from"
                yield info.problem(join_path(slot.path, name), message, "a small temperature, as 0.1")


def _values(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    asking = [s for s in info.slots if "value_T" in s.signature.supplied and not isinstance(s.use, CriticLossUse)]
    if stage.critic is None:
        for slot in asking:
            message = f"`{slot.use.use}` needs a critic's values, and this stage has no critic"
            yield info.problem(slot.path, message, "add `critic: {learning_rate: 1e-3}`")
    elif not any(isinstance(slot.use, AdvantageUse) for slot in asking):
        message = "nothing tells the critic what to predict: no operation of `advantage` reads its values"
        yield info.problem("critic", message, "add `gae` to `advantage`, or leave the critic out")


def _rewards(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    known = number_repeated_names(stage.rewards)
    columns = [column for name, block in stage.auxiliary_models.items() for column in block.columns(name)]
    named = [(f"advantage_streams.{i}.of", s.of) for i, s in enumerate(stage.advantage_streams) if s.of not in columns]
    named += [(join_path(s.path, "of"), s.values.get("of")) for s in _slots(info, TargetUse)]
    choosing = (*_slots(info, FilterGroupsUse, ResampleUse), *_slots(info, ExtraSamplesUse))
    named += [(join_path(slot.path, "reward"), slot.values.get("reward")) for slot in choosing]
    for where, name in named:
        if isinstance(name, str) and name not in known:
            yield info.problem(where, f"no reward `{name}` in this stage", suggest(name, known, "rewards"))


def _controls(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for where, name in _controlled(info):
        if name not in stage.controllers:
            advice = suggest(name, stage.controllers, "controllers")
            yield info.problem(where, f"no controller `{name}` in this stage", advice)


def _references(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for slot in info.slots:
        for column in slot.signature.supplied:
            name = column.removeprefix("lp_").removesuffix("_T")
            if REFERENCE.fullmatch(column) and column not in MOVING and name not in stage.references:
                message = f"`{slot.use.use}` asks for `{column}`, and `references` names no `{name}`"
                advice = f"add `references: {{{name}: {{sync_steps: 1}}}}`; without `sync_steps` it is never updated"
                yield info.problem(slot.path, message, advice)


def _biased(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if _updates(stage) == 1:
        return
    for slot in _slots(info, LossTermUse):
        if slot.values.get("estimator") in ("k2", "k3") and slot.values.get("importance") is False:
            message = "several updates per batch, and this estimate is not weighted by the ratio: it is biased"
            yield info.problem(slot.path, message, "write `importance: true`")
    if _trusts_samples(info, ("lp_behav_T", "lp_prox_T")):
        message = f"several updates per batch, and `{stage.ratio.use}` takes all samples for the policy's own"
        yield info.problem("ratio", message, "write `ratio: token`, or one update per batch")


def _wide_clip(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    if not _asks(info, "path_T", RatioUse):
        return
    for slot in _slots(info, PolicyLossUse):
        epsilon, where = slot.values.get("epsilon"), join_path(slot.path, "epsilon")
        if isinstance(epsilon, float) and epsilon > 0.05 and not _of_preset(info, stage, where):
            message = f"epsilon {epsilon} with a ratio per sequence: such ratios stay near 1 and are never clipped"
            yield info.problem(where, message, "GSPO uses 3e-4 and 4e-4")


def _idle_clip(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield a bound that the recipe itself sets, where nothing can reach it."""
    fresh = _groups_are_plain(stage) and stage.rollout == Rl.model_fields["rollout"].default
    if _updates(stage) > 1 or not fresh:
        return
    for slot in _slots(info, PolicyLossUse):
        written, where = slot.use.options.get("epsilon"), join_path(slot.path, "epsilon")
        usual = slot.signature.options["epsilon"].default if "epsilon" in slot.signature.options else None
        if isinstance(written, float) and written != usual and not _of_preset(info, stage, where):
            message = "one update per batch of fresh samples: the ratio is 1, and nothing is clipped"
            yield info.problem(where, message, "raise `num_iterations` or `num_mini_batches`, or leave it")


def _unasked(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    asked = {name for slot in info.slots for name in slot.signature.supplied}
    for name in stage.references:
        if f"lp_{name}_T" not in asked:
            message = f"no part of the loss asks for `lp_{name}_T`: this reference is never used"
            yield info.problem(
                join_path("references", name), message, "leave it out, or name a function that compares with it"
            )
    used = {name for _, name in _controlled(info)}
    for name in stage.controllers:
        if name not in used:
            message = f"no number refers to the controller `{name}`"
            yield info.problem(
                join_path("controllers", name), message, f"write `{{controller: {name}}}` where a number stands"
            )


def _controlled(info: StepInfo) -> Iterator[tuple[str, str]]:
    """Yield every place that refers to a controller, and the controller's name."""
    return _walk(info.dump(), "")


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if set(value) == {"controller"} and isinstance(value["controller"], str):
            yield path, value["controller"]
        else:
            for key, child in value.items():
                yield from _walk(child, join_path(path, str(key)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _walk(child, join_path(path, index))
