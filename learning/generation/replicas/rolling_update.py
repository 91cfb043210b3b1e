"""New weights for one replica after the other, while all others go on generating under those that they have.

A replica that is loading decodes nothing; what it runs goes on under the new weights afterwards. So at any time at most
one of them stands still, and none is more than one version behind (per-worker synchronisation of DART, Li et al. 2025).
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from learning.generation.replicas.replica import Replica
from learning.generation.weights.protocol import Receipt
from learning.parallel.actors import Lost, Remote


class RollingUpdate:
    """Who has not been told yet, and who is loading."""

    def __init__(self) -> None:
        self.receipt: Receipt | None = None
        self.behind: deque[Replica] = deque()
        self.at: tuple[Replica, Remote, Future] | None = None

    @property
    def over(self) -> bool:
        """Whether every replica has the weights."""
        return self.at is None and not self.behind

    @property
    def loading(self) -> Replica | None:
        """The one that decodes nothing now."""
        return self.at[0] if self.at is not None else None

    def begin(self, replicas: Sequence[Replica], receipt: Receipt) -> None:
        """Tell the first one; the round before must be over."""
        self.receipt, self.behind = receipt, deque(replicas)
        self._tell()

    def go_on(self, wait: bool = False) -> tuple[Replica, Lost] | None:
        """Tell the next one if the last has its weights (`wait`: as soon as); one that died of it, if any did.

        Raises StepError for weights that did not arrive.
        """
        if self.at is None or not (wait or self.at[2].done()):
            return None
        replica, remote, answer = self.at
        self.at = None
        try:
            answer.result()
        except Lost as error:
            # Another call may have told of the death before, and the replica been made anew.
            return (replica, error) if replica.remote is remote else None
        finally:
            self._tell()
        return None

    def leave_out(self, replica: Replica) -> None:
        """It was made anew with the latest weights."""
        self.behind = deque(one for one in self.behind if one is not replica)

    def _tell(self) -> None:
        if self.behind:
            replica = self.behind.popleft()
            self.at = replica, replica.remote, replica.remote.call("load", self.receipt)
