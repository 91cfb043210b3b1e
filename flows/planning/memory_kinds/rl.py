"""kind: rl — sampling and updates, in turns in the trainer's processes unless `rollout` has its own."""

from dataclasses import dataclass

from flows.planning.closure import uses
from flows.planning.memory_demand import StepDemand
from flows.planning.memory_models import KnownModel
from flows.planning.memory_sampling import estimate_engine
from learning.memory_model.estimate import BYTES, Phase, Place, estimate_auxiliary, estimate_training
from learning.memory_model.forward import Pass
from schemas.signatures import SignatureError, read_signature
from schemas.stages.rl import Rl

LOGPROBS = "log-probabilities"


@dataclass(frozen=True)
class FrozenModels:
    """Models of one role that are not trained: `reference` or `reward`."""

    role: str
    models: list[KnownModel]
    weight_bytes: int

    @property
    def weights(self) -> int:
        """Return the bytes of all their weights."""
        return sum(model.parameters for model in self.models) * self.weight_bytes


def estimate(demand: StepDemand) -> list[Place]:
    """Return the places of the trainer, and of every role with processes of its own."""
    model, resources = demand.model(), demand.resources
    trained, samples = demand.trained(model), demand.settings["generation_batch_size"]
    tokens, passes = _make_pass(demand, model)
    forward = demand.forward(model, tokens)
    stage = Rl.model_validate(demand.settings)
    fixed, synced = (_find_references(demand, stage, synced=synced) for synced in (False, True))
    references = FrozenModels("reference", fixed, demand.weight_bytes)
    scorers = [m for port, m in demand.models.items() if port.startswith("rewards.") and isinstance(m, KnownModel)]
    frozen = (references, FrozenModels("reward", scorers, BYTES["float32"]))
    state = {"weights": trained.weights, "optimizer": trained.optimizer, "gradients": trained.gradients}
    phases = estimate_training(trained, forward, passes)
    if resources.rollout is None:
        phases += (Phase("sampling", state | estimate_engine(demand, model, samples // demand.workers)),)
    if references.models or synced:
        exchange = {"exchange": trained.gathered_to_infer}
        phases += (Phase(LOGPROBS, state | exchange | {"activations": forward.glance}),)
    loads_whole = trained.shards > 1 and _loads_whole(stage)
    if loads_whole:
        phases += (Phase("loading", {"weights": model.parameters * demand.weight_bytes}),)
    # Each rank reads its shards of a reference that never changes, unless the policy itself is loaded whole.
    shards = 1 if loads_whole else trained.shards
    others = 0 if resources.reference else -(-references.weights // shards)
    others += 0 if resources.reward else frozen[1].weights
    others += FrozenModels("reference", synced, demand.weight_bytes).weights
    others += _estimate_networks(demand, model) + _estimate_policies(demand, stage)
    if trained.shards > 1:  # the copy that samples, or that is sent to the workers of `rollout`
        others += model.parameters * demand.weight_bytes
    places = [Place(demand.role, estimate_auxiliary(phases, "other models", others), demand.workers)]
    if resources.rollout:
        parts = estimate_engine(demand, model, -(-samples // resources.rollout.workers))
        weights = model.parameters * demand.weight_bytes + parts.pop("weights", 0)
        phase = Phase("sampling", {"weights": weights, **parts})
        places.append(Place("rollout", (phase,), resources.rollout.workers))
    for group in frozen:
        if role := getattr(resources, group.role):
            phase = Phase(LOGPROBS, {"weights": group.weights, "activations": forward.glance})
            places.append(Place(group.role, (phase,), role.workers))
    return places


def _loads_whole(stage: Rl) -> bool:
    """Return whether each rank loads the whole policy before it is sharded, as `tasks.rl` and its loading do."""
    from_weights = stage.use_peft and (stage.use_dora or bool(stage.modules_to_save))
    return from_weights or any(spec.model is None and spec.sync_steps is not None for spec in stage.references.values())


def _make_pass(demand: StepDemand, model: KnownModel) -> tuple[Pass, int]:
    """Return the largest micro-batch, as `learning.batch.micro_batches` cuts it, and the number of micro-batches."""
    settings, prompt = demand.settings, demand.prompt_tokens(model)
    completion, size = settings["max_completion_length"], settings["num_generations"]
    batch = settings["generation_batch_size"] // settings["num_mini_batches"]
    groups, max_tokens = max(1, batch // size), settings["max_tokens_per_micro_batch"]
    if fitting := max_tokens // (prompt + size * completion):
        count = min(fitting, groups)
        tokens = Pass(((count, prompt),), ((count, size, completion, prompt),), count * size * completion)
        return tokens, -(-groups // count)
    paths = max(1, (max_tokens - prompt) // completion)
    return Pass(((1, prompt),), ((1, paths, completion, prompt),), paths * completion), max(2, groups)


def _find_references(demand: StepDemand, stage: Rl, *, synced: bool) -> list[KnownModel]:
    """Return the reference policies that the algorithm asks for and that are models of their own.

    Either those that `sync_steps` moves, which live in the trainer's processes, or those that never change.
    """
    columns: set[str] = set()
    for use in uses(stage):
        try:
            columns.update(read_signature(type(use), use.use).supplied)
        except SignatureError:
            continue  # a module of the user's own that is not here
    references = []
    for name, port in {"ref": "reference", **{n: f"references.{n}.model" for n in stage.references}}.items():
        is_synced = name in stage.references and stage.references[name].sync_steps is not None
        is_base = port not in demand.models and stage.use_peft and not is_synced  # the policy without its adapter
        if f"lp_{name}_T" in columns and not is_base and is_synced is synced:
            references.append(demand.model(port if port in demand.models else "model"))
    return references


def _estimate_policies(demand: StepDemand, stage: Rl) -> int:
    """Return the bytes of further policies that play roles: weights, and of trained ones gradients and moments."""
    total = 0
    for name in stage.policies:
        port = f"policies.{name}.model"
        model = demand.model(port if port in demand.models else "model")
        state = demand.trained(model)
        is_trained = any(role.policy == name and role.trainable for role in stage.roles.values())
        total += state.weights + (state.optimizer + state.gradients if is_trained else 0)
    return total


def _estimate_networks(demand: StepDemand, model: KnownModel) -> int:
    """Return the bytes of critic and auxiliary models, which are trained in turn: weights, gradients and moments."""
    blocks = [demand.settings["critic"]] if demand.settings.get("critic") else []
    blocks += list(demand.settings.get("auxiliary_models", {}).values())
    trained = sum(1 for block in blocks if block.get("target") is not None or "head" not in block)
    copies = sum(1 for block in blocks if block.get("target_network") or block.get("head") == "likelihood")
    return model.shape.body_parameters * demand.weight_bytes * (3 * trained + len(blocks) + copies)
