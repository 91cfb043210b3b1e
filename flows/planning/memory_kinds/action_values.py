"""kind: action_values — episodes of the longest length, with values of the whole vocabulary, and a slow copy."""

from flows.planning.memory_demand import StepDemand
from learning.memory_model.estimate import Phase, Place, estimate_training
from learning.memory_model.forward import Pass


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer of a model with values of the vocabulary, and of its slow copy."""
    model, settings = demand.model(), demand.settings
    longest, batch = demand.row_tokens(model), settings["per_device_train_batch_size"]
    count = max(1, min(batch, settings["max_tokens_per_micro_batch"] // longest))
    head = settings["heads"] * model.shape.vocabulary * model.shape.width
    parameters = model.shape.body_parameters + head
    needed = settings["heads"] * count * longest
    forward = demand.forward(model, Pass(((count, longest),), needed=needed))
    phases = estimate_training(demand.trained(model, parameters), forward, -(-batch // count))
    copies = (settings["target_network"] is not None) * parameters * demand.weight_bytes
    with_copy = [Phase(phase.name, {**phase.parts, "other models": copies}) for phase in phases]
    return [Place(demand.role, tuple(with_copy), demand.workers)]
