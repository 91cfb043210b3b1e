"""Rolling weight updates: one replica after the other loads new weights, while the others generate with older ones.

A replica that is loading does not decode; its completions continue under the new weights afterwards. At any time at
most one replica is paused, and none is more than one version behind (per-worker synchronisation of DART, Li et al.
2025).
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from learning.generation.replicas.replica import Replica
from learning.generation.weights.protocol import Receipt
from learning.parallel.actors import Lost, Remote


class RollingUpdate:
    """The replicas that still have old weights, and the one that is loading."""

    def __init__(self) -> None:
        self.receipt: Receipt | None = None
        self.behind: deque[Replica] = deque()
        self.at: tuple[Replica, Remote, Future] | None = None

    @property
    def over(self) -> bool:
        """Return whether every replica has the weights."""
        return self.at is None and not self.behind

    @property
    def loading(self) -> Replica | None:
        """Return the replica that is loading."""
        return self.at[0] if self.at is not None else None

    def begin(self, replicas: Sequence[Replica], receipt: Receipt) -> None:
        """Start an update with the first replica; the update before must be over."""
        self.receipt, self.behind = receipt, deque(replicas)
        self._tell()

    def go_on(self, wait: bool = False) -> tuple[Replica, Lost] | None:
        """Start the next replica if the last has loaded (`wait`: wait for it); return one that died, with its error.

        Raise StepError if weights could not be loaded.
        """
        if self.at is None or not (wait or self.at[2].done()):
            return None
        replica, remote, answer = self.at
        self.at = None
        try:
            answer.result()
        except Lost as error:
            # Another call may have reported the death before, and the replica been restarted.
            return (replica, error) if replica.remote is remote else None
        finally:
            self._tell()
        return None

    def leave_out(self, replica: Replica) -> None:
        """Skip a replica that was restarted with the latest weights."""
        self.behind = deque(other for other in self.behind if other is not replica)

    def _tell(self) -> None:
        if self.behind:
            replica = self.behind.popleft()
            self.at = replica, replica.remote, replica.remote.call("load", self.receipt)
