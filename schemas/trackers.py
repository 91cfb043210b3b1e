"""`track:` of a recipe: the experiment trackers that record the curves of its runs."""

from typing import Literal

Tracker = Literal["mlflow", "tensorboard", "trackio", "wandb"]
"""An experiment tracker. All of them write to the state folder; nothing is sent."""
