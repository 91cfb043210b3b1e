"""Engine `vllm`: sampling with vLLM in this process; the tokens are those of engine `torch`, up to rounding.

When the policy's weights have changed, all of them, including a tied head, are copied into vLLM and then compared with
the policy; adapters are merged into their base weights for the copy.
"""

import math
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from safetensors.torch import save_file

from learning.generation.engines.context_room import check_room
from learning.generation.engines.vllm_flight import RunningSample, VllmFlight
from learning.generation.engines.vllm_host import Host, allow_nondeterminism, get_host
from learning.generation.weights.protocol import collect_weights, require_complete
from learning.generation.weights.sync_check import measure_logprob_gap
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Request, Sampling, reads_contexts
from schemas.errors import StepError

LIMITS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.3}
"""Largest difference of log-probabilities (nats) between vLLM and the policy that rounding explains, by data type."""
PROBE = [3, 1, 4, 1, 5, 9, 2, 6]
"""Prompt of the comparison with the policy: tokens, modulo the vocabulary size."""


class Engine:
    """vLLM over a policy.

    `dtype` is that of vLLM's copy (auto: the policy's), `max_model_len` the longest sequence in tokens (null: the
    policy's), `max_num_seqs` how many samples run at once, `kv_cache_gib` the memory for keys and values (null: 1 on
    CPU; on a GPU what `gpu_memory_utilization`, vLLM's share of the GPU's memory, leaves), `tensor_parallel_size` the
    number of processes and GPUs that a layer is split over, `enforce_eager` disables CUDA graphs and compilation,
    `sleep` releases vLLM's GPU memory between calls (without effect on CPU), `max_logprob_gap` is the largest accepted
    difference from the policy's log-probabilities (nats) after a weight sync (null: by data type).
    """

    def __init__(
        self,
        policy: Policy,
        *,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        max_model_len: Annotated[int, Field(ge=2)] | None = None,
        max_num_seqs: Annotated[int, Field(ge=1)] = 256,
        kv_cache_gib: Annotated[float, Field(gt=0)] | None = None,
        gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5,
        tensor_parallel_size: Annotated[int, Field(ge=1)] = 1,
        enforce_eager: bool = True,
        sleep: bool = False,
        max_logprob_gap: Annotated[float, Field(gt=0)] | None = None,
    ) -> None:
        self.policy = policy
        self.version = 0
        self.sleeps = sleep
        self.max_length = min(max_model_len or policy.max_length, policy.max_length)
        self.parallel = tensor_parallel_size
        on_gpu = policy.model.device.type == "cuda"
        self.options: dict[str, Any] = {
            "dtype": None if dtype == "auto" else dtype,
            "max_model_len": self.max_length,
            "max_num_seqs": max_num_seqs,
            "kv_cache_memory_bytes": None if kv_cache_gib is None else int(kv_cache_gib * 2**30),
            "gpu_memory_utilization": gpu_memory_utilization if on_gpu else None,
            "tensor_parallel_size": tensor_parallel_size,
            "enforce_eager": enforce_eager,
            "enable_sleep_mode": True if sleep and on_gpu else None,
        }
        used = str(policy.model.dtype).removeprefix("torch.") if dtype == "auto" else dtype
        self.limit = max_logprob_gap or LIMITS.get(used, math.inf)
        self.last_gap = math.nan
        """Difference from the policy (nats) found by the last weight sync."""
        self._due = True
        self._probing = False

    @cached_property
    def host(self) -> Host:
        """Return the vLLM host, started at the first use."""
        return get_host(self.policy, self.options)

    def sync(self, version: int) -> None:
        """Schedule a copy of the policy's changed weights before the next sampled token, and clear the prefix cache.

        If completions are in flight, the copy is immediate and they continue with the new weights. Raise StepError if
        vLLM's weights differ from the policy's afterwards.
        """
        self.version = version
        self._due = True
        host = self.__dict__.get("host")
        if host is not None and host.owner is self and host.flying:
            self.ready()

    def ready(self) -> Host:
        """Return the vLLM host, awake and with the policy's weights of this version."""
        host = self.host
        if not host.awake:
            self.wake()
        if self._due or host.owner is not self:
            if host.owner is not self and host.flying:
                raise StepError("engine vllm: another policy's completions are in flight here; suspend them first")
            self.deliver(collect_weights(self.policy.model).items())
        return host

    def deliver(self, weights: Any) -> None:
        """Copy weights (pairs of name and tensor) into vLLM and verify them; raise StepError unless all arrived."""
        host = self.host
        host.owner, self._due = None, True  # vLLM holds no policy's weights until all are verified
        expected = collect_weights(self.policy.model)
        with allow_nondeterminism():
            report = self._sent(host, weights)
            host.forget()
        require_complete(report["given"], expected, f"what was sent to vLLM as version {self.version}")
        for name in ("missing", "wrong"):
            if report[name]:
                few = ", ".join(report[name][:3])
                raise StepError(f"engine vllm: {len(report[name])} parameters did not take the new weights: {few}")
        host.owner, host.version, self._due = self, self.version, False
        self._prove(host)

    def _sent(self, host: Host, weights: Any) -> dict[str, list[str]]:
        if self.parallel == 1:
            return host.call("posttrain_load", iter(weights))
        with tempfile.TemporaryDirectory(prefix="vllm-sync-") as folder:
            file = Path(folder) / "weights.safetensors"
            save_file({name: tensor.contiguous().cpu().clone() for name, tensor in weights}, file)
            return host.call("posttrain_load", str(file))

    def _prove(self, host: Host) -> None:
        """Compare log-probabilities with the policy's, unless completions are in flight."""
        if host.flying:
            return
        embeddings: Any = self.policy.model.get_input_embeddings()
        vocabulary: int = embeddings.num_embeddings
        prompt = [token % vocabulary for token in PROBE][: self.max_length - 2]
        self._probing = True
        try:
            self.last_gap = measure_logprob_gap(
                self, self.policy, [prompt], tokens=min(4, self.max_length - len(prompt))
            )
        finally:
            self._probing = False
        if self.last_gap > self.limit:
            host.owner, self._due = None, True
            raise StepError(
                f"engine vllm: after the sync of version {self.version} its log-probabilities differ from the policy's "
                f"by {self.last_gap:.3g} nats, more than {self.limit:.3g}: it does not have the policy's weights, or "
                "computes them otherwise; raise `max_logprob_gap` only if the second is known to be harmless"
            )

    def flight(self, sampling: Sampling) -> VllmFlight:
        """Return a flight, which generates step by step."""
        return VllmFlight(self, self.ready(), sampling)

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` generations of each request; raise StepError if a prompt is empty or leaves too little room."""
        for request in requests:
            self.check(request, sampling)
        flight = self.flight(sampling)
        made: dict[tuple[int, int], Generation] = {}

        def take(some: list[tuple[RunningSample, Generation]]) -> None:
            made.update({(one.ticket, one.sample): generation for one, generation in some})

        try:
            for r, request in enumerate(requests):
                for i in range(request.n):
                    flight.begin(r, request, request.first + i, sampling.window)
            while flight.running and not self._enough(made, sampling):
                take(flight.advance())
        finally:
            take(flight.take_out())
        if self.sleeps and not self._probing:
            self.sleep()
        return [[made[r, q.first + i] for i in range(q.n)] for r, q in enumerate(requests)]

    def _enough(self, made: dict[Any, Generation], sampling: Sampling) -> bool:
        ended = sum(g.finish != "suspended" for g in made.values())
        return sampling.target is not None and ended >= sampling.target

    def check(self, request: Request, sampling: Sampling) -> None:
        """Raise StepError if a request cannot be sampled."""
        check_room(request, sampling, engine="vllm", length=self.max_length, longer="raise `max_model_len`")
        if reads_contexts(sampling.processor):
            raise StepError("engine vllm: it cannot show a logits processor the tokens before; use `engine: torch`")
        if sampling.processor is not None and self.parallel > 1:
            raise StepError(
                "engine vllm: `logits_processors` need tensor_parallel_size 1; several workers share no function"
            )

    def sleep(self) -> None:
        """Release GPU memory, including the weights; `wake` restores it."""
        host = self.host
        if not host.awake or self.policy.model.device.type != "cuda":
            return
        with allow_nondeterminism():
            host.llm.sleep(level=2)
        host.awake, host.owner = False, None

    def wake(self) -> None:
        """Allocate GPU memory again; the weights are copied before the next token."""
        host = self.host
        if host.awake:
            return
        with allow_nondeterminism():
            host.llm.wake_up()
        host.awake, self._due = True, True
