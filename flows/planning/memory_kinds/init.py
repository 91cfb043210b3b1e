"""kind: init — the new model, in float32."""

from flows.planning.memory_demand import StepDemand
from learning.memory_model.estimate import BYTES, Phase, Place


def estimate(demand: StepDemand) -> list[Place]:
    """Return the place of the new model."""
    weights = demand.model("made").parameters * BYTES["float32"]
    return [Place("step", (Phase("made", {"weights": weights}),))]
