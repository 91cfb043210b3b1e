"""Default learning rates and their usual ranges, by kind of training and by what is trained.

Sources: TRL's SFTConfig (2e-5), GRPOConfig and DPOConfig (1e-6), its example of a reward model (1e-5, with LoRA 1e-4);
verl's actor (1e-6). Adapters take ten times the rate (verl's guide to LoRA). A model of an `init` stage has random
weights; small ones take about 1e-3 (Brown et al. 2020, table 2.1: 6e-4 for 125 million parameters, falling with size).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class UsualRate:
    """The learning rate of AdamW where a recipe sets none, and the range in which it usually is."""

    default: float
    low: float
    high: float
    trained: str
    """What is trained, in words."""


FROM_SCRATCH = UsualRate(1e-3, 0.0, 5e-2, "a model of an init stage")
FULL = {
    "sft": UsualRate(2e-5, 1e-6, 2e-4, "all weights of a pretrained model, by sft"),
    "rl": UsualRate(1e-6, 1e-8, 2e-5, "all weights of a pretrained model, by rl"),
    "preference": UsualRate(1e-6, 1e-8, 2e-5, "all weights of a pretrained model, on preferences"),
    "reward_model": UsualRate(1e-5, 1e-7, 2e-4, "a reward model from a pretrained model"),
    "process_reward_model": UsualRate(1e-5, 1e-7, 2e-4, "a process reward model from a pretrained model"),
    "action_values": UsualRate(1e-5, 1e-7, 2e-4, "values of tokens from a pretrained model"),
}
"""Rates of a model with pretrained weights, by kind."""
LORA = {
    "sft": UsualRate(2e-4, 1e-5, 2e-3, "LoRA adapters, by sft"),
    "rl": UsualRate(1e-5, 1e-7, 5e-4, "LoRA adapters, by rl"),
    "preference": UsualRate(1e-5, 1e-7, 2e-4, "LoRA adapters, on preferences"),
    "reward_model": UsualRate(1e-4, 1e-6, 2e-3, "LoRA adapters of a reward model"),
}
"""Rates of adapters, by kind."""
