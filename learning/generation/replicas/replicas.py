"""Many engines as one: requests go to the replica with the least load, and are sent again if a replica dies.

A replica is a `learning.generation.services.rollout_service.Service` behind a `Remote`. It receives at most `in_flight`
completions at a time and the rest waits here, so that a slow replica takes less. Completions of one prompt stay
together, so that their prompt is computed once. Random streams belong to requests (`learning.samples.engine_protocol`):
a completion does not depend on the replica that samples it, nor on restarts.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace

from learning.generation.replicas.replica import Ended, Piece, Replica
from learning.generation.replicas.rolling_update import RollingUpdate
from learning.generation.weights.protocol import Receipt, WeightSync
from learning.parallel.actors import Actors, Lost, Remote
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import StepError

IN_FLIGHT = 512
"""Completions that are sent to a replica at a time: twice the slots of an engine, so that empty ones are refilled."""
WAIT = 0.05
"""Seconds that a replica waits for a completion before it handles the next call."""
TRIES = 3
"""Deaths of a replica in a row, without a completion in between, that end the step."""


class Replicas:
    """An engine over services in other processes; `publisher` builds the trainer's end of the weight sync.

    Use `generate` for batches, `submit` and `collect` for completions as they end. It is not thread-safe.
    """

    def __init__(
        self,
        actors: Actors,
        remotes: Sequence[Remote],
        publisher: Callable[[], WeightSync] | None = None,
        *,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.actors, self.publisher, self.in_flight = actors, publisher, in_flight
        self.replicas = [Replica(remote) for remote in remotes]
        self.waiting: deque[Piece] = deque()
        self.weights: WeightSync | None = None
        self.receipt: Receipt | None = None
        self.version = 0
        self.roll = RollingUpdate()
        self._pieces = 0

    @property
    def capacity(self) -> int:
        """Return the maximum number of concurrent completions."""
        return self.in_flight * len(self.replicas)

    @property
    def settled(self) -> bool:
        """Return whether every replica has reported the latest weights."""
        return self.roll.over

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` generations of each request; on an error all running completions are dropped."""
        if self.waiting or any(r.open for r in self.replicas):
            raise StepError("replicas: submitted completions are still running; collect them first")
        self._settle()
        try:
            return self._generate(requests, sampling)
        except BaseException:
            self.abort()
            raise

    def _generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        generations: list[dict[int, Generation]] = [{} for _ in requests]
        limits = [_compute_limit(request, sampling) for request in requests]
        total, ended = sum(request.n for request in requests), 0
        for limit in dict.fromkeys(limits):
            some = [(i, r) for i, r in enumerate(requests) if limits[i] == limit and r.n]
            self.submit(some, replace(sampling, max_new_tokens=limit, window=None, target=None))
        target = total if sampling.target is None else sampling.target
        while ended < target and (collected := self.collect(WAIT, until_some=True)):
            for ticket, generation in collected:
                complete = generation.finish == "stop" or limits[ticket] == sampling.max_new_tokens
                if not complete:
                    generation = replace(generation, finish="suspended")
                generations[ticket][generation.sample] = generation
                ended += complete
        for ticket, generation in self.suspend():
            generations[ticket][generation.sample] = generation
        return [[of_request[k] for k in sorted(of_request)] for of_request in generations]

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under the caller's tickets; they start as replicas have capacity."""
        total = sum(request.n for _, request in requests)
        share = max(1, min(self.in_flight, -(-total // len(self.replicas))))
        for ticket, request in requests:
            for start in range(0, request.n, share):
                some = replace(request, first=request.first + start, n=min(share, request.n - start), row=None)
                self.waiting.append(Piece(ticket, some, sampling))
        self._dispatch()

    def collect(self, wait_s: float = 0.0, *, until_some: bool = False) -> list[Ended]:
        """Return ended completions with their tickets; wait up to `wait_s` seconds for the first one.

        With `until_some` wait as long as any completion is running. Raise StepError if a replica reports an error or
        dies repeatedly.
        """
        while True:
            self._go_on()
            self._dispatch()
            asked = {r.asked: r for r in self.replicas if r.asked is not None}
            futures = [*asked, *((self.roll.at[2],) if self.roll.at else ())]
            done, _ = wait(futures, timeout=None if until_some else wait_s, return_when=FIRST_COMPLETED)
            ended = [completion for future in done if future in asked for completion in self._receive(asked[future])]
            if ended or not until_some or not futures:
                self._dispatch()
                return ended

    def suspend(self) -> list[Ended]:
        """Take out and return all running and waiting completions as suspended, and those that ended in between."""
        completions = [completion for piece in self.waiting for completion in piece.suspended()]
        self.waiting.clear()
        for replica in self.replicas:
            if replica.asked is not None:
                completions += self._receive(replica)
        busy = [(r, r.remote.call("suspend"), r.remote.call("collect")) for r in self.replicas if r.open]
        for replica, *answers in busy:
            try:
                completions += [c for answer in answers for c in self._match_tickets(replica, answer.result())]
            except Lost as error:
                self._revive(replica, error)
        left = [piece for replica in self.replicas for piece in replica.drop()] + list(self.waiting)
        self.waiting.clear()
        return completions + [completion for piece in left for completion in piece.suspended()]

    def abort(self) -> None:
        """Drop all running completions; those returned later are ignored."""
        self.waiting.clear()
        for replica in self.replicas:
            if replica.drop():
                replica.remote.call("suspend")
            replica.sent, replica.asked = [], None

    def sync(self, version: int, *, each: bool = False) -> None:
        """Send the policy's current weights to every replica, and return when all have loaded them.

        With `each` they load one after the other while the others generate: return at once, `collect` continues the
        update. An earlier update is completed first, so that no replica is more than one version behind. Raise
        StepError if weights cannot be loaded.
        """
        if self.publisher is None:
            raise StepError("replicas: these replicas were started without weight sync, so their weights cannot change")
        self._settle()
        self.weights = self.weights or self.publisher()
        self.receipt, self.version = self.weights.publish(version), version
        if each:
            self.weights.wait()
            self.roll.begin(self.replicas, self.receipt)
            return
        answers = [(replica, replica.remote.call("load", self.receipt)) for replica in self.replicas]
        self.weights.wait()
        for replica, answer in answers:
            try:
                answer.result()
            except Lost as error:
                self._revive(replica, error)

    def stats(self) -> list[dict[str, float]]:
        """Return the statistics of every replica; of one that is loading the last known ones, if any."""
        able = [replica for replica in self.replicas if replica is not self.roll.loading]
        for replica, answer in [(replica, replica.remote.call("stats")) for replica in able]:
            replica.last_stats = answer.result()
        return [replica.last_stats for replica in self.replicas if replica.last_stats]

    def close(self) -> None:
        """End the replicas; running completions are lost."""
        for replica in self.replicas:
            replica.remote.stop()

    def _go_on(self, wait: bool = False) -> None:
        """Continue a rolling update; restart a replica that died in it."""
        if (died := self.roll.go_on(wait)) is not None:
            self._revive(*died)

    def _settle(self) -> None:
        """Wait until every replica has the latest weights."""
        while not self.roll.over:
            self._go_on(wait=True)

    def _dispatch(self) -> None:
        """Send waiting pieces to replicas with capacity, and request ended completions from busy replicas."""
        assigned: dict[int, list[int]] = {}
        while self.waiting and (chosen := self._choose_replica(self.waiting[0])) is not None:
            self._pieces += 1
            self.replicas[chosen].take(self._pieces, self.waiting.popleft())
            assigned.setdefault(chosen, []).append(self._pieces)
        for chosen, names in assigned.items():
            self._send(self.replicas[chosen], names)
        for replica in self.replicas:
            if replica.open and replica.asked is None:
                replica.asked = replica.remote.call("collect", WAIT)

    def _choose_replica(self, piece: Piece) -> int | None:
        """Return the replica of the least load with capacity, preferring one with the same prompt; None without one."""
        size = len(piece.left)
        able = [(i, r) for i, r in enumerate(self.replicas) if r is not self.roll.loading]
        free = [i for i, r in able if r.load + size <= self.in_flight or not r.load]
        if not free:
            return None
        least = min(self.replicas[i].load for i in free)
        near = [i for i in free if self.replicas[i].load <= least + size and piece.prompt in self.replicas[i].prompts]
        return min(near or free, key=lambda i: (self.replicas[i].load, i))

    def _send(self, replica: Replica, names: list[int]) -> None:
        while names:
            sampling = replica.open[names[0]].sampling
            same = [name for name in names if replica.open[name].sampling == sampling]
            names = [name for name in names if name not in same]
            requests = [(name, replica.open[name].request) for name in same]
            replica.sent.append(replica.remote.call("submit", requests, sampling))

    def _receive(self, replica: Replica) -> list[Ended]:
        """Return the completions of a replica's answer; if it died, restart it and queue its open work first."""
        assert replica.asked is not None
        answer, replica.asked = replica.asked, None
        try:
            completions = answer.result()
            sent, replica.sent = replica.sent, []
            for acknowledgement in sent:
                if acknowledgement.done():
                    acknowledgement.result()
                else:
                    replica.sent.append(acknowledgement)
        except Lost as error:
            self._revive(replica, error)
            return []
        return self._match_tickets(replica, completions)

    def _match_tickets(self, replica: Replica, completions: list[Ended]) -> list[Ended]:
        """Return a replica's completions under the caller's tickets, without those that were not expected."""
        matched = []
        for name, generation in completions:
            piece = replica.open.get(name)
            if piece is not None and replica.gave(name, generation.sample):
                matched.append((piece.ticket, generation))
        replica.deaths = 0 if completions else replica.deaths
        return matched

    def _revive(self, replica: Replica, error: Lost) -> None:
        replica.deaths += 1
        if replica.deaths >= TRIES:
            raise StepError(f"{error}; it died {TRIES} times in a row without a completion") from error
        pieces = [part for piece in replica.drop() for part in piece.again()]
        replica.sent, replica.asked = [], None
        replica.remote = self.actors.restart(replica.remote)
        self.roll.leave_out(replica)
        if self.receipt is not None:
            replica.sent.append(replica.remote.call("load", self.receipt))
        self.waiting.extendleft(reversed(pieces))


def _compute_limit(request: Request, sampling: Sampling) -> int:
    """Return the number of tokens at which a completion of this call ends or is suspended."""
    if sampling.window is None:
        return sampling.max_new_tokens
    return min(sampling.max_new_tokens, len(request.begun) + sampling.window)
