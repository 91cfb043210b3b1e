"""The policy that a stage trains: with adapters, and written at the end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from learning.models.policy import Policy, save_policy, save_tokenizer
from schemas.training import LoRA


def add_adapters(policy: Policy, options: LoRA) -> Policy:
    """Return the policy with fresh adapters if `use_peft` is on, else the policy itself."""
    if not options.use_peft:
        return policy
    from learning.models.adapters import attach_adapters  # peft takes long to import, and few stages need it

    return replace(policy, model=attach_adapters(policy.model, options))


def save_trained(policy: Policy, folder: Path, *, adapted: bool) -> None:
    """Write a policy; adapters with the base they belong to in `base/`, so that their folder stands alone.

    The adapters are taken off it.
    """
    if not adapted:
        save_policy(policy, folder)
        return
    from learning.models.adapters import write_adapters  # peft takes long to import, and few need it

    adapted_model: Any = policy.model
    write_adapters(adapted_model, folder)
    save_tokenizer(policy.tokenizer, folder)
    save_policy(replace(policy, model=adapted_model.unload()), folder / "base")
