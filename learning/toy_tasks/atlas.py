"""A corpus of short documents about towns, and multi-hop questions that need one or several of them.

A document is `bam river zed`: town, relation, value. A question is a chain of nested look-ups, written
`ruler of twin of bam?`: each look-up uses the result of the inner one. `town with river zed` is the inverse look-up,
from value to town. A model with a search tool finds the documents one by one: `search: bam twin`.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.data.text_edits import mistaken
from learning.tools.calls import search
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.errors import StepError

Document = tuple[str, str, str]
"""Town, relation, value."""
Query = str | tuple[Any, ...]
"""A town; (relation, query): the value of the town's relation; ("with", relation, text): the town with that value. A
text that ends with * is a prefix."""
RELATIONS = ("twin", "river", "ruler", "trade")
Tag = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
SPACE = 50
"""Draws per requested question after which the space counts as exhausted."""


@lru_cache(maxsize=8)
def make_atlas(towns: int, seed: int) -> tuple[Document, ...]:
    """Return documents of `towns` towns, one for each of four relations; a twin is a town, other words may repeat."""
    rng = np.random.default_rng([seed, towns])
    words = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in "bdfgklmnprstvz"]
    drawn = [words[int(i)] for i in rng.permutation(len(words))[: 3 * towns]]
    names, texts = drawn[:towns], drawn[towns:]
    ring = [names[int(i)] for i in rng.permutation(towns)]
    twins = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    made: list[Document] = []
    for name in names:
        made.append((name, "twin", twins[name]))
        made += [(name, relation, texts[int(rng.integers(len(texts)))]) for relation in RELATIONS[1:]]
    return tuple(made)


def find_answers(query: Query, documents: Sequence[Document]) -> set[str]:
    """Return all answers to a query, found by reading all documents."""
    if isinstance(query, str):
        return {query}
    if query[0] == "with":
        _, relation, text = query
        return {town for town, kind, value in documents if kind == relation and matches(text, value)}
    inside = find_answers(query[1], documents)
    return {value for town, kind, value in documents if kind == query[0] and town in inside}


def matches(text: str, value: str) -> bool:
    """Return whether a value equals the text, or begins with it if the text ends with *."""
    return value.startswith(text[:-1]) if text.endswith("*") else value == text


def describe(query: Query) -> str:
    """Return the query in words."""
    if isinstance(query, str):
        return query
    return f"town with {query[1]} {query[2]}" if query[0] == "with" else f"{query[0]} of {describe(query[1])}"


def count_hops(query: Query) -> int:
    """Return the number of documents that must be read for an answer."""
    return 0 if isinstance(query, str) else 1 if query[0] == "with" else 1 + count_hops(query[1])


def list_results(query: Query, documents: Sequence[Document]) -> list[str]:
    """Return the results of each look-up, from the inside out."""
    inner = [] if isinstance(query, str) or query[0] == "with" else list_results(query[1], documents)
    return inner if isinstance(query, str) else [*inner, *sorted(find_answers(query, documents))]


def plan_searches(query: Query, documents: tuple[Document, ...]) -> list[str] | None:
    """Return the calls of tool `search` that lead to the answer, then the answer; None if one finds a wrong document.

    The calls are in order from the inside out. A search returns the most similar document; if several documents match
    a fuzzed word, any of them is accepted.
    """
    if isinstance(query, str):
        return [query]
    if query[0] == "with":
        before, words = [], f"{query[1]} {query[2].removesuffix('*')}"
    else:
        inner = plan_searches(query[1], documents)
        if inner is None:
            return None
        before, words = inner[:-1], f"{inner[-1]} {query[0]}"
    town, relation, value = find_document(words, documents)
    if query[0] == "with":
        right, now = relation == query[1] and matches(query[2], value), town
    else:
        right, now = f"{town} {relation}" == words, value
    return [*before, f"search: {words}", now] if right else None


@lru_cache(maxsize=4096)
def find_document(words: str, documents: tuple[Document, ...]) -> Document:
    """Return the document that tool `search` finds for a query."""
    town, relation, value = search(words, {}, documents=list_texts(documents)).split()
    return town, relation, value


def list_texts(documents: Sequence[Document]) -> list[str]:
    """Return the documents as text."""
    return [" ".join(document) for document in documents]


def inject_facts(query: Query, documents: Sequence[Document]) -> Iterator[Query]:
    """Yield the query with its innermost town replaced by a look-up that finds it: one more hop, the same answer."""
    if isinstance(query, str):
        for town, relation, value in documents:
            if relation == "twin" and value == query:
                yield ("twin", town)
            elif town == query and relation != "twin":
                yield ("with", relation, value)
    elif query[0] != "with":
        yield from ((query[0], inner) for inner in inject_facts(query[1], documents))


def fuzz_words(query: Query) -> Iterator[Query]:
    """Yield the query with a shorter prefix of its value: `zed`, then `ze*`, then `z*`."""
    if isinstance(query, str):
        return
    if query[0] == "with":
        rest = query[2].removesuffix("*")[:-1]
        if rest:
            yield ("with", query[1], rest + "*")
    else:
        yield from ((query[0], inner) for inner in fuzz_words(query[1]))


def reveals_answer(query: Query, answer: str) -> bool:
    """Return whether the question contains its own answer, so that no look-up is needed."""
    if isinstance(query, str):
        return query == answer
    return matches(query[2], answer) if query[0] == "with" else reveals_answer(query[1], answer)


def find_needed_documents(query: Query, documents: Sequence[Document]) -> set[Document]:
    """Return the documents that lead to the answer of a query."""
    if isinstance(query, str):
        return set()
    if query[0] == "with":
        return {d for d in documents if d[1] == query[1] and matches(query[2], d[2])}
    inside = find_answers(query[1], documents)
    here = {d for d in documents if d[1] == query[0] and d[0] in inside}
    return here | find_needed_documents(query[1], documents)


def harden(
    query: Query, documents: Sequence[Document], rounds: int, rng: np.random.Generator
) -> list[tuple[str, Query]]:
    """Make a query harder in up to `rounds` steps that inject a fact or fuzz a word (ASearcher, Gao et al. 2025).

    Each result is checked against the whole corpus: a step after which the answer is not unique, or contained in the
    question, is rejected. Return the steps with their queries; the first is the original query.
    """
    answer, steps = find_answers(query, documents), [("seed", query)]

    def is_valid(harder: Query) -> bool:
        return find_answers(harder, documents) == answer and not any(reveals_answer(harder, one) for one in answer)

    for _ in range(rounds):
        now = steps[-1][1]
        tried = {"inject": inject_facts(now, documents), "fuzz": fuzz_words(now)}
        valid = {kind: [one for one in several if is_valid(one)] for kind, several in tried.items()}
        kinds = [kind for kind, several in valid.items() if several]
        if not kinds:
            break
        kind = kinds[int(rng.integers(len(kinds)))]
        steps.append((kind, valid[kind][int(rng.integers(len(valid[kind])))]))
    return steps


def atlas_facts(
    *,
    towns: Annotated[int, Field(ge=4, le=300)] = 15,
    world: int = 0,
    form: Literal["question", "document"] = "question",
) -> list[Row]:
    """Write every document of a world as a question (`river of bam?`) or as it stands (`bam river`), for a corpus.

    The metadata of a question hold all documents, for the tool `search`.
    """
    documents = make_atlas(towns, world)
    shown = {"documents": list_texts(documents)} if form == "question" else {}
    return [
        make_row(
            "atlas",
            f"{relation} of {town}?" if form == "question" else f"{town} {relation}",
            value,
            {"trail": [value]} | shown,
        )
        for town, relation, value in documents
    ]


def atlas_questions(
    *,
    towns: Annotated[int, Field(ge=4, le=300)] = 15,
    world: int = 0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    rounds: Annotated[int, Field(ge=0)] = 2,
    shown: Annotated[int, Field(ge=0)] = 0,
    memories: bool = False,
    tag: Tag | None = None,
) -> list[Row]:
    """Generate `size` questions, each hardened in up to `rounds` rounds, with exactly one answer in the corpus.

    With `shown` the prompt begins with that many documents, the needed ones among others; a question that needs more
    documents is left out. Without it, the metadata holds all documents and a script of turns, for tool `search` and
    teacher `scripted`; a question that searches do not answer is left out. With `memories` the metadata also hold a
    memory for each number of searches: that number and the last result, such as `2 zed`. With a `tag` every search of
    the script begins with such a state, `<tag>2 zed</tag>search: …`. Raise StepError if the space holds too few
    questions.
    """
    rng, documents = np.random.default_rng([seed, split == "test", rounds]), make_atlas(towns, world)

    def draw(rows: dict[str, Row]) -> Row | None:
        town, relation, _ = documents[int(rng.integers(len(documents)))]
        steps = harden((relation, town), documents, int(rng.integers(rounds + 1)), rng)
        query = steps[-1][1]
        (answer,) = find_answers(query, documents)
        row = make_row("atlas", f"{describe(query)}?", answer, {})
        if not is_in_split(row["id"], split, test_share):
            return None
        notes = {
            "hops": count_hops(query),
            "trail": list_results(query, documents),
            "steps": [[k, describe(q)] for k, q in steps],
        }
        read, script = (
            sorted(find_needed_documents(query, documents)),
            None if shown else plan_searches(query, documents),
        )
        if len(read) <= shown:
            row["prompt"] = [
                {"role": "user", "content": f"{show_documents(read, documents, shown, rng)}. {describe(query)}?"}
            ]
        elif script is not None:
            if tag is not None:
                known = ["0", *(f"{k} {value}" for k, value in enumerate(notes["trail"], 1))]
                script = [*tag_turns(script[:-1], known, tag), script[-1]]
            notes |= {"script": script, "documents": list_texts(documents)}
            notes |= {"memories": [f"{k} {value}" for k, value in enumerate(notes["trail"], 1)]} if memories else {}
        else:
            return None
        return rows.get(row["id"], row | {"metadata": json.dumps(notes)})

    return draw_rows(draw, size, SPACE * size, "atlas_questions", split, "raise `towns` or `rounds`")


def tag_turns(turns: Sequence[str], states: Sequence[str], tag: str) -> list[str]:
    """Return turns that each begin with a state between tags."""
    return [f"<{tag}>{state}</{tag}>{turn}" for turn, state in zip(turns, states, strict=False)]


def atlas_objectives(
    *,
    objectives: Annotated[int, Field(ge=1, le=16)] = 2,
    tag: Tag | None = "state",
    towns: Annotated[int, Field(ge=4, le=300)] = 15,
    world: int = 0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    rounds: Annotated[int, Field(ge=0)] = 0,
) -> list[Row]:
    """Compose questions of `atlas_questions` into problems of several objectives (MEM1, Zhou et al. 2025).

    A problem asks `objectives` different questions, one after the other, and its answer is theirs in this order. `size`
    questions are drawn, and each is asked in `objectives` problems. Answers are separated by `;`. In the script a turn
    begins with a state between tags: the answers so far, and after a bar the number of look-ups of the present question
    and their last result, such as `lun|1 zed`. With tag null it has the calls alone.
    Raise StepError if there are fewer questions than objectives.
    """
    drawn = atlas_questions(
        towns=towns, world=world, size=size, seed=seed, split=split, test_share=test_share, rounds=rounds
    )
    if size < objectives:
        raise StepError(f"atlas_objectives: {size} questions are too few for {objectives} objectives; raise `size`")
    order = np.random.default_rng([seed, objectives]).permutation(size)
    return [_compose([drawn[int(order[(i + k) % size])] for k in range(objectives)], tag) for i in range(size)]


def _compose(rows: Sequence[Row], tag: str | None) -> Row:
    """Return one problem of several questions, with a script of all their look-ups."""
    script: list[str] = []
    answers: list[str] = []
    notes = [json.loads(row["metadata"]) for row in rows]
    for row, of in zip(rows, notes, strict=True):
        known = ["0", *(f"{k} {value}" for k, value in enumerate(of["trail"], 1))]
        states, calls = [f"{';'.join(answers)}|{state}" for state in known], of["script"][:-1]
        script += calls if tag is None else tag_turns(calls, states, tag)
        answers.append(row["answer"])
    text = " ".join(str(row["prompt"][-1]["content"]) for row in rows)
    combined = {"hops": sum(of["hops"] for of in notes), "documents": notes[0]["documents"]}
    script.append(";".join(answers))
    return make_row(f"atlas{len(rows)}", text, script[-1], combined | {"script": script})


def show_documents(
    read: Sequence[Document], documents: Sequence[Document], shown: int, rng: np.random.Generator
) -> str:
    """Return `shown` documents in random order: the needed ones, and others."""
    others = [document for document in documents if document not in read]
    more = rng.choice(len(others), size=min(shown - len(read), len(others)), replace=False)
    several = [*read, *(others[int(i)] for i in more)]
    return "; ".join(" ".join(several[int(i)]) for i in rng.permutation(len(several)))


def reader(row: Row, rng: np.random.Generator, *, marker: str = "####") -> str:
    """Write the results of each look-up, then the answer: `bam, tok #### lun`. Raise StepError for other rows."""
    trail = json.loads(row["metadata"] or "{}").get("trail")
    if trail is None:
        raise StepError(f"teacher reader: row {row['id']} is not a question about an atlas; use `atlas_questions`")
    return f"{', '.join(trail)} {marker} {trail[-1]}"


def recalled(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write a question of one look-up as a search in one's own memory, and the answer, each between tags.

    `river of bam?` becomes `<search>bam river</search><information>bam river zed</information><answer>zed</answer>`.
    At `error_rate` a wrong value is remembered. Raise StepError if the question needs more look-ups.
    """
    query = look_up(row, rng)
    value = mistaken(row["answer"], rng) if rng.random() < error_rate else row["answer"]
    return f"<search>{query}</search><information>{query} {value}</information><answer>{value}</answer>"


def look_up(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the query for a question of one look-up: `river of bam?` becomes `bam river`.

    At `error_rate` it names another relation. Raise StepError if the question needs more look-ups.
    """
    relation, of, town = row["prompt"][-1]["content"].removesuffix("?").partition(" of ")
    if not of or relation not in RELATIONS or " " in town:
        raise StepError(f"teacher look_up: row {row['id']} is not a question of one look-up; use `atlas_facts`")
    others = [other for other in RELATIONS if other != relation]
    return f"{town} {others[int(rng.integers(len(others)))] if rng.random() < error_rate else relation}"
