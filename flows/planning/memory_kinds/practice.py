"""kind: practice — the model that practises; it samples and is not trained."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the model that samples."""
    samples = min(MAX_OPEN, demand.settings["generation_batch_size"])
    return estimate_samplers(demand, {"sampling": demand.model()}, samples)
