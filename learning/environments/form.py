"""A small graphical interface whose screen is text: a form to fill in, click by click (`learning.toy_tasks.forms`)."""

from typing import Any

from learning.environments.protocol import Outcome
from learning.toy_tasks.forms import Form

ODD = "?"
"""First line of the screen after a turn that could not be carried out."""


class Environment:
    """Shows the screen after every turn. A form that is saved as it was asked for earns 1, and saving ends it."""

    def begin(self, row: dict[str, Any], seed: int) -> "Filling":
        """A form; nothing in it is random."""
        return Filling(Form(row))


class Filling:
    """A form under way."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def step(self, action: str) -> Outcome:
        """Click on an element."""
        ok = self.form.act(action)
        if self.form.saved:
            return Outcome(done=True, reward=float(self.form.filled), ok=ok)
        screen = self.form.screen()
        return Outcome(screen if ok else f"{ODD}\n{screen}", ok=ok)
