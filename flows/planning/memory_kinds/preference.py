"""kind: preference — pairs of the longest length with logits; references compute theirs before the training."""

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_models import KnownModel
from learning.memory_model.estimate import Phase, Place, estimate_training
from learning.memory_model.forward import Pass

FORWARD_TOKENS = 16_384
"""Tokens of a forward pass of a reward model or a reference, as in `tasks.reward_model`."""


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer, with the phase in which the references compute log-probabilities."""
    model = demand.model()
    phases = estimate_pairs(demand, model, demand.settings["max_tokens_per_micro_batch"], model.parameters, logits=True)
    has_references = any(name in demand.models for name in ("reference", "previous"))
    pairs, _ = _make_pass(demand, model, FORWARD_TOKENS, logits=True)
    trained = demand.trained(model)
    reference = -(-model.parameters * demand.weight_bytes // trained.shards)  # each rank reads its shards of it
    activations = model.estimate_pass(pairs, demand.precision).glance
    parts = {
        "weights": trained.weights,
        "other models": reference * has_references,
        "exchange": trained.gathered_to_infer,
        "activations": activations,
    }
    return [Place(demand.role, (*phases, Phase("references", parts)), demand.workers)]


def estimate_pairs(
    demand: StepDemand, model: KnownModel, max_tokens: int, parameters: int, *, logits: bool
) -> tuple[Phase, ...]:
    """Return the phases of training on pairs, at most `max_tokens` in a pass; `logits`: whether the loss needs them."""
    tokens, passes = _make_pass(demand, model, max_tokens, logits=logits)
    return estimate_training(demand.trained(model, parameters), demand.forward(model, tokens), passes)


def _make_pass(demand: StepDemand, model: KnownModel, max_tokens: int, *, logits: bool) -> tuple[Pass, int]:
    """Return a pass over pairs of the longest length, half of it prompt, and the passes of a batch."""
    longest = demand.row_tokens(model)
    known = demand.lengths.prompt if demand.lengths else 0
    prompt = min(demand.prompt or known or longest // 2, longest - 1)
    completion, batch = longest - prompt, demand.settings["per_device_train_batch_size"]
    count = max(1, min(batch, max_tokens // (prompt + 2 * completion)))
    tokens = Pass(((count, prompt),), ((count, 2, completion, prompt),), 2 * count * completion if logits else 0)
    return tokens, -(-batch // count)
