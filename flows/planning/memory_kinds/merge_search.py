"""kind: merge_search — a merge, then the model that it makes, which samples."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_kinds import merge
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of merges and of their evaluations, which take turns."""
    limit = demand.settings["limit"]
    samples = min(MAX_OPEN, limit * demand.settings["num_generations"]) if limit else MAX_OPEN
    port = next(port for port in demand.models if port.startswith("models."))
    (merged,) = merge.estimate(demand)
    (sampled,) = estimate_samplers(demand, {"sampling": demand.model(port)}, samples)
    return [Place("step", (*merged.phases, *sampled.phases))]
