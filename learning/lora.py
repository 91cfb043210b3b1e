"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by peft, saved as folders that stand alone."""

import json
from pathlib import Path

from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

from learning.policy import Policy, save_policy
from schemas.errors import StepError
from schemas.training import LoRA


def with_adapter(policy: Policy, options: LoRA) -> Policy:
    """The policy with fresh adapters, the only weights that train; raises StepError for layers that do not exist."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules=options.lora_target_modules,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in policy.model.modules()),
    )
    try:
        model = get_peft_model(policy.model, config)
    except ValueError as error:
        raise StepError(f"lora_target_modules: {error}") from error
    # Only the adapters' own dropout is active: the base stays as it is sampled from.
    for name, module in model.eval().named_modules():
        module.training = "lora_dropout" in name
    return Policy(model, policy.tokenizer, policy.max_length)


def save_adapter(policy: Policy, folder: Path) -> None:
    """Write the adapters, the tokenizer, and the base they belong to in `base/`; takes the adapters off the model."""
    model: PeftModel = policy.model
    weights = {k: v.detach().contiguous().cpu() for k, v in sorted(get_peft_model_state_dict(model).items())}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=sorted) + "\n")
    base = Policy(model.unload(), policy.tokenizer, policy.max_length)
    save_policy(base, folder / "base")
    for file in sorted((folder / "base").iterdir()):
        if file.name.startswith(("tokenizer", "chat_template")):
            (folder / file.name).write_bytes(file.read_bytes())
