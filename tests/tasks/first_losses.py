"""A model, a reference and rows, in files, on which TRL and posttrain must compute the same first loss.

`python -m tests.tasks.first_losses` in an environment with TRL writes `first_losses.json`.
"""

import json
import math
import sys
import tempfile
import warnings
from pathlib import Path

GOLDEN = Path(__file__).with_suffix(".json")
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<eos>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<eos>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
)
TURNS = [("What is 2 + 2?", "4, or four."), ("And 10 - 3?", "It is 7."), ("Say hello in French.", "Bonjour!")]
CONVERSATIONS = [
    [("system", "Be brief."), ("user", "What is 2 + 2?"), ("assistant", "4.")],
    [("user", "And 10 - 3?"), ("assistant", "It is 7."), ("user", "Are you sure?"), ("assistant", "Yes: 7 + 3 = 10.")],
    [("user", "Say hello in French."), ("assistant", "Bonjour!")],
]
COMPLETIONS = [("What is 2 + 2?", "4."), ("Say hello in French.", "Bonjour, and a longer text that follows.")]
PAIRS = [("What is 2 + 2?", "4.", "5, I think."), ("Say hello in French.", "Bonjour!", "Hola.")]
BETA = 0.3


def write_files(folder):
    """Write `model`, `reference` and the rows in the formats that TRL's users have."""
    from tests.bpe_checkpoint import write_bpe_checkpoint

    write_bpe_checkpoint(folder, TURNS)
    tokenizer_file = folder / "model/chat_template.jinja"
    tokenizer_file.write_text(TEMPLATE)
    _set_weights(folder / "model", folder / "reference", 0.5)
    _set_weights(folder / "model", folder / "model", 0.0)
    rows = {
        "messages": [{"messages": _say(*turns)} for turns in CONVERSATIONS],
        "completions": [{"prompt": _say(("user", p)), "completion": _say(("assistant", c))} for p, c in COMPLETIONS],
        "pairs": [
            {"prompt": _say(("user", p)), "chosen": _say(("assistant", c)), "rejected": _say(("assistant", r))}
            for p, c, r in PAIRS
        ],
    }
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _say(*turns):
    return [{"role": role, "content": text} for role, text in turns]


def _set_weights(source, target, shift):
    """Write a model whose weights are sines, so that they depend on no random stream; norms are near 1."""
    import torch

    from learning.models.policy import load_policy, save_policy

    policy = load_policy(source)
    with torch.no_grad():
        for number, (name, weights) in enumerate(sorted(policy.model.named_parameters())):
            waves = torch.arange(weights.numel(), dtype=torch.float64).mul_(0.7).add_(number + shift).sin_()
            scale = 0.3 / math.sqrt(weights.shape[-1]) if weights.dim() > 1 else 0.1
            weights.copy_((waves * 3 * scale + float("norm" in name)).view_as(weights))
    save_policy(policy, target)


def compute_with_trl(folder):
    """Return the first losses of TRL's trainers on the files, by name."""
    import trl
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shared = {"output_dir": str(folder / "out"), "use_cpu": True, "bf16": False, "report_to": [], "max_steps": 1}
    shared |= {"per_device_train_batch_size": 8, "learning_rate": 0.0, "logging_steps": 1, "save_strategy": "no"}
    shared |= {"gradient_checkpointing": False}
    losses = {}
    for name, file, own in [
        ("sft on all assistant turns", "messages", {"assistant_only_loss": True}),
        ("sft on completions", "completions", {"completion_only_loss": True}),
        ("dpo", "pairs", {"beta": BETA}),
    ]:
        data = load_dataset("json", data_files=str(folder / f"{file}.jsonl"), split="train")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
        more = {}
        if name == "dpo":
            more["ref_model"] = AutoModelForCausalLM.from_pretrained(folder / "reference", dtype="float32")
        config, trainer = (trl.DPOConfig, trl.DPOTrainer) if more else (trl.SFTConfig, trl.SFTTrainer)
        made = trainer(model, args=config(**shared, **own), train_dataset=data, processing_class=tokenizer, **more)
        made.train()
        losses[name] = next(entry["loss"] for entry in made.state.log_history if "loss" in entry)
    return losses


if __name__ == "__main__":
    import torch
    import transformers
    import trl

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place))
        versions = {one.__name__: one.__version__.partition("+")[0] for one in (trl, transformers, torch)}
        text = json.dumps({"versions": versions, "losses": compute_with_trl(Path(place))}, indent=1)
    GOLDEN.write_text(text + "\n")
    print(text, file=sys.stderr)
