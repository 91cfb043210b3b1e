"""kind: evaluate — one model after the other."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the models that are evaluated or compared with."""
    limit = demand.settings.get("limit")
    samples = min(MAX_OPEN, limit * demand.settings["num_generations"]) if limit else MAX_OPEN
    ports = [port for port in demand.models if port == "model" or port.startswith(("models.", "against."))]
    models = {f"sampling {port}": demand.model(port) for port in ports}
    return estimate_samplers(demand, models, demand.samples(samples))
