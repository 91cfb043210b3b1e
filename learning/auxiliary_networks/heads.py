"""Folders of auxiliary networks, value models and process reward models: written and read.

One with a head is one of transformers' token classifiers, its labels being the values; one by likelihood is a language
model with the one it started from in `start/`. `auxiliary.json` says what is valued. Weights are safetensors, and the
tokenizer lies in the same folder.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForTokenClassification

from learning.auxiliary_networks.network import Head, Likelihood, Valued, copy_body
from learning.batch.batch import Batch
from learning.models.forwards import unwrap, use_onednn
from learning.models.model_files import is_reward_model
from learning.models.padded import correct_attention
from learning.models.policy import (
    LOADING,
    LOCAL_ONLY,
    UNREADABLE,
    Policy,
    check_loaded,
    load_policy,
    load_tokenizer,
    save_policy,
)
from learning.models.reward_model import load_reward_model
from learning.models.weights import Weights
from schemas.errors import StepError

FILE = "auxiliary.json"
Reads = Head | Literal["likelihood"]
"""What the values of a network are of."""
BETA = 0.05
"""Usual scale of log-ratios as rewards (Cui et al. 2025)."""


def save_network(network: Valued | Likelihood, policy: Policy, folder: Path, **settings: Any) -> None:
    """Write a network in the clothes of `policy`, whose tokenizer it reads; equal ones give equal bytes.

    Raises StepError when transformers has no token classifier of the architecture.
    """
    if isinstance(network, Likelihood):
        save_policy(Policy(network.model, policy.tokenizer, policy.max_length), folder)
        save_policy(Policy(network.start, policy.tokenizer, policy.max_length), folder / "start")
        settings = {**settings, "head": "likelihood", "beta": network.beta}
    else:
        save_policy(Policy(_classifier(network, policy), policy.tokenizer, policy.max_length), folder)
        settings = {**settings, "head": network.reads, "heads": network.head.out_features}
    text = json.dumps({**settings, "max_length": policy.max_length}, indent=1, sort_keys=True)
    (folder / FILE).write_text(text + "\n")


def _classifier(network: Valued, policy: Policy) -> Any:
    config = deepcopy(network.body.config)
    config.num_labels = network.head.out_features
    config.classifier_dropout = 0.0
    config.pad_token_id = policy.tokenizer.pad_token_id
    try:
        made = AutoModelForTokenClassification.from_config(config, dtype=network.body.dtype)
        made.base_model.load_state_dict(network.body.state_dict())
    except (ValueError, RuntimeError) as error:
        raise StepError(
            f"publish: transformers has no token classifier with the body of a {config.model_type} model; start from a "
            "decoder such as qwen3, llama or gpt2"
        ) from error
    head = _linear(made)
    # Values are read in float32 at least, so they are kept so.
    head.to(network.head.weight.dtype)
    head.weight.data.copy_(network.head.weight.data)
    head.bias.data.copy_(network.head.bias.data)
    made.config.architectures = [type(made).__name__]
    return made.eval()


def _linear(model: Any) -> nn.Linear:
    """Return the head of a token classifier; models name it differently."""
    for name in ("score", "classifier"):
        if isinstance(head := getattr(model, name, None), nn.Linear):
            return head
    raise StepError(f"the classifier of {model.config.model_type} has no linear head")


def is_network(folder: Path) -> bool:
    """Return whether a folder holds what `save_network` writes."""
    return (folder / FILE).is_file()


def read_network_info(folder: Path) -> Mapping[str, Any]:
    """Return the content of a network's auxiliary.json; raises StepError if the folder holds no network."""
    if not is_network(folder):
        raise StepError(
            f"{folder.name}: no value model or process reward model here, {FILE} is missing; give the output of an rl "
            "stage that publishes one"
        )
    return json.loads((folder / FILE).read_text())


def load_network(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> tuple[Valued | Likelihood, Policy]:
    """Return a saved network and its tokenizer; raises StepError for another folder."""
    settings = read_network_info(folder)
    if settings["head"] == "likelihood":
        trained = load_policy(folder, device=device, dtype=dtype)
        start = load_policy(folder / "start", device=device, dtype=dtype)
        return Likelihood(trained.model, start.model, settings["beta"]), trained
    loaded = _load_classifier(folder, dtype)
    correct_attention(loaded)
    use_onednn(loaded.to(device))
    network = Valued(loaded.to(device).eval().base_model, settings["head"], settings["heads"], 0)
    file = Weights(folder)
    name = next(n for n, module in loaded.named_children() if module is _linear(loaded))
    put_head(network, file.read(f"{name}.weight"), file.read(f"{name}.bias"))
    tokenizer = load_tokenizer(folder)
    return network, Policy(loaded, tokenizer, settings["max_length"])


def _load_classifier(folder: Path, dtype: str) -> Any:
    """Return a token classifier; raises StepError if its files lack tensors of it."""
    try:
        with LOADING:
            loaded: Any = AutoModelForTokenClassification.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                **LOCAL_ONLY,
            )
    except (*UNREADABLE, ImportError, SafetensorError) as error:
        raise StepError(f"{folder.name}: this network cannot be loaded: {error}") from error
    model, info = loaded
    check_loaded(folder, model, info)
    return model


@dataclass(frozen=True)
class TokenJudge:
    """A process reward model: values of the tokens of completions."""

    network: Valued | Likelihood
    policy: Policy
    link: str
    separator: str | None = None
    """What ends a step, if it was trained on labels of steps; None: every token has a value."""

    @torch.no_grad()
    def rewards(self, batch: Batch) -> torch.Tensor:
        """Return the values at sampled tokens (T,), the mean of the heads where there are several."""
        values = self.network(batch, whole=True)
        value_T = values.tokens[""] if isinstance(self.network, Likelihood) else values.values_XH.mean(-1)
        return value_T.sigmoid() if self.link == "logistic" else value_T


def load_token_judge(folder: Path, *, device: str = "cpu") -> TokenJudge:
    """Return a published process reward model; raises StepError for another folder, or one that values no tokens."""
    settings = read_network_info(folder)
    if settings["head"] not in ("token", "likelihood"):
        raise StepError(f"{folder.name}: its values are of `{settings['head']}`; a process reward model values tokens")
    network, policy = load_network(folder, device=device)
    return TokenJudge(network, policy, settings["link"], settings.get("separator"))


def put_head(network: Valued, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Give a network a head that another one has learnt; raises StepError for another number of values."""
    if weight.shape != network.head.weight.shape:
        raise StepError(
            f"{network.name}: `model` has {weight.shape[0]} value(s) at a time, and here there are "
            f"{network.head.out_features}; give as many `heads`, or start from a policy"
        )
    network.head.weight.data.copy_(weight)
    network.head.bias.data.copy_(bias)


def make_network(block: Any, reads: Reads, policy: Policy, folder: Path | None, seed: int, name: str) -> nn.Module:
    """Return the network of a block, from `folder` or a copy of the policy's body with a new head."""
    device, dtype = str(policy.model.device), str(policy.model.dtype).removeprefix("torch.")
    how = {"device": device, "dtype": dtype}
    if folder is not None and is_network(folder):
        return _continued(folder, block, reads, seed, name, how)
    if reads == "likelihood":
        start = policy if folder is None else load_policy(folder, device=device, dtype=dtype)
        model = unwrap(start.model)
        return Likelihood(deepcopy(model), deepcopy(model), block.beta or BETA)
    if folder is not None and is_reward_model(folder):
        judge: Any = load_reward_model(folder, **how).policy.model
        network = Valued(judge.base_model, reads, block.heads, seed, name)
        if reads != "action":
            network.head.weight.data += judge.score.weight.data.to(network.head.weight.dtype)
        return network
    start_model: Any = None if folder is None else load_policy(folder, device=device, dtype=dtype).model
    body = copy_body(policy) if start_model is None else start_model.base_model
    return Valued(body, reads, block.heads, seed, name)


def _continued(folder: Path, block: Any, reads: Reads, seed: int, name: str, how: dict[str, str]) -> nn.Module:
    """Return a network that another stage published, to be read or trained further."""
    settings, (loaded, _) = read_network_info(folder), load_network(folder, **how)
    if isinstance(loaded, Likelihood) and reads == "likelihood":
        loaded.beta = block.beta or settings["beta"]
        return loaded
    if isinstance(loaded, Likelihood) or reads == "likelihood":
        raise StepError(f"{name}: `model` was learnt with `head: {settings['head']}`, and here it is `{reads}`")
    network = Valued(loaded.body, reads, block.heads, seed, name)
    # The value of the state before a token is that of the token before it: the same hidden state and the same head.
    if settings["head"] == reads or {settings["head"], reads} == {"state", "token"}:
        put_head(network, loaded.head.weight.data, loaded.head.bias.data)
    return network
