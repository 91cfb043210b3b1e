"""The approvers of a recipe, for the gates that name none."""

from collections.abc import Sequence

from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.steps.step_info import StepInfo, replace_parts


def add_approvers(infos: dict[str, StepInfo], approvers: Sequence[str]) -> dict[str, StepInfo]:
    """Return the steps with the recipe's approvers in each gate that waits for a person and names none."""
    return {name: _add(info, approvers) if approvers else info for name, info in infos.items()}


def _add(info: StepInfo, approvers: Sequence[str]) -> StepInfo:
    stage = info.stage
    if not isinstance(stage, Evaluate | EvaluateRewards):
        return info
    mine = {"approvers": list(approvers)}
    gates = [
        gate.model_copy(update=mine) if gate.on_fail == "approve" and not gate.approvers else gate
        for gate in stage.gate
    ]
    return replace_parts(info, stage=stage.model_copy(update={"gate": gates}))
