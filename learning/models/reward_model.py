"""A reward model: a policy's body with a scalar head, read at the last token of a completion.

Its folder is one of transformers' sequence classifiers with one label, plus `reward_model.json`: mean and standard
deviation of its rewards on held-out pairs, and the longest sequence it was trained on.

Shapes: P completions, C width of the model.
"""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from learning.models.packed import pack, packed_hidden
from learning.models.policy import LOADING, Policy, load_tokenizer, resolve_max_length, save_policy
from schemas.errors import StepError

FILE = "reward_model.json"


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of rewards on held-out pairs."""

    mean: float = 0.0
    std: float = 1.0


@dataclass
class RewardModel:
    """A sequence classifier with one label, held as a `Policy`, and the scale of its rewards."""

    policy: Policy
    scale: Scale = field(default_factory=Scale)

    def rewards(self, prompts: list[list[int]], completions: list[list[list[int]]]) -> Tensor:
        """Return rewards (P,) of the completions, prompt by prompt; each prompt is computed once."""
        segments, parents, leaves = [], [], []
        for prompt, answers in zip(prompts, completions, strict=True):
            root = len(segments)
            leaves += range(root + 1, root + 1 + len(answers))
            segments += [prompt, *answers]
            parents += [-1] + [root] * len(answers)
        packed = pack(segments, parents).to(self.policy.model.device)
        hidden_MC = packed_hidden(self.policy.model, packed)
        last_P = packed.cu_seqlens_S1[torch.tensor(leaves, dtype=torch.long) + 1] - 1
        head: Any = self.policy.model.score
        return head(hidden_MC[last_P.to(hidden_MC.device)])[:, 0]

    def save(self, folder: Path) -> None:
        """Write the folder; equal models give equal bytes."""
        save_policy(self.policy, folder)
        settings = {"max_length": self.policy.max_length, "mean": self.scale.mean, "std": self.scale.std}
        (folder / FILE).write_text(json.dumps(settings, indent=1) + "\n")


def make_reward_model(policy: Policy, max_length: int | None) -> RewardModel:
    """Return a reward model with the policy's body and a zero head: before training, all rewards are 0.

    Raise StepError if transformers has no sequence classifier of the architecture.
    """
    config = deepcopy(policy.model.config)
    config.num_labels = 1
    config.pad_token_id = policy.tokenizer.pad_token_id
    body = policy.model.base_model
    try:
        model = AutoModelForSequenceClassification.from_config(
            config, dtype=policy.model.dtype, attn_implementation="sdpa"
        )
        model.base_model.load_state_dict(body.state_dict())
    except (ValueError, RuntimeError) as error:
        raise StepError(
            f"reward_model: transformers has no sequence classifier with the body of a {config.model_type} "
            "language model; start from a decoder such as qwen3, llama or gpt2"
        ) from error
    if not isinstance(getattr(model, "score", None), torch.nn.Linear):
        raise StepError(f"reward_model: the classifier of {config.model_type} has no linear `score` head")
    torch.nn.init.zeros_(model.score.weight)
    model.config.architectures = [type(model).__name__]
    return RewardModel(
        Policy(model.to(policy.model.device).eval(), policy.tokenizer, resolve_max_length(policy, max_length))
    )


def load_reward_model(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> RewardModel:
    """Load what `RewardModel.save` wrote; raise StepError if the folder is not a reward model."""
    if not (folder / FILE).is_file():
        raise StepError(
            f"{folder.name}: no reward model here, {FILE} is missing; give the output of a reward_model stage"
        )
    settings = json.loads((folder / FILE).read_text())
    with LOADING:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
        )
        tokenizer = load_tokenizer(folder)
    policy = Policy(model.to(device).eval(), tokenizer, settings["max_length"])
    return RewardModel(policy, Scale(settings["mean"], settings["std"]))
