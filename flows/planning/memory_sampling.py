"""Memory of sampling: what an engine holds, and the places of a step that samples without training."""

from collections.abc import Mapping

from flows.planning.memory_demand import StepDemand
from flows.planning.memory_models import KnownModel
from learning.memory_model.estimate import BYTES, Phase, Place, Slots, estimate_paged, estimate_sampling

MAX_OPEN = 512
"""Completions in progress at a time, as in `learning.generation.services.row_streams`."""
UTILIZATION = 0.5
"""Default share of a GPU that vLLM takes, as in `learning.generation.engines.vllm`."""


def estimate_engine(demand: StepDemand, model: KnownModel, samples: int, *, streaming: bool = False) -> dict[str, int]:
    """Return what the engine holds besides the policy's weights, in bytes; `streaming`: results return one by one."""
    engine, completion = demand.settings["engine"], demand.settings["max_completion_length"]
    samples, prompt = max(1, samples), demand.prompt_tokens(model)
    if engine["use"] == "vllm":
        return _estimate_vllm(demand, model, min(samples, engine.get("max_num_seqs", 256)) * (prompt + completion))
    if engine["use"] != "torch":
        return {}
    n, slots = demand.settings["num_generations"], engine.get("max_slots", 256)
    has_entropy = "entropy_behav_T" in str(demand.settings)
    return estimate_sampling(
        model.shape,
        demand.weight_bytes,
        Slots(
            min(slots, samples),
            prompt + completion,
            completion,
            samples,
            -(-samples // n),
            has_entropy,
            slots * streaming,
            keeps_turns=demand.settings.get("env") is not None,
        ),
    )


def _estimate_vllm(demand: StepDemand, model: KnownModel, tokens: int) -> dict[str, int]:
    """Return a copy of the weights and the paged cache; on a GPU vLLM takes its whole share at the start."""
    engine = demand.settings["engine"]
    shards, dtype = engine.get("tensor_parallel_size", 1), engine.get("dtype", "auto")
    weight_bytes = demand.weight_bytes if dtype == "auto" else BYTES[dtype]
    weights = model.parameters * weight_bytes // shards
    role = demand.resources.rollout or demand.trainer
    if engine.get("kv_cache_gib"):
        cache = int(engine["kv_cache_gib"] * 2**30)
    elif not role.num_gpus:
        cache = 2**30
    elif demand.gpu:
        cache = max(0, int(demand.gpu * engine.get("gpu_memory_utilization", UTILIZATION)) - weights)
    else:
        cache = estimate_paged(model.shape, weight_bytes, tokens) // shards
    return {"cache": cache, "other models" if demand.resources.rollout is None else "weights": weights}


def estimate_samplers(demand: StepDemand, models: Mapping[str, KnownModel], samples: int) -> list[Place]:
    """Return the places of models, by phase, that sample in turn, in the workers of `rollout` if there are any."""
    rollout = demand.resources.rollout
    weights = {phase: {"weights": model.parameters * demand.weight_bytes} for phase, model in models.items()}
    engines = {
        phase: parts | estimate_engine(demand, models[phase], samples, streaming=True)
        for phase, parts in weights.items()
    }
    own = weights if rollout else engines
    loading = [
        Phase(phase.replace("sampling", "loading"), {"weights": size})
        for phase, model in models.items()
        if (size := model.loading(demand.weight_bytes))
    ]
    places = [Place("step", (*(Phase(name, parts) for name, parts in own.items()), *loading))]
    if rollout:
        places.append(Place("rollout", tuple(Phase(name, parts) for name, parts in engines.items()), rollout.workers))
    return places
