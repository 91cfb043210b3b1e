"""kind: evaluate — one model after the other, with the further policies of its team."""

from dataclasses import replace

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_sampling import MAX_OPEN, estimate_samplers
from learning.memory_model.estimate import Place, estimate_auxiliary


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the models that are evaluated or compared with."""
    limit = demand.settings.get("limit")
    samples = min(MAX_OPEN, limit * demand.settings["num_generations"]) if limit else MAX_OPEN
    ports = [port for port in demand.models if port == "model" or port.startswith(("models.", "against."))]
    models = {f"sampling {port}": demand.model(port) for port in ports}
    places = estimate_samplers(demand, models, demand.samples(samples))
    if others := _estimate_policies(demand):
        return [replace(one, phases=estimate_auxiliary(one.phases, "other models", others)) for one in places]
    return places


def _estimate_policies(demand: StepDemand) -> int:
    """Return the bytes of the weights of further policies that play roles: of each the largest of any team."""
    largest: dict[str, int] = {}
    for port in demand.models:
        if port.startswith("policies."):
            name = port.split(".")[1]
            largest[name] = max(largest.get(name, 0), demand.model(port).parameters * demand.weight_bytes)
    return sum(largest.values())
