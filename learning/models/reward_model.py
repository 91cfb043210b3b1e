"""A reward model: a policy's body with a scalar head, read at the last token of a completion.

Its folder is one of transformers' sequence classifiers with one label. A reward_model stage adds `reward_model.json`:
mean and standard deviation of its rewards on held-out pairs, and the longest sequence it was trained on.

Shapes: P completions, C width of the model.
"""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from learning.lookup import load_model_reader
from learning.models.forwards import unwrap, use_onednn
from learning.models.model_files import ADAPTER_CONFIG, REWARD_FILE, REWARD_HEAD, find_reward_model_problem
from learning.models.packed import pack, packed_hidden
from learning.models.padded import correct_attention
from learning.models.policy import (
    LOADING,
    LOCAL_ONLY,
    UNREADABLE,
    Policy,
    check_loaded,
    fill_buffers,
    find_max_length,
    load_tokenizer,
    resolve_max_length,
    save_trained,
)
from learning.models.unread_weights import list_unread
from schemas.errors import StepError
from schemas.training import LoRA


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of rewards on held-out pairs."""

    mean: float = 0.0
    std: float = 1.0


@dataclass
class RewardModel:
    """A sequence classifier with one label, held as a `Policy`, and the scale of its rewards."""

    policy: Policy
    scale: Scale | None = field(default_factory=Scale)
    """None: it was not trained by a reward_model stage, and its scale is unknown."""

    def rewards(self, prompts: list[list[int]], completions: list[list[list[int]]]) -> Tensor:
        """Return rewards (P,) of the completions, prompt by prompt; each prompt is computed once.

        As in transformers, a reward is read at the last token that is not the padding token.
        """
        classifier = unwrap(self.policy.model)  # adapters are inside its modules
        padding = classifier.config.get_text_config().pad_token_id
        segments, parents, places = [], [], []
        for prompt, answers in zip(prompts, completions, strict=True):
            root = len(segments)
            for number, answer in enumerate(answers):
                at = _find_last(answer, padding)
                places.append((root + 1 + number, at) if at >= 0 else (root, max(0, _find_last(prompt, padding))))
            segments += [prompt, *answers]
            parents += [-1] + [root] * len(answers)
        packed = pack(segments, parents).to(self.policy.model.device)
        hidden_MC = packed_hidden(self.policy.model, packed)
        segment_P, place_P = torch.tensor(places, dtype=torch.long).view(-1, 2).T
        last_P = packed.cu_seqlens_S1[segment_P] + place_P
        return getattr(classifier, REWARD_HEAD)(hidden_MC[last_P.to(hidden_MC.device)])[:, 0]

    def save(self, folder: Path, options: LoRA) -> None:
        """Write the folder; equal models give equal bytes. Adapters are written over their base and removed."""
        save_trained(self.policy, folder, options)
        scale = self.scale or Scale()
        settings = {"max_length": self.policy.max_length, "mean": scale.mean, "std": scale.std}
        (folder / REWARD_FILE).write_text(json.dumps(settings, indent=1) + "\n")


def _find_last(ids: list[int], padding: int | None) -> int:
    """Return the index of the last id that is not padding, −1 if there is none."""
    return next((place for place in reversed(range(len(ids))) if ids[place] != padding), -1)


def make_reward_model(policy: Policy, max_length: int | None) -> RewardModel:
    """Return a reward model with the policy's body and a zero head: before training, all rewards are 0.

    It shares the policy's tensors. Raise StepError if transformers has no sequence classifier of the architecture.
    """
    config = deepcopy(policy.model.config)
    config.num_labels = 1
    config.pad_token_id = policy.tokenizer.pad_token_id
    body = policy.model.base_model
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(
                config, dtype=policy.model.dtype, attn_implementation="sdpa"
            )
        correct_attention(model)
        fill_buffers(model)
        # The same tensors, not a second copy of the model.
        model.base_model.load_state_dict(body.state_dict(), assign=True)
    except (ValueError, RuntimeError) as error:
        raise StepError(
            f"reward_model: transformers has no sequence classifier with the body of a {config.model_type} "
            "language model; start from a decoder such as qwen3, llama or gpt2"
        ) from error
    if not isinstance(getattr(model, REWARD_HEAD, None), torch.nn.Linear):
        raise StepError(f"reward_model: the classifier of {config.model_type} has no linear `{REWARD_HEAD}` head")
    torch.nn.init.zeros_(model.score.to_empty(device="cpu").weight)
    model.config.architectures = [type(model).__name__]
    unread = policy.unread and list_unread(model, policy.unread.folder)
    model = model if unread else model.to(policy.model.device)
    use_onednn(model)
    limit = resolve_max_length(policy, max_length)
    return RewardModel(Policy(model.eval(), policy.tokenizer, limit, unread, folder=policy.folder))


def load_reward_model(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> RewardModel:
    """Load a reward model: what `RewardModel.save` wrote, or another sequence classifier with one label.

    Only safetensors are read and no code of the folder is executed. Raise StepError if the folder is not a reward
    model.
    """
    if problem := find_reward_model_problem(folder):
        raise StepError(f"{folder.name}: {problem}")
    model: Any
    model, tokenizer = (
        _load_adapted(folder, dtype) if (folder / ADAPTER_CONFIG).is_file() else _load_classifier(folder, dtype)
    )
    correct_attention(model)
    model = model.to(device).eval()
    use_onednn(model)
    if not (folder / REWARD_FILE).is_file():
        return RewardModel(Policy(model, tokenizer, find_max_length(tokenizer, model)), None)
    settings = json.loads((folder / REWARD_FILE).read_text())
    return RewardModel(Policy(model, tokenizer, settings["max_length"]), Scale(settings["mean"], settings["std"]))


def _load_adapted(folder: Path, dtype: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return the classifier of an adapter's folder, merged, and its tokenizer.

    The base of a reward_model stage is the language model that it started from.
    """
    adapter = load_model_reader("adapter")(folder)
    if adapter.record is None:
        model, tokenizer = _load_classifier(folder / "base", dtype, has_head=False)
    else:
        judge = make_reward_model(adapter.load_base(dtype), None).policy
        model, tokenizer = judge.model, load_tokenizer(folder)
    return adapter.fold(model), tokenizer


def _load_classifier(folder: Path, dtype: str, *, has_head: bool = True) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return a sequence classifier with one label and its tokenizer; an adapter's base may lack the head."""
    try:
        with LOADING:
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                attn_implementation="sdpa",
                num_labels=1,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                **LOCAL_ONLY,
            )
            tokenizer = load_tokenizer(folder)
    except (*UNREADABLE, ImportError, SafetensorError) as error:
        raise StepError(f"{folder.name}: this reward model cannot be loaded: {error}") from error
    model, info = loaded
    check_loaded(folder, model, info, () if has_head else (f"{REWARD_HEAD}.weight",))
    return model, tokenizer
