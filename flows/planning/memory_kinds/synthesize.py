"""kind: synthesize — the model that samples; a teacher holds nothing here."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the model that samples; none without one."""
    if "model" not in demand.models:
        return []
    return estimate_samplers(demand, {"sampling": demand.model()}, demand.samples(MAX_OPEN))
