"""The learning rate of every training step that sets none, by what it trains."""

from collections.abc import Mapping

from schemas.learning_rates import FROM_SCRATCH, FULL, LORA, UsualRate
from schemas.stages.init import Init
from schemas.steps.step_info import StepInfo, replace_parts
from schemas.training import LoRA, Training


def complete_learning_rates(steps: Mapping[str, StepInfo]) -> dict[str, StepInfo]:
    """Return the steps, with the usual learning rate in those that train and set none."""
    return {name: _complete(info, steps) for name, info in steps.items()}


def _complete(info: StepInfo, steps: Mapping[str, StepInfo]) -> StepInfo:
    usual = find_usual_rate(info, steps)
    if usual is None or "learning_rate" in info.stage.model_fields_set:
        return info
    return replace_parts(info, stage=info.stage.model_copy(update={"learning_rate": usual.default}))


def find_usual_rate(info: StepInfo, steps: Mapping[str, StepInfo]) -> UsualRate | None:
    """Return the usual learning rate of a step; None for steps that train no model."""
    stage = info.stage
    if not isinstance(stage, Training) or (kind := str(info.node.value["kind"].value)) not in FULL:
        return None
    if _is_from_scratch(info, steps):
        return FROM_SCRATCH
    return LORA[kind] if isinstance(stage, LoRA) and stage.use_peft else FULL[kind]


def _is_from_scratch(info: StepInfo, steps: Mapping[str, StepInfo]) -> bool:
    """Return whether all weights that a step starts from come from init stages of this recipe.

    Follows `model`; of steps without that port, such as merges, all ports that take a policy.
    """
    if isinstance(info.stage, Init) and info.stage.model is None:
        return True
    own = [port for port in info.ports if port.path == "model"]
    ports = own or [port for port in info.ports if "policy" in port.accepts]
    return bool(ports) and all(
        bool(port.steps) and all(_is_from_scratch(steps[name], steps) for name in port.steps) for port in ports
    )
