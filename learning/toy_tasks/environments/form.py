"""Environment `form`: a graphical interface shown as text, a form to fill in by clicks (`learning.toy_tasks.forms`)."""

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.forms import Form

ODD = "?"
"""First line of the screen after an invalid turn."""


class Environment:
    """Show the screen after every turn. Saving ends the episode; a correctly filled form has reward 1."""

    def begin(self, row: Row, seed: int) -> "Filling":
        """Return an episode of a form; nothing in it is random."""
        return Filling(Form(row))


class Filling:
    """A form being filled in."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def step(self, action: str) -> Outcome:
        """Click on an element."""
        ok = self.form.act(action)
        if self.form.saved:
            return Outcome(done=True, reward=float(self.form.filled), ok=ok)
        screen = self.form.screen()
        return Outcome(screen if ok else f"{ODD}\n{screen}", ok=ok)

    def save(self) -> Row:
        """Return the state of the form as JSON."""
        return {"page": self.form.page, "values": self.form.values, "saved": self.form.saved}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.form.page, self.form.values, self.form.saved = saved["page"], dict(saved["values"]), saved["saved"]
