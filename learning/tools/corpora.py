"""A corpus that a model searches and reads: documents of a stage of kind data, ranked by BM25 (the library bm25s)."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from learning.data.rows import Row, read_rows
from learning.tools.calls import LONGEST_ECHO, AtLeast1
from learning.tools.retrieval import Index
from schemas.references import ChatRef

PAGE = re.compile(r"(.*\S)\s+page\s+([1-9]\d{0,5})", re.DOTALL)


@dataclass(frozen=True)
class Corpus:
    """Documents by their ids, and an index of their words."""

    texts: dict[str, str]
    index: Index

    def rank(self, query: str, top: int) -> list[str]:
        """Return the ids of up to `top` documents with a word of the query, the best first, equal ones in order."""
        ids = list(self.texts)
        return [ids[place] for place in self.index.rank(query, top)]


def search_corpus(query: str, *, corpus: ChatRef, top: AtLeast1 = 3, shown: AtLeast1 = 80) -> str:
    """Return the `top` documents that suit the words of a query best: a line with the id and the first characters.

    `corpus` is a stage of kind data, of any files or data set; up to `shown` characters of a document are shown, and
    `read_document` reads it whole. Documents are ranked by BM25.
    """
    if not query.strip():
        raise ValueError("the query is empty")
    documents = load_corpus(str(corpus))
    best = documents.rank(query, top)
    if not best:
        raise ValueError("no document has one of these words")
    return "\n".join(f"[{name}] {_shorten(documents.texts[name], shown)}" for name in best)


def read_document(query: str, *, corpus: ChatRef, longest: AtLeast1 = 2000) -> str:
    """Return a document of a corpus by its id, or with `ID page 2` a later page of up to `longest` characters."""
    documents = load_corpus(str(corpus))
    name, number = query.strip().strip("[]"), 1
    if name not in documents.texts and (asked := PAGE.fullmatch(query.strip())):
        name, number = asked[1].strip("[]"), int(asked[2])
    text = documents.texts.get(name)
    if text is None:
        raise ValueError(f"no document {name[:LONGEST_ECHO]!r}; ids are what a search shows in brackets")
    pages = -(-len(text) // longest) or 1
    if number > pages:
        raise ValueError(f"{name} has {pages} pages")
    page = text[(number - 1) * longest : number * longest]
    return page if pages == 1 else f"{page}\n(page {number} of {pages})"


@lru_cache(maxsize=4)
def load_corpus(folder: str) -> Corpus:
    """Return the documents of an artifact with their index, which is made once in a process."""
    texts = {str(row["id"]): _read_text(row) for row in read_rows(Path(folder), "chat")}
    return Corpus(texts, Index([*texts.values()]))


def _read_text(row: Row) -> str:
    return "\n".join(str(message["content"]) for message in [*row["prompt"], *row["completion"]])


def _shorten(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most].rstrip()}…"
