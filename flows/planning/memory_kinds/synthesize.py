"""kind: synthesize — the model that samples; a teacher holds nothing here."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the model that samples; none without one."""
    return estimate_samplers(demand, {"sampling": demand.model()}, MAX_OPEN) if "model" in demand.models else []
