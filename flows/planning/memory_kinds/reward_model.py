"""kind: reward_model — pairs of the longest length, half of it prompt, without logits."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_kinds.preference import FORWARD_TOKENS, estimate_pairs
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer of a model with a scalar head."""
    model = demand.model()
    parameters = model.shape.body_parameters + model.shape.width
    phases = estimate_pairs(demand, model, FORWARD_TOKENS, parameters, logits=False)
    return [Place(demand.role, phases, demand.workers)]
