"""kind: sft — rows of the longest length, as many as a forward pass takes."""

from flows.planning.memory_demand import StepDemand
from learning.memory_model.estimate import Phase, Place, estimate_training
from learning.memory_model.forward import ROW, Pass


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer; packed rows are estimated at both lengths that attention treats differently."""
    model, rows = demand.model(), demand.settings["per_device_train_batch_size"]
    longest, packs = demand.row_tokens(model), demand.settings["packing"]
    budget = demand.row_limit(model) if packs else longest
    lengths = {longest, min(longest, ROW[1])} if packs else {longest}
    phases: tuple[Phase, ...] = ()
    for length in sorted(lengths):
        count = max(1, rows * budget // length)
        forward = demand.forward(model, Pass(((count, length),), needed=count * (length - 1)))
        passes = demand.settings["gradient_accumulation_steps"]
        phases += estimate_training(demand.trained(model), forward, passes)
    return [Place(demand.role, phases, demand.workers)]
