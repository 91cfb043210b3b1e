"""The places of a step of each kind, with what they hold: one function per kind, named as the kind.

Where a length depends on data that is still to be made, the longest that the settings allow is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.planning.closure import uses
from flows.planning.memory_models import Known
from learning.memory_model.estimate import (
    BYTES,
    Phase,
    Place,
    Slots,
    Trained,
    beside,
    paged,
    sampling,
    training,
)
from learning.memory_model.forward import ROW, Forward, Pass, Precision
from schemas.errors import StepError
from schemas.signatures import SignatureError, signature
from schemas.stages.base import Resources
from schemas.stages.rl import Rl

TOKENS = 16_384
"""Tokens of a forward pass of a reward model, as in `tasks.reward_model`."""
UNDER_WAY = 512
"""Completions under way at a time in an evaluation, as in `learning.generation.services.row_streams`."""
UTILIZATION = 0.5
"""Share of a GPU that vLLM takes unless told otherwise, as in `learning.generation.engines.vllm`."""


@dataclass(frozen=True)
class Job:
    """A step: its settings, what it may have, the models at its ports; limits in bytes and tokens, if given."""

    settings: Mapping[str, Any]
    resources: Resources
    models: Mapping[str, Known | str]
    gpu: int | None = None
    prompt: int | None = None

    def model(self, port: str = "model") -> Known:
        """The model at a port. Raises StepError when it is not known."""
        found = self.models.get(port, f"nothing comes in at `{port}`")
        if isinstance(found, str):
            raise StepError(found)
        return found

    @property
    def where(self) -> Resources | Any:
        """What holds the trained model: the group, or the step's own process."""
        return self.resources.train or self.resources

    @property
    def workers(self) -> int:
        """Processes that train."""
        return self.resources.train.workers if self.resources.train else 1

    @property
    def role(self) -> str:
        """What they are called."""
        return "train" if self.resources.train else "step"

    @property
    def size(self) -> int:
        """Bytes of a weight."""
        return BYTES[self.settings.get("dtype", "float32")]

    @property
    def precision(self) -> Precision:
        """Of a training pass."""
        rank = self.settings["lora_r"] if self.settings.get("use_peft") else 0
        mixed = bool(self.settings.get("bf16"))
        return Precision(self.size, on_cpu=not self.where.num_gpus, rank=rank, mixed=mixed)

    def forward(self, known: Known, tokens: Pass) -> Forward:
        """A training pass of a model."""
        return Forward(known.shape, tokens, self.precision, bool(self.settings.get("gradient_checkpointing")))

    def trained(self, known: Known, parameters: int | None = None) -> Trained:
        """A model under training, spread as `resources` say."""
        total = parameters or known.parameters
        rank, targets = self.settings.get("lora_r"), self.settings.get("lora_target_modules")
        chosen = known.shape.adapter_parameters(rank, targets) if self.settings.get("use_peft") else total
        strategy = self.resources.train.strategy if self.resources.train and self.workers > 1 else None
        shards = self.workers if strategy == "fsdp2" else 1
        return Trained(known.shape, total, chosen, self.size, shards, copies=strategy == "ddp")

    def limit(self, known: Known) -> int:
        """Tokens of the longest row."""
        return min(self.settings.get("max_length") or known.max_length, known.max_length)

    def prompts(self, known: Known) -> int:
        """Tokens of the longest prompt."""
        room = max(1, known.max_length - self.settings["max_completion_length"])
        return min(self.prompt or room, room)


def sft(job: Job) -> list[Place]:
    """Rows of the longest length, as many as a pass takes."""
    known, rows = job.model(), job.settings["per_device_train_batch_size"]
    limit = job.limit(known)
    lengths = {limit, min(limit, ROW[1])} if job.settings["packing"] else {limit}
    passes = job.settings["gradient_accumulation_steps"]
    phases: tuple[Phase, ...] = ()
    for length in sorted(lengths):
        count = rows * limit // length
        forward = job.forward(known, Pass(((count, length),), needed=count * (length - 1)))
        phases += training(job.trained(known), forward, passes)
    return [Place(job.role, phases, job.workers)]


def reward_model(job: Job) -> list[Place]:
    """Pairs of the longest length, a prompt of half of it."""
    known = job.model()
    parameters = known.shape.body_parameters + known.shape.width
    return [Place(job.role, _pairs(job, known, TOKENS, parameters, needed=False), job.workers)]


def preference(job: Job) -> list[Place]:
    """The same with logits; references are asked one after the other before the training begins."""
    known = job.model()
    phases = _pairs(job, known, job.settings["max_tokens_per_micro_batch"], known.parameters, needed=True)
    asked = [f"lp_{name}" for name in ("reference", "previous") if name in job.models]
    glance = Forward(known.shape, _of_pairs(job, known, TOKENS, True)[0], job.precision).glance
    both = known.parameters * job.size
    references = Phase("references", {"weights": both, "other models": both * bool(asked), "activations": glance})
    return [Place(job.role, (*phases, references), job.workers)]


def _of_pairs(job: Job, known: Known, budget: int, needed: bool) -> tuple[Pass, int]:
    limit = job.limit(known)
    prompt = min(job.prompt or limit // 2, limit - 1)
    answer, batch = limit - prompt, job.settings["per_device_train_batch_size"]
    count = max(1, min(batch, budget // (prompt + 2 * answer)))
    tokens = Pass(((count, prompt),), ((count, 2, answer, prompt),), 2 * count * answer if needed else 0)
    return tokens, -(-batch // count)


def _pairs(job: Job, known: Known, budget: int, parameters: int, needed: bool) -> tuple[Phase, ...]:
    tokens, passes = _of_pairs(job, known, budget, needed)
    return training(job.trained(known, parameters), job.forward(known, tokens), passes)


def rl(job: Job) -> list[Place]:
    """Sampling and updates take turns in the trainer's places, unless `rollout` has places of its own."""
    known, settings = job.model(), job.settings
    trained, apart = job.trained(known), job.resources
    tokens, passes = _groups(job, known)
    forward = job.forward(known, tokens)
    phases = training(trained, forward, passes)
    held = {"weights": trained.weights, "optimizer": trained.optimizer, "gradients": trained.gradients}
    if apart.rollout is None:
        own = _sampler(job, known, settings["generation_batch_size"] // job.workers)
        phases += (Phase("sampling", {**held, **own}),)
    references = _references(job)
    glance = forward.glance if references else 0
    phases += (Phase("log-probabilities", {**held, "activations": glance}),) if references else ()
    others = 0 if apart.reference else sum(model.parameters for model in references) * job.size
    judges = [m for port, m in job.models.items() if port.startswith("rewards.") and isinstance(m, Known)]
    others += 0 if apart.reward else sum(model.parameters for model in judges) * BYTES["float32"]
    places = [Place(job.role, beside(phases, "other models", others + _networks(job, known)), job.workers)]
    if apart.rollout:
        parts = _sampler(job, known, -(-settings["generation_batch_size"] // apart.rollout.workers))
        weights = known.parameters * job.size + parts.pop("weights", 0)
        places.append(Place("rollout", (Phase("sampling", {"weights": weights, **parts}),), apart.rollout.workers))
    for name, models, size in (("reference", references, job.size), ("reward", judges, BYTES["float32"])):
        if role := getattr(apart, name):
            weights = sum(model.parameters for model in models) * size
            phase = Phase("log-probabilities", {"weights": weights, "activations": forward.glance})
            places.append(Place(name, (phase,), role.workers))
    return places


def _groups(job: Job, known: Known) -> tuple[Pass, int]:
    """The largest micro-batch, as `learning.batch.split` cuts it, and how many there are."""
    settings, prompt = job.settings, job.prompts(known)
    answer, size = settings["max_completion_length"], settings["num_generations"]
    batch = settings["generation_batch_size"] // settings["num_mini_batches"]
    groups, budget = max(1, batch // size), settings["max_tokens_per_micro_batch"]
    if fit := budget // (prompt + size * answer):
        count = min(fit, groups)
        return Pass(((count, prompt),), ((count, size, answer, prompt),), count * size * answer), -(-groups // count)
    paths = max(1, (budget - prompt) // answer)
    return Pass(((1, prompt),), ((1, paths, answer, prompt),), paths * answer), max(2, groups)


def _references(job: Job) -> list[Known]:
    """The reference policies that some part of the algorithm asks for and that are models of their own."""
    stage = Rl.model_validate(job.settings)
    asked: set[str] = set()
    for use in uses(stage):
        try:
            asked.update(signature(type(use), use.use).supplied)
        except SignatureError:
            continue  # a module of the user's own that is not here
    found = []
    for name, port in {"ref": "reference", **{n: f"references.{n}.model" for n in stage.references}}.items():
        moves = name in stage.references and stage.references[name].sync_steps is not None
        itself = port not in job.models and stage.use_peft and not moves
        if f"lp_{name}_T" in asked and not itself:
            found.append(job.model(port if port in job.models else "model"))
    return found


def _networks(job: Job, known: Known) -> int:
    """Critic and auxiliaries: weights, gradients and moments of each, which learn one after the other."""
    blocks = [job.settings["critic"]] if job.settings.get("critic") else []
    blocks += list(job.settings.get("auxiliary_models", {}).values())
    learnt = [block for block in blocks if block.get("target") is not None or "head" not in block]
    body = known.shape.body_parameters * job.size
    copies = sum(1 for block in blocks if block.get("target_network") or block.get("head") == "likelihood")
    return body * (4 * len(learnt) + len(blocks) - len(learnt) + copies)


def _sampler(job: Job, known: Known, samples: int, *, flight: bool = False) -> dict[str, int]:
    """What the engine holds beside the weights of the policy; a `flight` gives its results away as they end."""
    engine, answer = job.settings["engine"], job.settings["max_completion_length"]
    samples, prompt = max(1, samples), job.prompts(known)
    if engine["use"] == "vllm":
        return _vllm(job, known, min(samples, engine.get("max_num_seqs", 256)) * (prompt + answer))
    if engine["use"] != "torch":
        return {}
    n = job.settings["num_generations"]
    entropy = "entropy_behav_T" in str(job.settings)
    most = engine.get("max_slots", 256)
    call = Slots(min(most, samples), prompt + answer, answer, samples, -(-samples // n), entropy, most * flight)
    return sampling(known.shape, job.size, call)


def _vllm(job: Job, known: Known, tokens: int) -> dict[str, int]:
    """A copy of the weights and the paged cache; on a GPU vLLM takes its whole share at its start."""
    engine, spread = job.settings["engine"], job.settings["engine"].get("tensor_parallel_size", 1)
    dtype = engine.get("dtype", "auto")
    size = job.size if dtype == "auto" else BYTES[dtype]
    weights = known.parameters * size // spread
    role = job.resources.rollout or job.where
    if engine.get("kv_cache_gib"):
        cache = int(engine["kv_cache_gib"] * 2**30)
    elif not role.num_gpus:
        cache = 2**30
    elif job.gpu:
        cache = max(0, int(job.gpu * engine.get("gpu_memory_utilization", UTILIZATION)) - weights)
    else:
        cache = paged(known.shape, size, tokens) // spread
    return {"cache": cache, "other models" if job.resources.rollout is None else "weights": weights}


def evaluate(job: Job) -> list[Place]:
    """One model after the other, in float32; workers of `rollout` hold each of them in turn."""
    samples, limit = UNDER_WAY, job.settings.get("limit")
    if limit:
        samples = min(samples, limit * job.settings["num_generations"])
    ports = [port for port in job.models if port == "model" or port.startswith(("models.", "against."))]
    return _sampled(job, {f"sampling {port}": job.model(port) for port in ports}, samples)


def synthesize(job: Job) -> list[Place]:
    """A model that samples; a programmatic teacher holds nothing."""
    return _sampled(job, {"sampling": job.model()}, UNDER_WAY) if "model" in job.models else []


def practice(job: Job) -> list[Place]:
    """The model that practises, as it samples; nothing of it is trained."""
    return _sampled(job, {"sampling": job.model()}, min(UNDER_WAY, job.settings["generation_batch_size"]))


def _sampled(job: Job, models: Mapping[str, Known], samples: int) -> list[Place]:
    apart = job.resources.rollout
    held = {name: {"weights": known.parameters * job.size} for name, known in models.items()}
    both = {n: {**parts, **_sampler(job, models[n], samples, flight=True)} for n, parts in held.items()}
    places = [Place("step", tuple(Phase(name, parts) for name, parts in (held if apart else both).items()))]
    if apart:
        places.append(Place("rollout", tuple(Phase(name, parts) for name, parts in both.items()), apart.workers))
    return places


def init(job: Job) -> list[Place]:
    """A model in float32."""
    known = job.model("made")
    return [Place("step", (Phase("made", {"weights": known.parameters * BYTES["float32"]}),))]


def merge(job: Job) -> list[Place]:
    """The largest tensor of every model and of the result, in float32."""
    models = [job.model(port) for port in job.models]
    largest = [max(m.shape.vocabulary * m.shape.width, max(a * b for a, b in m.shape.linears)) for m in models]
    held = (sum(largest) + 2 * max(largest)) * BYTES["float32"]
    return [Place("step", (Phase("the largest tensor", {"weights": held}),))]
