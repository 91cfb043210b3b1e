"""Engine `vllm`: samples with vLLM, in this process; token for token what engine `torch` samples, up to rounding.

Weights are copied into vLLM whenever the policy's have changed, all of them, a tied head too, and compared with the
policy afterwards; adapters are added to the weights they belong to on the way.
"""

import math
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from safetensors.torch import save_file

from learning.generation.engines.context_room import check_room
from learning.generation.engines.vllm_flight import Running, VllmFlight
from learning.generation.engines.vllm_host import Host, host_for, quiet
from learning.generation.weights.protocol import complete, weights_of
from learning.generation.weights.sync_check import gap
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import StepError

LIMITS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.3}
"""Largest difference of a log-probability (nats) between vLLM and the policy that rounding explains, by type."""
PROBE = [3, 1, 4, 1, 5, 9, 2, 6]
"""Tokens, modulo the vocabulary, after which the two are compared."""


class Engine:
    """vLLM over a policy.

    `dtype` is that of vLLM's copy (auto: the policy's), `max_model_len` its longest sequence in tokens (null: the
    policy's), `max_num_seqs` how many samples run at once, `kv_cache_gib` the memory for keys and values (null: 1 on
    CPU; on a GPU what `gpu_memory_utilization`, the share of its memory that vLLM may have, leaves),
    `tensor_parallel_size` over how many processes and GPUs a layer is spread, `enforce_eager` whether to do without
    captured graphs and compilation, `sleep` whether vLLM gives its GPU memory back between calls (on CPU it cannot and
    keeps it), `max_logprob_gap` the difference from the policy (nats) that is refused after a weight sync (null: by
    type).
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
        """vLLM, started at the first use."""
        return host_for(self.policy, self.options)

    def sync(self, version: int) -> None:
        """The policy's weights have changed: they are copied before the next token is sampled, and the cache forgotten.

        What is in flight goes on under the new ones, which are then copied at once. Raises StepError when what vLLM has
        afterwards is not the policy.
        """
        self.version = version
        self._due = True
        host = self.__dict__.get("host")
        if host is not None and host.owner is self and host.flying:
            self.ready()

    def ready(self) -> Host:
        """vLLM awake with the policy's weights as they are at this version."""
        host = self.host
        if not host.awake:
            self.wake()
        if self._due or host.owner is not self:
            if host.owner is not self and host.flying:
                raise StepError("engine vllm: another policy's completions are in flight here; suspend them first")
            self.deliver(weights_of(self.policy.model).items())
        return host

    def deliver(self, weights: Any) -> None:
        """Copy weights (pairs of name and tensor) into vLLM and prove it. Raises StepError unless all arrived."""
        host = self.host
        host.owner, self._due = None, True  # until all is proven it has nobody's weights
        expected = weights_of(self.policy.model)
        with quiet():
            report = self._sent(host, weights)
            host.forget()
        complete(report["given"], expected, f"what was sent to vLLM as version {self.version}")
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
        """Compare log-probabilities with the policy's, where nothing else is in flight."""
        if host.flying:
            return
        vocabulary = self.policy.model.get_input_embeddings().num_embeddings
        prompt = [token % vocabulary for token in PROBE][: self.max_length - 2]
        self._probing = True
        try:
            self.last_gap = gap(self, self.policy, [prompt], tokens=min(4, self.max_length - len(prompt)))
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
        """Generation step by step."""
        return VllmFlight(self, self.ready(), sampling)

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """`n` generations of each request. Raises StepError for an empty prompt or one that leaves too little room."""
        for request in requests:
            self.check(request, sampling)
        flight = self.flight(sampling)
        made: dict[tuple[int, int], Generation] = {}

        def take(some: list[tuple[Running, Generation]]) -> None:
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
        """Raise StepError for a request that cannot be sampled."""
        check_room(request, sampling, engine="vllm", length=self.max_length, longer="raise `max_model_len`")
        if sampling.processor is not None and self.parallel > 1:
            raise StepError(
                "engine vllm: `logits_processors` need tensor_parallel_size 1; several workers share no function"
            )

    def sleep(self) -> None:
        """Give GPU memory back: keys and values are dropped, the weights too; `wake` brings them again."""
        host = self.host
        if not host.awake or self.policy.model.device.type != "cuda":
            return
        with quiet():
            host.llm.sleep(level=2)
        host.awake, host.owner = False, None

    def wake(self) -> None:
        """Take GPU memory again; weights are copied anew before the next token."""
        host = self.host
        if host.awake:
            return
        with quiet():
            host.llm.wake_up()
        host.awake, self._due = True, True
