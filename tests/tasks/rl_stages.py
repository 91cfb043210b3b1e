"""A small rl stage and its prompts, for tests."""

from learning.data.rows import write_rows
from schemas.stages.rl import Rl

PROMPTS = ["ab", "abc", "b", "cab", "ba"]
SETTINGS = {
    "kind": "rl",
    "model": "m",
    "prompts": "p",
    "generation_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 6,
    "save_steps": 2,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "advantage": ["center", "scale"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "token_mean",
}


def make_rl_stage(**settings):
    """Return an rl stage of six iterations with four samples of four prompts each."""
    return Rl.model_validate(SETTINGS | settings)


def write_prompts(folder):
    """Write a table of five prompts of letters to a new folder and return the folder."""
    folder.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    write_rows(folder, "prompts", [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in PROMPTS])
    return folder
