"""Environment `pages`: an encyclopedia that is opened page by page and read sentence by sentence."""

from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.environments.protocol import Outcome
from schemas.errors import StepError

MOST_SIMILAR = 3
"""Titles that are listed in place of a page that there is not."""


class Environment:
    """Read the `pages` of the row's metadata, `{title: [sentence, …]}`, and answer (as ReAct's Wikipedia, 2022).

    `search TITLE` opens a page and shows its first `first` sentences, or titles that contain one of its words. `lookup
    WORD` shows the next sentence of the open page that contains the word. `finish TEXT` ends the episode, with reward 1
    if the text is the row's answer. Letter case does not matter.
    """

    def __init__(self, *, first: Annotated[int, Field(ge=1)] = 1, longest: Annotated[int, Field(ge=16)] = 400) -> None:
        self.first, self.longest = first, longest

    def begin(self, row: Row, seed: int) -> "Reading":
        """Return an episode. Raise StepError for a row without pages."""
        pages: Any = read_metadata(row).get("pages")
        good = isinstance(pages, dict) and all(
            isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
            for texts in pages.values()
        )
        if not pages or not good:
            raise StepError(
                f"env pages: row {row['id']}: its metadata need `pages`, titles with lists of sentences, such as "
                '{"bam": ["bam lies at the zed", "bam trades salt"]}'
            )
        return Reading(self, row, pages)


def _normalise(text: str) -> str:
    """Return a text without its case, further white space and a final full stop."""
    return " ".join(text.split()).casefold().removesuffix(".")


class Reading:
    """An episode: the open page, and where its last look-up stopped."""

    def __init__(self, rules: Environment, row: Row, pages: dict[str, list[str]]) -> None:
        self.rules, self.row = rules, row
        self.pages = {title.casefold(): texts for title, texts in pages.items()}
        self.title, self.word, self.place = "", "", 0

    def step(self, action: str) -> Outcome:
        """Carry out a command."""
        verb, _, rest = " ".join(action.split()).partition(" ")
        if verb.casefold() == "search" and rest:
            return self._search(rest.casefold())
        if verb.casefold() == "lookup" and rest:
            return self._look_up(rest.casefold())
        if verb.casefold() == "finish" and rest:
            return Outcome(done=True, reward=float(_normalise(rest) == _normalise(str(self.row["answer"]))))
        return Outcome("search TITLE, lookup WORD or finish ANSWER", ok=False)

    def _search(self, title: str) -> Outcome:
        if title not in self.pages:
            words = set(title.split())
            similar = [name for name in self.pages if words & set(name.split())][:MOST_SIMILAR]
            return self._show(f"no page {title}. Similar: {', '.join(similar) or 'none'}", ok=False)
        self.title, self.word, self.place = title, "", 0
        return self._show(". ".join(self.pages[title][: self.rules.first]))

    def _look_up(self, word: str) -> Outcome:
        if not self.title:
            return Outcome("search a page first", ok=False)
        if word != self.word:
            self.word, self.place = word, 0
        texts = self.pages[self.title]
        for place in range(self.place, len(texts)):
            if word in texts[place].casefold():
                self.place = place + 1
                return self._show(texts[place])
        return Outcome("no more results", ok=False)

    def _show(self, text: str, *, ok: bool = True) -> Outcome:
        return Outcome(text[: self.rules.longest], ok=ok)

    @property
    def state_name(self) -> str:
        """Return the open page and how far it was read."""
        return f"{self.title}: {self.word} {self.place}"

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"title": self.title, "word": self.word, "place": self.place}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.title, self.word, self.place = saved["title"], saved["word"], saved["place"]
