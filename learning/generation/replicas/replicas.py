"""Many engines as one: requests go to the replica that has least to do, and come back whichever of them dies.

A replica is a `learning.generation.services.rollout_service.Service` behind a `Remote`. It is given at most `in_flight`
completions at a time, the rest waits here, so that no replica is flooded and a slow one takes less. Siblings of one
prompt stay together, so that their prompt is computed once. Random streams belong to requests
(`learning.samples.engine_protocol`): which replica samples a completion, and how often it was begun, changes nothing
in it.
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
"""Completions that a replica is given at a time: twice the slots of an engine, so that an empty one is refilled."""
WAIT = 0.05
"""Seconds that a replica waits for a completion before it listens again."""
TRIES = 3
"""How often in a row a replica may die before it has given anything."""


class Replicas:
    """An engine over services in other processes; `publisher` makes the trainer's end of the weight sync.

    `generate` is for whole batches; `submit` and `collect` for completions as they end. One thread uses it.
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
        """Completions that can be under way at once."""
        return self.in_flight * len(self.replicas)

    @property
    def settled(self) -> bool:
        """Whether the latest weights have reached every replica, as far as was heard."""
        return self.roll.over

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """For each request its `n` generations. Raises StepError; nothing is under way afterwards."""
        if self.waiting or any(r.open for r in self.replicas):
            raise StepError("replicas: completions that were submitted are under way; collect them first")
        self._settle()
        try:
            return self._generate(requests, sampling)
        except BaseException:
            self.abort()
            raise

    def _generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        found: list[dict[int, Generation]] = [{} for _ in requests]
        limits = [_compute_limit(request, sampling) for request in requests]
        wanted, ended = sum(request.n for request in requests), 0
        for limit in dict.fromkeys(limits):
            some = [(i, r) for i, r in enumerate(requests) if limits[i] == limit and r.n]
            self.submit(some, replace(sampling, max_new_tokens=limit, window=None, target=None))
        target = wanted if sampling.target is None else sampling.target
        while ended < target and (made := self.collect(WAIT, until_some=True)):
            for ticket, one in made:
                whole = one.finish == "stop" or limits[ticket] == sampling.max_new_tokens
                found[ticket][one.sample] = one if whole else replace(one, finish="suspended")
                ended += whole
        for ticket, one in self.suspend():
            found[ticket][one.sample] = one
        return [[of[k] for k in sorted(of)] for of in found]

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets of the caller; they begin as replicas have room for them."""
        total = sum(request.n for _, request in requests)
        share = max(1, min(self.in_flight, -(-total // len(self.replicas))))
        for ticket, request in requests:
            for start in range(0, request.n, share):
                some = replace(request, first=request.first + start, n=min(share, request.n - start), row=None)
                self.waiting.append(Piece(ticket, some, sampling))
        self._dispatch()

    def collect(self, wait_s: float = 0.0, *, until_some: bool = False) -> list[Ended]:
        """Completions that have ended, with their tickets; waits up to `wait_s` seconds for the first one.

        `until_some`: wait for as long as anything is under way. Raises StepError when a replica says that something
        is wrong, or dies again and again.
        """
        while True:
            self._go_on()
            self._dispatch()
            asked = {r.asked: r for r in self.replicas if r.asked is not None}
            futures = [*asked, *((self.roll.at[2],) if self.roll.at else ())]
            done, _ = wait(futures, timeout=None if until_some else wait_s, return_when=FIRST_COMPLETED)
            made = [one for future in done if future in asked for one in self._heard(asked[future])]
            if made or not until_some or not futures:
                self._dispatch()
                return made

    def suspend(self) -> list[Ended]:
        """Take everything out, also what waits, as suspended completions; what ended in between comes along."""
        made = [one for piece in self.waiting for one in piece.suspended()]
        self.waiting.clear()
        for replica in self.replicas:
            if replica.asked is not None:
                made += self._heard(replica)
        busy = [(r, r.remote.call("suspend"), r.remote.call("collect")) for r in self.replicas if r.open]
        for replica, *answers in busy:
            try:
                made += [one for answer in answers for one in self._taken(replica, answer.result())]
            except Lost as error:
                self._revive(replica, error)
        left = [piece for replica in self.replicas for piece in replica.drop()] + list(self.waiting)
        self.waiting.clear()
        return made + [one for piece in left for one in piece.suspended()]

    def abort(self) -> None:
        """Forget everything under way: what comes back later is nobody's."""
        self.waiting.clear()
        for replica in self.replicas:
            if replica.drop():
                replica.remote.call("suspend")
            replica.sent, replica.asked = [], None

    def sync(self, version: int, *, each: bool = False) -> None:
        """Give every replica the policy's weights as they are now; returns when all have them. Raises StepError.

        `each`: one after the other, while the others go on; returns at once, and `collect` sees to the rest. The
        weights before are waited for, so that no replica is more than one version behind.
        """
        if self.publisher is None:
            raise StepError("replicas: the weights of these do not change")
        self._settle()
        self.weights = self.weights or self.publisher()
        self.receipt, self.version = self.weights.publish(version), version
        if each and self.receipt.kind != "collective":  # a collective goes to all of its members at once
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
        """What every replica tells of itself; of one that is loading, what it told last, if anything."""
        able = [replica for replica in self.replicas if replica is not self.roll.loading]
        for replica, answer in [(replica, replica.remote.call("stats")) for replica in able]:
            replica.told = answer.result()
        return [replica.told for replica in self.replicas if replica.told]

    def close(self) -> None:
        """End the replicas; what is under way is lost."""
        for replica in self.replicas:
            replica.remote.stop()

    def _go_on(self, wait: bool = False) -> None:
        """See to it that the next replica is told of new weights."""
        if (died := self.roll.go_on(wait)) is not None:
            self._revive(*died)

    def _settle(self) -> None:
        """Return when every replica has the latest weights."""
        while not self.roll.over:
            self._go_on(wait=True)

    def _dispatch(self) -> None:
        """Give what waits to replicas that have room, and ask those that work for what has ended."""
        given: dict[int, list[int]] = {}
        while self.waiting and (chosen := self._room(self.waiting[0])) is not None:
            self._pieces += 1
            self.replicas[chosen].take(self._pieces, self.waiting.popleft())
            given.setdefault(chosen, []).append(self._pieces)
        for chosen, names in given.items():
            self._send(self.replicas[chosen], names)
        for replica in self.replicas:
            if replica.open and replica.asked is None:
                replica.asked = replica.remote.call("collect", WAIT)

    def _room(self, piece: Piece) -> int | None:
        """The replica that owes least and has room; rather one that has the prompt, unless it owes a piece more."""
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

    def _heard(self, replica: Replica) -> list[Ended]:
        """What a replica answered; one that has died is made anew, and what it owed is queued again, first of all."""
        assert replica.asked is not None
        answer, replica.asked = replica.asked, None
        try:
            made = answer.result()
            sent, replica.sent = replica.sent, []
            for said in sent:
                if said.done():
                    said.result()
                else:
                    replica.sent.append(said)
        except Lost as error:
            self._revive(replica, error)
            return []
        return self._taken(replica, made)

    def _taken(self, replica: Replica, made: list[Ended]) -> list[Ended]:
        """Completions under the caller's tickets."""
        found = []
        for name, one in made:
            piece = replica.open.get(name)
            if replica.gave(name, one.sample):
                found.append((piece.ticket, one))
        replica.deaths = 0 if made else replica.deaths
        return found

    def _revive(self, replica: Replica, error: Lost) -> None:
        replica.deaths += 1
        if replica.deaths >= TRIES:
            raise StepError(f"{error}; that was {TRIES} times in a row without a completion") from error
        owed = [some for piece in replica.drop() for some in piece.again()]
        replica.sent, replica.asked = [], None
        replica.remote = self.actors.restart(replica.remote)
        self.roll.leave_out(replica)
        if self.receipt is not None:
            replica.sent.append(replica.remote.call("load", self.receipt))
        self.waiting.extendleft(reversed(owed))


def _compute_limit(request: Request, sampling: Sampling) -> int:
    """Tokens at which a completion of this call ends or is suspended."""
    if sampling.window is None:
        return sampling.max_new_tokens
    return min(sampling.max_new_tokens, len(request.begun) + sampling.window)
