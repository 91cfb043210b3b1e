"""Sample episodes that several roles share: the turn order names the next speaker, whose policy or script answers.

Every role has a context of its own, which grows by what it is shown and what it says, and becomes one sample. Each turn
is a request with a random stream of its own, so that an episode does not depend on which others run at the same time.
All episodes advance together: a call of an engine has the next turns of one role in all of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from learning.data.chat import decode, encode_prompt, encode_reply, find_turn_end, find_turn_ends, read_reply
from learning.data.rows import Row
from learning.lookup import Bound
from learning.models.policy import Policy
from learning.samples.conversation import NextTurn, RoleSample, RoleTurn
from learning.samples.engine_protocol import EngineProtocol, Generation, Request, Turn, hash_name
from learning.samples.sample import Messages, Sample, SampleRequest, last_turn
from learning.sampling.sampler import Sampler, stream
from schemas.errors import StepError
from schemas.roles import RoleSpec

PLACES = re.compile(r"\{(question|message)\}")


@dataclass(frozen=True)
class Speaker:
    """Who plays a role: a policy with its engine, or a script."""

    role: str
    spec: RoleSpec
    policy: Policy | None = None
    engine: EngineProtocol | None = None
    """Samples the role's turns; if the role has an environment, it answers in between."""
    script: Bound | None = None


@dataclass
class Seat:
    """What one role has seen and said in an episode."""

    prompt_ids: list[int]
    context: list[int]
    """What the next turn continues."""
    ids: list[int] = field(default_factory=list)
    """Everything after the prompt, in the order of the episode."""
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)
    text: str = ""
    """What it said last."""
    state: int = 0
    """Hash of what it was shown last."""
    attempt: bool = False
    """Whether it is one of several attempts, which are a group in every episode."""

    def observe(self, ids: list[int], *, rebuilt: bool) -> None:
        """Add tokens that it is shown, after its last turn; `rebuilt`: they replace its context."""
        self.turns[-1] = replace(self.turns[-1], observed=len(ids), rebuilt=rebuilt)
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.entropies += [0.0] * len(ids)
        self.kept += [""] * len(ids)
        self.context = list(ids) if rebuilt else self.context + ids

    def take(self, generation: Generation, place: int) -> None:
        """Add a turn at a place: the tokens of the policy, and what its own environment answered in between."""
        ids = generation.token_ids
        left = len(ids) - sum(turn.sampled + turn.observed for turn in generation.turns)
        open_turn = [Turn(left)] if left or not generation.turns else []
        turns = [*generation.turns, *open_turn]
        turns[0] = replace(turns[0], state=self.state)
        self.turns += turns
        self.moments += [place] * len(turns)
        self.places.append(place)
        self.ids += ids
        self.context = self.context + list(ids)
        self.logprobs += generation.logprobs
        self.entropies += generation.entropies or [0.0] * len(ids)
        self.kept += generation.kept or [""] * len(ids)

    def earn(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)


@dataclass
class Conversation:
    """One running episode."""

    request: int
    """Index of its request."""
    row: Row
    seed: int
    number: int
    """Its number among the episodes of its request."""
    turns: list[RoleTurn] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    """What every role has seen and said, in its present attempt if it makes several."""
    ended: list[tuple[str, Seat]] = field(default_factory=list)
    """Earlier attempts of roles, oldest first."""
    truncated: bool = False
    speaker: str = ""
    """The role that speaks now."""

    def count_turns(self, role: str) -> int:
        """Return how often a role has spoken."""
        return sum(turn.role == role for turn in self.turns)

    def list_seats(self, role: str) -> list[Seat]:
        """Return the attempts of a role in which it has spoken: one, unless the turn order begins another."""
        seats = [seat for name, seat in self.ended if name == role]
        seats += [self.seats[role]] if role in self.seats else []
        return [seat for seat in seats if seat.turns]


@dataclass
class ConversationSampler(Sampler):
    """A sampler whose requests become episodes of all roles, one sample for each attempt of a role with a policy."""

    turn_order: Bound | None = None
    max_turns: int = 16
    speakers: Mapping[str, Speaker] = field(default_factory=dict)
    conversations: int = 0
    """Episodes sampled so far."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Return the samples of every request, in order: of each episode those of its roles."""
        running: list[Conversation] = []
        for index, request in enumerate(requests):
            _refuse_changes(request)
            self._count += 1
            seed = stream(self.seed, self.step, self._count - 1)
            running += [Conversation(index, request.row, seed, number) for number in range(request.n)]
        return [sample for samples in self.play(running) for sample in samples]

    def play(self, conversations: Sequence[Conversation]) -> list[list[RoleSample]]:
        """Play episodes to their ends; return the samples of the roles of each."""
        running = list(conversations)
        while running := [one for one in running if self._find_speaker(one)]:
            for speaker in self.speakers.values():
                self._speak(speaker, [one for one in running if one.speaker == speaker.role])
        groups: dict[tuple[int, str], int] = {}
        return [list(self._build_samples(one, groups)) for one in conversations]

    def _find_speaker(self, one: Conversation) -> bool:
        """Set the role that speaks next and add what it is shown; return whether the episode goes on."""
        while True:
            following = self._ask_order(one)
            for role, reward in following.rewards.items():
                self._find(role)
                if role in one.seats:
                    one.seats[role].earn(float(reward))
            if following.role is None:
                return False
            speaker = self._find(following.role)
            if len(one.turns) >= self.max_turns:
                one.truncated = True
                return False
            if speaker.script is None:
                one.speaker = following.role
                return self._show(one, speaker, following)
            one.turns.append(RoleTurn(speaker.role, self._run_script(one, speaker, following)))

    def _find(self, role: str) -> Speaker:
        if role not in self.speakers:
            name = self.turn_order.name if self.turn_order is not None else ""
            raise StepError(f"turn_order {name}: no role is called {role}; roles: {', '.join(self.speakers)}")
        return self.speakers[role]

    def _supplies(self, one: Conversation) -> dict[str, Any]:
        """Return what a turn order and scripts may ask for; the random stream is that of the episode and its turn."""
        own = stream(one.seed, one.number)
        return {
            "roles": list(self.speakers),
            "turns": list(one.turns),
            "row": one.row,
            "seed": own,
            "round": len(one.turns),
        }

    def _ask_order(self, one: Conversation) -> NextTurn:
        assert self.turn_order is not None
        following = self.turn_order.ask(self.step, self._supplies(one))
        if not isinstance(following, NextTurn):
            raise StepError(
                f"turn_order {self.turn_order.name}: returned {type(following).__name__}; return a NextTurn"
            )
        return following

    def _run_script(self, one: Conversation, speaker: Speaker, following: NextTurn) -> str:
        assert speaker.script is not None
        said = speaker.script.ask(self.step, self._supplies(one) | {"role": speaker.role, "message": following.message})
        if not isinstance(said, str):
            raise StepError(f"roles.{speaker.role}.script: returned {type(said).__name__}; return a text")
        return said

    def _show(self, one: Conversation, speaker: Speaker, following: NextTurn) -> bool:
        """Add what a role is shown to its context; return whether its turn fits, else the episode is truncated."""
        assert speaker.policy is not None
        tokenizer, role, seat = speaker.policy.tokenizer, speaker.role, one.seats.get(speaker.role)
        messages = following.messages
        if messages is None and (seat is None or following.begins != "turn"):
            messages = open_messages(one.row, speaker.spec, following.message)
        if messages is None:
            assert seat is not None
            closed = seat.context[-1] in find_turn_ends(tokenizer)
            ids = [find_turn_end(tokenizer)] * (not closed) + encode_reply(tokenizer, following.message)
            fits, shown = self._fits(speaker, [*seat.context, *ids]), following.message
        else:
            ids = encode_prompt(tokenizer, messages, one.row)
            fits, shown = self._fits(speaker, ids), str(messages[-1].get("content") or "")
        one.truncated |= not fits
        if not fits:
            return False
        if seat is None or following.begins == "sample":
            one.ended += [(role, seat)] if seat is not None else []
            one.seats[role] = seat = Seat(ids, list(ids), attempt=following.begins == "sample")
        else:
            seat.observe(ids, rebuilt=messages is not None)
        seat.state = hash_name(shown)
        return True

    def _fits(self, speaker: Speaker, ids: Sequence[int]) -> bool:
        assert speaker.policy is not None
        return len(ids) + self._limit(speaker) <= speaker.policy.max_length

    def _limit(self, speaker: Speaker) -> int:
        own = speaker.spec.max_completion_length
        return self.sampling.max_new_tokens if own is None else own

    def _speak(self, speaker: Speaker, waiting: Sequence[Conversation]) -> None:
        """Sample the next turn of a role in all episodes where it speaks."""
        if not waiting:
            return
        assert speaker.engine is not None
        assert speaker.policy is not None
        processor = self.sampling.processor if speaker.spec.trainable else None
        sampling = replace(self.sampling, max_new_tokens=self._limit(speaker), processor=processor)
        together = list(_join_equal(waiting, speaker.role))
        requests = [self._make_request(speaker, same) for same in together]
        made = speaker.engine.generate(requests, sampling)
        for same, generations in zip(together, made, strict=True):
            for one, generation in zip(same, generations, strict=True):
                self.sampled += generation.sampled
                seat = one.seats[speaker.role]
                seat.take(generation, len(one.turns))
                said = generation.token_ids[last_turn(0, generation.turns) :]
                seat.text = decode(speaker.policy.tokenizer, said)
                observed = tuple(_read_observed(speaker.policy, generation))
                one.turns.append(RoleTurn(speaker.role, seat.text, generation.finish != "stop", observed))

    def _make_request(self, speaker: Speaker, same: Sequence[Conversation]) -> Request:
        first = same[0]
        seat = first.seats[speaker.role]
        place = list(self.speakers).index(speaker.role)
        return Request(
            list(seat.context),
            len(same),
            stream(first.seed, place, first.count_turns(speaker.role)),
            first=first.number,
            temperature=speaker.spec.temperature,
            row=first.row if speaker.spec.env is not None else None,
        )

    def _build_samples(self, one: Conversation, groups: dict[tuple[int, str], int]) -> Iterator[RoleSample]:
        """Yield the samples of every role with a policy; those of a role and a request are a group.

        Attempts of a role are a group in every episode.
        """
        self.conversations += 1
        for role, speaker in self.speakers.items():
            if (one.request, role) not in groups:
                groups[one.request, role] = self.new_group()
            seats = one.list_seats(role)
            group = self.new_group() if any(seat.attempt for seat in seats) else groups[one.request, role]
            for seat in seats:
                yield self._build_sample(one, speaker, seat, group)

    def _build_sample(self, one: Conversation, speaker: Speaker, seat: Seat, group: int) -> RoleSample:
        cut = one.truncated or any(one.turns[place].truncated for place in seat.places)
        return RoleSample(
            one.row,
            group,
            "policy",
            seat.prompt_ids,
            seat.ids,
            seat.logprobs,
            "length" if cut else "stop",
            seat.text,
            entropies=seat.entropies if self.sampling.entropy else [],
            versions=[self.step] * len(seat.ids),
            turns=seat.turns,
            kept=seat.kept if self.sampling.kept_tokens else [],
            role=speaker.role,
            policy=speaker.spec.policy,
            conversation=self.conversations - 1,
            request=one.request,
            trainable=speaker.spec.trainable,
            places=seat.places,
            moments=seat.moments,
        )


def open_messages(row: Row, spec: RoleSpec, message: str) -> Messages:
    """Return the first messages that a role sees: those of the problem, the last one in the form of the role."""
    *before, last = row["prompt"]
    values = {"question": str(last.get("content") or ""), "message": message}
    text = PLACES.sub(lambda place: values[place[1]], spec.prompt).strip("\n")
    if spec.system is not None:
        before = [{"role": "system", "content": spec.system}, *(m for m in before if m["role"] != "system")]
    return [*before, {**last, "content": text}]


def _read_observed(policy: Policy, generation: Generation) -> Iterator[str]:
    """Yield what the role's own environment answered in a turn."""
    at = 0
    for turn in generation.turns:
        at += turn.sampled + turn.observed
        if turn.observed:
            yield read_reply(policy.tokenizer, generation.token_ids[at - turn.observed : at])


def _refuse_changes(request: SampleRequest) -> None:
    """Raise StepError for a request that is more than a number of episodes of a problem."""
    changed = {
        "prompt": request.prompt,
        "context": request.context,
        "begin": request.begin or None,
        "temperature": request.temperature,
        "group": request.group,
    }
    if given := [name for name, value in changed.items() if value is not None]:
        raise StepError(
            f"roles: the prompt sampler sets `{given[0]}` of a request, which has no meaning for several roles; use "
            "one that only chooses problems, such as `uniform`"
        )


def _join_equal(waiting: Sequence[Conversation], role: str) -> Iterator[list[Conversation]]:
    """Yield runs of episodes with consecutive numbers whose next request is the same, so that it is computed once."""
    run: list[Conversation] = []
    for one in waiting:
        if run:
            last, seat, before = run[-1], one.seats[role], run[-1].seats[role]
            same = (one.request, one.number) == (last.request, last.number + 1)
            if not (same and one.count_turns(role) == last.count_turns(role) and seat.context == before.context):
                yield run
                run = []
        run.append(one)
    if run:
        yield run
