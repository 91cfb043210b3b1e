"""Environment `travel`: trains and hotels of a tour are looked up and booked (`learning.toy_tasks.tours`)."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.tours import Tour, act, read_tour


class Environment:
    """Book the tour of the problems `tours`, train after train and hotel after hotel, within its budget.

    The episode ends with reward 1 when the tour is booked. Nothing in it is random.
    """

    def __init__(self, *, penalty: Annotated[float, Field(ge=0)] = 0.0) -> None:
        """Set what an action costs that is not possible: its reward is −`penalty`, and nothing changes."""
        self.penalty = penalty

    def begin(self, row: Row, seed: int) -> "Booking":
        """Return an episode. Raise StepError for a row without a tour, or with one that no bookings complete."""
        return Booking(read_tour(row), self.penalty)


class Booking:
    """One episode: what is booked."""

    def __init__(self, tour: Tour, penalty: float) -> None:
        self.tour, self.penalty = tour, penalty
        self.booked: tuple[str, ...] = ()

    @property
    def state_name(self) -> str:
        """Return what is booked."""
        return " ".join(self.booked)

    def step(self, action: str) -> Outcome:
        """Carry out an action."""
        self.booked, answer, ok = act(self.tour, self.booked, action)
        if not ok:
            return Outcome(answer, reward=-self.penalty if self.penalty else 0.0, ok=False)
        if len(self.booked) == 2 * self.tour.legs:
            return Outcome(done=True, reward=1.0)
        return Outcome(answer)

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"booked": list(self.booked)}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.booked = tuple(str(name) for name in saved["booked"])
