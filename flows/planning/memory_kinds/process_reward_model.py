"""kind: process_reward_model — solutions of the longest length, without logits."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_kinds.preference import FORWARD_TOKENS
from learning.memory_model.estimate import Place, estimate_training
from learning.memory_model.forward import Pass


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer of a model with a scalar head."""
    model, batch = demand.model(), demand.settings["per_device_train_batch_size"]
    longest = demand.row_tokens(model)
    count = max(1, min(batch, FORWARD_TOKENS // longest))
    parameters = model.shape.body_parameters + model.shape.width + 1
    forward = demand.forward(model, Pass(((count, longest),)))
    phases = estimate_training(demand.trained(model, parameters), forward, -(-batch // count))
    return [Place(demand.role, phases, demand.workers)]
