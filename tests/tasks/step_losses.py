"""A model, a head and solutions with labels of steps, on which TRL's PRMTrainer and posttrain must compute the same.

`python -m tests.tasks.step_losses` in an environment with TRL 0.24, the last version that documents the trainer, writes
`step_losses.json`.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

GOLDEN = Path(__file__).with_suffix(".json")
SEPARATOR = "\n\n"
ROWS = [
    {"prompt": "What is 2 + 2?", "completions": ["4.", "So four, or 4."], "labels": [True, True]},
    {"prompt": "And 10 - 3?", "completions": ["It is 7.", "7 + 3 = 11.", "It is 8."], "labels": [True, False, False]},
    {"prompt": "Say hello in French.", "completions": ["Bonjour!"], "labels": [True]},
]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A template that writes a prompt as TRL does: as its plain text."""


def write_model(folder):
    """Write `model`, with weights that depend on no random stream; return the weights of a head for it."""
    import torch

    from tests.tasks.first_losses import write_files

    write_files(folder)
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    return torch.arange(32, dtype=torch.float32).mul(0.9).sin(), 0.3


def compute_with_trl(folder):
    """Return tokens and labels, the loss and the norm of the body's gradient in the first step of TRL's trainer."""
    from datasets import Dataset
    from transformers import AutoModelForTokenClassification, AutoTokenizer
    from trl import PRMConfig, PRMTrainer

    weight, bias = write_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    made = AutoModelForTokenClassification.from_pretrained(folder / "model", num_labels=2, dtype="float32")
    made.score.weight.data[0], made.score.weight.data[1] = 0, weight
    made.score.bias.data[0], made.score.bias.data[1] = 0, bias
    made.score.requires_grad_(False)
    shared = {"output_dir": str(folder / "out"), "use_cpu": True, "bf16": False, "report_to": [], "max_steps": 1}
    shared |= {"per_device_train_batch_size": 8, "learning_rate": 0.0, "logging_steps": 1, "save_strategy": "no"}
    config = PRMConfig(**shared, step_separator=SEPARATOR, max_length=512, gradient_checkpointing=False)
    trainer = PRMTrainer(made, config, train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer)
    trainer.train()
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return {"rows": [dict(row) for row in trainer.train_dataset], "loss": first["loss"], "gradient": first["grad_norm"]}


if __name__ == "__main__":
    import torch
    import transformers
    import trl

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        versions = {one.__name__: one.__version__.partition("+")[0] for one in (trl, transformers, torch)}
        text = json.dumps({"versions": versions, **compute_with_trl(Path(place))})
    GOLDEN.write_text(text + "\n")
    print(text, file=sys.stderr)
