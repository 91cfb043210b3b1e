"""A language model with its tokenizer: loading, saving, determinism."""

import json
import os
import random
import re
import threading
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from learning.data.chat import find_turn_ends
from learning.lookup import load_model_reader, load_optional
from learning.models.forwards import bound_row_counts, use_onednn
from learning.models.model_files import is_multimodal
from learning.models.padded import correct_attention
from learning.models.unread_weights import UnreadWeights, find_obstacle, list_unread
from learning.parallel.group import ALONE, Group
from schemas.adapter_base import find_plain_base, read_record
from schemas.errors import StepError
from schemas.training import LoRA

if TYPE_CHECKING:
    from learning.models.gguf import GgufFile

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

LARGEST_FILE = "5GB"
LOCAL_ONLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Loading options: nothing is downloaded, and no code of a folder is executed."""

STORED_DTYPES = ("float32", "bfloat16", "float16")
UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError)
"""What transformers raises for files that are cut short, and for architectures that it does not know."""
LAYER = re.compile(r"(?:model\.|transformer\.|gpt_neox\.)?(?:layers|h)\.(\d+)\.")
"""The name of a tensor of a layer, but not of a tower's or of further prediction heads."""
GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of tokenizers that are defined by their tokenizer.json alone."""

LOADING = threading.Lock()
"""Held while a model is loaded, because transformers then changes process-wide settings."""


@dataclass
class Policy:
    """A causal language model, its tokenizer, and the longest sequence (in tokens) that it was made for."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    unread: UnreadWeights | None = None
    """Weights that are still in their files, of a model without values (device `meta`)."""
    origin: Path | None = None
    """The multimodal checkpoint that the model is the text part of."""
    folder: Path | None = None
    """The folder that the model was loaded from."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a completion: the template's end of a turn, those of tokenizer and config."""
        named = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        listed = named if isinstance(named, list) else [named]
        ids = (*find_turn_ends(self.tokenizer), *listed)
        return tuple(dict.fromkeys(token for token in ids if token is not None))


def load_policy(folder: Path, *, device: str = "cpu", dtype: str = "float32", group: Group = ALONE) -> Policy:
    """Load a model folder; adapters of an adapter folder are merged into its base model in `base/`.

    For a group that shards its models, the weights stay in their files (`unread`) and the model is without values until
    it is sharded; of adapter folders, GGUF and quantised files every rank reads all weights at once.

    Only safetensors and GGUF files are read and no code of the folder is executed; quantised weights of a GGUF file
    become plain ones. Raise StepError if the folder is not a model.
    """
    folder = Path(folder)
    adapter = (folder / "adapter_config.json").is_file()
    gguf = None if adapter else open_gguf(folder)
    if not (adapter or gguf or (folder / "config.json").is_file()):
        raise StepError(f"{folder.name}: no model here, config.json is missing")
    model: Any
    if group.shards:
        whole = "its adapters are merged into it" if adapter else "it is a GGUF file" if gguf else find_obstacle(folder)
        if not whole:
            model, tokenizer = _load_model(folder, dtype, device_map={"": "meta"})
            fill_buffers(model)
            unread, origin = list_unread(model, folder), folder if is_multimodal(folder) else None
            return Policy(model.eval(), tokenizer, find_max_length(tokenizer, model), unread, origin, folder)
        if group.main:
            print(f"{folder.name}: {whole}, so every rank loads the whole model before it is sharded")
    if adapter:
        policy = load_model_reader("adapter")(folder).load(dtype)
        model = policy.model.to(device)
        use_onednn(model)
        return replace(policy, model=model)
    model, tokenizer = _load_model(folder, dtype, gguf)
    if gguf:
        gguf.finish(model)
    origin = folder if is_multimodal(folder) else None
    model = model.to(device).eval()
    use_onednn(model)
    return Policy(model, tokenizer, find_max_length(tokenizer, model), origin=origin, folder=folder)


def load_trained_policy(folder: Path, options: LoRA, *, device: str, dtype: str, group: Group) -> Policy:
    """Load the policy that a stage trains, with quantised weights if the stage asks for them.

    A group that shards it reads it later, unless adapters need its weights.
    """
    policy = load_start_policy(folder, options, device=device, dtype=dtype, group=group)
    return quantise_policy(policy, options, device)


def load_start_policy(folder: Path, options: LoRA, *, device: str, dtype: str, group: Group) -> Policy:
    """Load the policy that a stage trains before its weights are quantised: on the CPU if they will be."""
    from_weights = options.use_peft and (options.use_dora or bool(options.modules_to_save))
    if from_weights and group.shards and group.main:
        print(
            "use_dora and modules_to_save start from the weights: every rank loads the whole model before it is sharded"
        )
    device = device if load_optional(options, "quantise") is None else "cpu"
    return load_policy(folder, device=device, dtype=dtype, group=ALONE if from_weights else group)


def quantise_policy(policy: Policy, options: LoRA, device: str) -> Policy:
    """Return the policy on a device, with quantised weights if `load_in_4bit` is set, else the policy itself."""
    quantise = load_optional(options, "quantise")
    return policy if quantise is None else replace(policy, model=quantise(policy.model, options, device))


def _load_model(
    folder: Path, dtype: str, gguf: "GgufFile | None" = None, **options: Any
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return model and tokenizer of a folder; raise StepError if it does not hold them."""
    try:
        with LOADING, gguf.read_quickly() if gguf else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                **(gguf.loading_options if gguf else {}),
                **options,
                **LOCAL_ONLY,
            )
            tokenizer = load_tokenizer(folder)
        model, info = loaded
        correct_attention(model)
    except (*UNREADABLE, ImportError, SafetensorError) as error:
        raise StepError(f"{folder.name}: this model cannot be loaded: {error}") from error
    check_loaded(folder, model, info)
    return model, tokenizer


def check_loaded(folder: Path, model: nn.Module, info: Any, optional: Collection[str] = ()) -> None:
    """Raise StepError if a model lacks tensors in its files, or its files have parts of the model that it lacks.

    transformers would draw the former at random and leave out the latter: a bias of a layer that has none by
    config.json, or whole layers. What else it leaves out (towers, buffers, further prediction heads) is of no concern.
    """
    missing = set(info["missing_keys"]) - set(optional)
    if wrong := sorted([*missing, *info["mismatched_keys"]], key=str):
        raise StepError(f"{folder.name}: weights do not fit config.json, {len(wrong)} differ, first {wrong[0]}")
    if unused := sorted(name for name in info["unexpected_keys"] if _belongs(name, model)):
        raise StepError(
            f"{folder.name}: weights do not fit config.json, which makes a model without {unused[0]} "
            f"({len(unused)} such in its files); correct config.json, or save the model again"
        )


def _belongs(name: str, model: Any) -> bool:
    """Return whether a tensor that was left out is one of a module that has others, or of a layer beyond the last."""
    owner, config = name.rpartition(".")[0], model.config.get_text_config()
    owners = {owner, f"{model.base_model_prefix}.{owner}"} if owner else set()
    if any(key in owners and next(module.parameters(False), None) is not None for key, module in model.named_modules()):
        return True
    layer, depth = LAYER.match(name), getattr(config, "num_hidden_layers", None)
    ahead = getattr(config, "num_nextn_predict_layers", None) or 0
    return layer is not None and isinstance(depth, int) and int(layer[1]) >= depth + ahead


def fill_buffers(model: Any) -> None:
    """Compute the buffers that are in no file (tables of rotary embeddings) of a model without values, on the CPU."""
    for module in model.modules():
        module._is_hf_initialized = False
    # The two steps by which `from_pretrained` makes these buffers; parameters have no values and stay without.
    model._move_missing_keys_from_meta_to_device(set(), {"": "cpu"}, None, None)
    model._initialize_missing_keys(False)


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file that is the model of a folder; None if the folder has a config.json or no GGUF file.

    Raise StepError if there are several: a folder is one model.
    """
    if (folder / "config.json").is_file():
        return None
    files = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise StepError(f"{folder.name}: {len(files)} GGUF files ({names}); name one of them: path:./FILE.gguf")
    return files[0] if files else None


def open_gguf(folder: Path) -> "GgufFile | None":
    """Return the GGUF file that is the model of a folder; None without one. Raise StepError if it cannot be read."""
    file = find_gguf(folder)
    return load_model_reader("gguf")(file) if file else None


def load_outline(folder: Path, *, dtype: str = "float32") -> Policy:
    """Return the policy of a folder without its weights: only tokenizer and architecture.

    Raise StepError if the folder is not a model.
    """
    if (folder / "adapter_config.json").is_file():
        return load_model_reader("adapter")(folder).load_outline(dtype)
    gguf = open_gguf(folder)
    options = {**(gguf.config_options if gguf else {}), **LOCAL_ONLY}
    try:
        with LOADING, gguf.read_quickly() if gguf else nullcontext():
            config: Any = AutoConfig.from_pretrained(folder, **options)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
            tokenizer = load_tokenizer(folder)
    except UNREADABLE as error:
        raise StepError(f"{folder.name}: this model cannot be loaded: {error}") from error
    return Policy(model.eval(), tokenizer, find_max_length(tokenizer, model))


def read_dtype(folder: Path) -> str:
    """Return the precision of a model's files; float32 for GGUF files, whose blocks dequantise exactly to it.

    That of an adapter is the precision in which its base was loaded in training.
    """
    if (record := read_record(folder)) is not None:
        return record.dtype
    base = find_plain_base(folder)
    if not (base / "config.json").is_file():
        return "float32"
    config = json.loads((base / "config.json").read_text())
    stored = str(config.get("dtype") or config.get("torch_dtype"))
    return stored if stored in STORED_DTYPES else "float32"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder, or of its GGUF file.

    A folder whose tokenizer names no class of its own gets exactly its tokenizer.json: transformers would replace the
    rules of some (a byte-level one under model_type qwen2) by those of the architecture's published models.
    """
    if gguf := open_gguf(folder):
        return gguf.load_tokenizer()
    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text()).get("tokenizer_class") if settings.is_file() else None
    exact = named in GENERIC and (folder / "tokenizer.json").is_file()
    return (PreTrainedTokenizerFast if exact else AutoTokenizer).from_pretrained(folder, **LOCAL_ONLY)


def find_max_length(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the length in tokens of the longest sequence that both tokenizer and model allow."""
    return min(int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", 2**31)))


def resolve_max_length(policy: Policy, max_length: int | None) -> int:
    """Return the length in tokens of the longest training sequence; raise StepError if the model's limit is lower."""
    if max_length is not None and max_length > policy.max_length:
        raise StepError(f"max_length: {max_length} is more than the {policy.max_length} tokens that the model allows")
    return max_length or policy.max_length


def save_policy(policy: Policy, folder: Path, max_shard_size: str = LARGEST_FILE) -> None:
    """Write config, weights (safetensors, tied ones once) and tokenizer; equal policies give equal bytes.

    Weights have the names of published checkpoints, which vLLM and llama.cpp expect, not those that transformers uses
    in memory. Weights larger than `max_shard_size` are split over several files with an index. The ids that end a
    completion are listed in generation_config.json, where engines look for them.
    """
    _list_stop_ids(policy)
    policy.model.config.architectures = [type(policy.model).__name__]
    policy.model.config.dtype = policy.model.dtype
    policy.model.save_pretrained(folder, max_shard_size=max_shard_size)
    if policy.origin is not None:
        load_model_reader("multimodal")(policy.origin, folder)
    _forget_paths(folder / "config.json")
    save_tokenizer(policy.tokenizer, folder)


def _list_stop_ids(policy: Policy) -> Any:
    """Return the model's generation config, which lists all ids that end a completion; None if it has none."""
    generation: Any = getattr(policy.model, "generation_config", None)
    if generation is not None:
        generation.eos_token_id = list(policy.stop_ids)
        generation.pad_token_id = policy.tokenizer.pad_token_id
    return generation


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer and its chat template; equal tokenizers give equal bytes."""
    tokenizer.save_pretrained(folder)
    _forget_paths(folder / "tokenizer_config.json")


def get_untied_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers by name, each storage once: a tied head is omitted."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {name: tensor.detach().contiguous().cpu() for name, tensor in sorted(state.items())}


def _forget_paths(file: Path) -> None:
    """Remove source paths from a file, which would make the bytes of equal models differ."""
    if file.is_file():
        content = json.loads(file.read_text())
        for key in ("_name_or_path", "name_or_path", "local_files_only", "is_local"):
            content.pop(key, None)
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def add_adapters(policy: Policy, options: LoRA) -> Policy:
    """Return the policy with new adapters if `use_peft` is set, else the policy itself."""
    if (attach_adapters := load_optional(options, "attach_adapters")) is None:
        return policy
    if policy.unread is None:
        model = attach_adapters(policy.model, options)
        bound_row_counts(model)
        return replace(policy, model=model)
    with policy.unread.stand_ins():
        adapted: Any = attach_adapters(policy.model, options)
        trained = [p for p in adapted.parameters() if p.requires_grad]
    if not all(bool(p.isfinite().all()) for p in trained):
        raise StepError(
            "these adapters start from the weights, which are read after them with `strategy: fsdp2`; use ddp"
        )
    return replace(policy, model=adapted)


def save_trained(policy: Policy, folder: Path, options: LoRA) -> None:
    """Write a policy; of one with adapters only those, with `base/` as a link to the folder that it was loaded from.

    The base of a policy that was not loaded is written to `base/`; the adapters are then removed from its model.
    """
    write, remove = load_optional(options, "write_adapters"), load_optional(options, "remove_adapters")
    refer = load_optional(options, "refer_to_base")
    if write is None or remove is None or refer is None:
        save_policy(policy, folder)
        return
    write(policy.model, folder)
    save_tokenizer(policy.tokenizer, folder)
    if policy.folder is None:
        save_policy(replace(policy, model=remove(policy.model)), folder / "base")
        return
    refer(policy, policy.folder, folder, options)
    if (generation := _list_stop_ids(policy)) is not None:
        generation.save_pretrained(folder)


def set_determinism(seed: int, num_threads: int) -> None:
    """Seed every generator, fix the number of threads, and forbid nondeterministic operations."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it CUDA's matrix products may differ
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 — libraries draw from the global generator
    torch.manual_seed(seed)
    torch.set_num_threads(max(1, num_threads))
    torch.use_deterministic_algorithms(True)
    # Nothing reads uninitialised memory, and filling it costs 2 % of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # no stub
