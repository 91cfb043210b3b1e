"""kind: merge — the largest tensor of every model and of the result, in float32."""

from flows.planning.memory_demand import StepDemand
from learning.memory_model.estimate import BYTES, Phase, Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the place of the tensors that are merged at a time."""
    shapes = [demand.model(port).shape for port in demand.models]
    largest = [max(shape.vocabulary * shape.width, max(a * b for a, b in shape.linears)) for shape in shapes]
    weights = (sum(largest) + 2 * max(largest)) * BYTES["float32"]
    return [Place("step", (Phase("the largest tensor", {"weights": weights}),))]
