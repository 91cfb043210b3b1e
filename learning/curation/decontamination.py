"""Evaluation problems among rows to train on: word n-grams as in GPT-3 (Brown et al. 2020, appendix C).

A problem's template, the words at its start or end that it shares with others of its family, is set aside, because
rows of the same template are no contamination. What remains is its core: with at least n words it is compared by its
distinct n-grams, with fewer the problem is compared whole, word for word, with the prompts of the rows. So
`12 + 7 - 3 =` is found where it is asked, and not inside `2 + 12 + 7 - 3 =`.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from learning.curation.ledger import WRITTEN, Curation
from learning.data.messages import MESSAGES
from learning.data.rows import Row

SHARED_BY = 0.1
"""Words at a border of a problem are template when this share of its family, and three problems at least, has them."""

# \p{Han} and the like are written without spaces: each sign is a word. Dashes and signs of arithmetic have many forms,
# and a dash after a word is punctuation, not a minus.
_MACROS = r"""
create macro plain(text) as case when is_ascii(text) then lower(text) else regexp_replace(
    translate(lower(nfc_normalize(text)), '‐‑‒–—−×∗·÷∕', '------***//'),
    '([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}])', ' \1 ', 'g') end;
create macro undashed(text) as
    case when contains(text, '-') then regexp_replace(text, '(\p{L}{2})\s*-+', '\1 ', 'g') else text end;
create macro words(text) as regexp_extract_all(undashed(plain(text)), '[\p{L}\p{M}\p{N}]+|[-+*/%^()]|\p{Sm}');
create macro dense(text) as replace(spaced(plain(text)), ' ', '');
create macro whole(text) as
    array_to_string(regexp_extract_all(plain(text), '[\p{L}\p{M}\p{N}]+|[^\p{L}\p{M}\p{N}\s]'), ' ');
create macro asked(messages) as contents(list_filter(messages, lambda m: m.role is distinct from 'system'));
create macro turns(messages) as
    list_transform(list_filter(messages, lambda m: m.role = 'user'), lambda m: coalesce(m.content, ''));
create macro grams(words, n) as list_transform(
    range(1, len(words) - n + 2), lambda i: hash(array_to_string(words[i:i + n - 1], ' ')));
"""

_ASKED = """create or replace table asked as select row, text from
    (select row, unnest(list_distinct(list_append(turns(prompt), asked(prompt)))) as text from block)
    where dense(text) in (select dense from problems)"""
"""What the rows of a block ask, where it is a problem if no space counts: cheap, and next to nothing is left."""
_WHOLE = """insert into hits select row, min(problem), 1.0::double
    from (select row, whole(text) as whole from asked) join problems using (whole) where whole <> '' group by row"""
"""Adds the rows whose prompt, or a turn of it, is a problem."""


@dataclass(frozen=True)
class Evaluation:
    """Problems of one evaluation: its name in the report, and rows of prompts."""

    name: str
    problems: list[Row]


def find_core(problems: list[list[str]]) -> list[list[str]]:
    """Return the words of each problem of one family without the template at its start and end."""
    enough = max(3, SHARED_BY * len(problems))
    starts = _shared(problems, enough)
    ends = _shared([words[::-1] for words in problems], enough)
    return [words[a : max(a, len(words) - b)] for words, a, b in zip(problems, starts, ends, strict=True)]


def _shared(problems: list[list[str]], enough: float) -> list[int]:
    """Return for each problem the length of its longest prefix that at least `enough` problems have."""
    nodes: dict[tuple[int, str], int] = {}
    paths = []
    for words in problems:
        path, node = [], 0
        for word in words:
            node = nodes.setdefault((node, word), len(nodes) + 1)
            path.append(node)
        paths.append(path)
    counts = Counter(node for path in paths for node in path)
    return [sum(counts[node] >= enough for node in path) for path in paths]


def drop_contaminated(rows: Curation, evaluations: list[Evaluation], ngram: int, max_overlap: float) -> None:
    """Drop rows that ask an evaluation problem, or hold more than `max_overlap` of the distinct n-grams of one.

    The ledger names the problem and the overlap. Rows are searched in all their messages for n-grams, and in the
    prompt (its turns, and as one) for whole problems.
    """
    rows.connection.execute(_MACROS)
    _load(rows, evaluations, ngram)
    rows.run("create table hits (row bigint, problem bigint, overlap double)")
    for block in rows.blocks(["prompt", *WRITTEN[rows.artifact_type]]):
        rows.on(block, _ASKED)
        rows.run(_WHOLE)
        rows.on(block, _grams_of(rows.artifact_type), ngram, max_overlap)
    rows.run(
        """insert into dropped select row, 'contaminated',
           format('{}: problem {}, overlap {:.2f}', e.name, e.id, overlap)
           from (select row, max(overlap) as overlap, arg_max(problem, (overlap, -problem)) as problem
                 from hits group by row) join problems e using (problem)"""
    )


def _load(rows: Curation, evaluations: list[Evaluation], ngram: int) -> None:
    """Make the tables `problems` (problem, name, id, whole) and `marks` (problem, gram: its distinct n-grams)."""
    flat = [(e.name, p["id"], p["family"], p["prompt"]) for e in evaluations for p in e.problems]
    names, ids, families, prompts = zip(*flat, strict=True) if flat else ((), (), (), ())
    columns = {"name": names, "id": ids, "family": families}
    table = pa.table({k: pa.array(v, pa.string()) for k, v in columns.items()})
    table = table.append_column("prompt", pa.array(prompts, MESSAGES))
    rows.connection.register("given", table.append_column("problem", pa.array(range(len(flat)), pa.int64())))
    rows.run(
        """create table problems as select problem, name, id, coalesce(family, '') as family,
           dense(asked(prompt)) as dense, whole(asked(prompt)) as whole, words(asked(prompt)) as words from given"""
    )
    rows.connection.unregister("given")
    cores = _cores(rows.run("select name || chr(31) || family, whole, problem, words from problems order by problem"))
    texts = pa.array(list(cores.values()), pa.list_(pa.string()))
    rows.connection.register("cores", pa.table({"problem": pa.array(list(cores), pa.int64()), "words": texts}))
    rows.run(
        """create table marks as select distinct problem, unnest(grams(words, $1)) as gram
           from cores where len(words) >= $1""",
        ngram,
    )
    rows.connection.unregister("cores")


def _cores(problems: list[tuple[str, str, int, list[str]]]) -> dict[int, list[str]]:
    """Return the core of each problem by its number; a problem asked twice counts once towards the template."""
    families: dict[str, dict[str, tuple[int, list[str]]]] = {}
    for family, whole_prompt, problem, words in problems:
        families.setdefault(family, {}).setdefault(whole_prompt, (problem, words))
    cores: dict[int, list[str]] = {}
    for members in families.values():
        numbers = [number for number, _ in members.values()]
        cores.update(zip(numbers, find_core([words for _, words in members.values()]), strict=True))
    return cores


def _grams_of(artifact_type: str) -> str:
    """Return the statement that adds the rows with more than $2 of a problem's distinct n-grams of $1 words."""
    contents = [f"contents({column})" for column in ["prompt", *WRITTEN[artifact_type]]]
    return f"""insert into hits with
        texts as materialized (select row, words(unnest([{", ".join(contents)}])) as words from block),
        held as (select distinct row, gram from (select row, unnest(grams(words, $1)) as gram from texts)
         semi join marks using (gram)),
        sizes as (select problem, count(*) as size from marks group by problem)
        select row, problem, count(*) / any_value(size) as overlap
        from held join marks using (gram) join sizes using (problem)
        group by row, problem having count(*) > $2 * any_value(size)"""
