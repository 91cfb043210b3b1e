"""Environment `site`: search a site and have its pages read by a reading agent, over real HTTP."""

from typing import Annotated
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row
from learning.environments.local_server import LocalServer
from learning.environments.page_client import PageClient, PageError, cut_segments
from learning.environments.protocol import Outcome
from learning.generation.services.frozen_replies import sample_replies
from learning.lookup import Bound, TeacherFunction
from learning.samples.engine_protocol import Sampling
from learning.tools.mcp_servers import OWN_HOSTS
from schemas.errors import StepError
from schemas.references import AnyRef, PolicyRef

ASK = "Question: {question}\n\nKnown so far:\n{memory}\n\nPage:\n{segment}"
MORE = "more"
"""A line of the reading agent that asks for the next segment."""
NOTHING = "nothing about that"
LONGEST_CALL = 1000
"""Characters of a turn that are read."""


class Environment:
    """Research in the pages of a site: `search: words` lists pages, `read: ADDRESS question` has one read.

    A reading agent goes through the page, segment by segment, with what it has noted so far, until it asks for no more;
    only its notes are shown. Any other turn is the answer and ends the episode. Every address is asked for once in a
    step. (DeepResearcher, Zheng et al. 2025.)
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        command: list[str] = [],  # noqa: B006 (never changed; a recipe needs the default to be readable)
        folder: AnyRef | None = None,
        hosts: list[str] = [],  # noqa: B006
        reader: TeacherFunction | None = None,
        model: PolicyRef | None = None,
        ask: str = ASK,
        segment: Annotated[int, Field(ge=20)] = 4000,
        top: Annotated[int, Field(ge=1)] = 5,
        longest: Annotated[int, Field(ge=1)] = 2000,
        max_completion_length: Annotated[int, Field(ge=1)] = 256,
        timeout: Annotated[float, Field(gt=0)] = 10.0,
        max_retries: Annotated[int, Field(ge=0, le=100)] = 5,
        backoff: Annotated[float, Field(ge=0)] = 1.0,
    ) -> None:
        """Set the site: `url` on this machine or on one of `hosts`, or the `command` that starts it in `folder`.

        `{port}` in `command` is a free port of 127.0.0.1. The site answers `search?q=words&top=5` with JSON,
        `{"results": [{"url": …, "title": …}]}`, and its pages are HTML; pages of other `hosts` may be read, too. The
        reading agent is a function (`reader`), or the policy `model`; it gets the text `ask` and replies with notes,
        and a line `more` for the next segment of at most `segment` characters. Lost connections and the statuses 408,
        409, 425, 429 and 5xx are tried again, `max_retries` times, after `backoff` seconds that double each time; then
        the agent sees an error message. The first `longest` characters of a result are shown.
        """
        if bool(command) == bool(url):
            raise StepError("env site: give either `command` (a program) or `url` (a running server)")
        if url and (host := urlsplit(url).hostname) not in (*OWN_HOSTS, *hosts):
            raise StepError(f"env site: {url} is not on this machine; name {host} in `hosts` to allow it")
        if (reader is None) == (model is None):
            raise StepError("env site: give either `reader` (a function) or `model` (a policy), which reads pages")
        self.server = LocalServer("env site", command, folder) if command else None
        url = url or f"http://127.0.0.1:{self.server.port if self.server else 0}"
        self.client = PageClient(url, hosts, timeout=timeout, max_retries=max_retries, backoff=backoff)
        self.reader: Bound | None = reader  # pyright: ignore[reportAttributeAccessIssue] — bound like all options
        self.model, self.ask, self.segment, self.top, self.longest = model, ask, segment, top, longest
        self.sampling = Sampling(0.0, max_completion_length)

    def begin(self, row: Row, seed: int) -> "Research":
        """Return an episode of a question."""
        return Research(self, row, seed)

    def extract(self, row: Row, question: str, text: str, rng: np.random.Generator) -> str:
        """Return the notes of the reading agent on a page. Raise PageError if it has none."""
        notes: list[str] = []
        for segment in cut_segments(text, self.segment):
            memory = "\n".join(notes)
            shown = make_question(self.ask, row, question=question, memory=memory, segment=segment)
            reply = self._read(row | {"prompt": shown, "answer": None}, rng).splitlines()
            notes += [line.strip() for line in reply if line.strip() not in ("", MORE)]
            if MORE not in (line.strip() for line in reply):
                break
        if not notes:
            raise PageError(NOTHING)
        return "\n".join(notes)

    def _read(self, row: Row, rng: np.random.Generator) -> str:
        if self.reader is not None:
            return str(self.reader.ask(0, {}, row, rng))
        (texts,) = sample_replies(str(self.model), [row["prompt"]], n=1, sampling=self.sampling, seed=0)
        return texts[0] if texts else ""


class Research:
    """One question."""

    def __init__(self, world: Environment, row: Row, seed: int) -> None:
        self.world, self.row, self.seed, self.turns = world, row, seed, 0

    def step(self, action: str) -> Outcome:
        """Search, have a page read, or end with the answer."""
        self.turns += 1
        name, colon, query = action.strip()[:LONGEST_CALL].partition(":")
        query = query.strip()
        if not colon or name not in ("search", "read"):
            return Outcome(done=True)
        try:
            text, ok = self._search(query) if name == "search" else self._have_read(query), True
        except PageError as error:
            text, ok = f"error: {error}", False
        return Outcome(text if len(text) <= self.world.longest else f"{text[: self.world.longest]}...", ok=ok)

    def _search(self, words: str) -> str:
        if not words:
            raise PageError("write search: and what is asked")
        found = self.world.client.search(words, self.world.top)
        if not found:
            raise PageError("no page has one of these words")
        return "\n".join(f"{address} {title}" for address, title in found)

    def _have_read(self, query: str) -> str:
        address, _, question = query.partition(" ")
        if not question.strip():
            raise PageError("write read: and an address and what is asked")
        text = self.world.client.read(address)
        return self.world.extract(self.row, question.strip(), text, np.random.default_rng([self.seed, self.turns]))
