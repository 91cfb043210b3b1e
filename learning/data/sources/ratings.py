"""Responses with ratings per attribute (HelpSteer): those of one prompt, which follow each other, as one scored row."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from learning.data.sources.columns import Values, list_columns
from learning.data.sources.preferences import TEXT_KEYS, read_number
from learning.data.sources.records import BadRow, Record


def group_by_prompt(
    records: Iterable[Record], map_columns: Callable[[Values], Values], weights: Mapping[str, float]
) -> Iterator[Record]:
    """Yield one record per prompt with `completions`, each with its weighted sum of ratings; bad rows stand alone."""
    group: Record | None = None
    for record in records:
        try:
            if record.problem:
                raise BadRow(record.problem)
            fields = map_columns(record.values)
            completion = _read_completion(fields, weights)
        except BadRow as error:
            if group is not None:
                yield group
                group = None
            yield Record(record.file, record.number, record.values, str(error), record.text)
            continue
        if group is not None and group.file == record.file and group.values["prompt"] == fields["prompt"]:
            group.values["completions"].append(completion)
            continue
        if group is not None:
            yield group
        rest = {key: value for key, value in fields.items() if key not in {*weights, *TEXT_KEYS}}
        group = Record(record.file, record.number, {**rest, "completions": [completion]})
    if group is not None:
        yield group


def _read_completion(fields: Values, weights: Mapping[str, float]) -> Values:
    text = next((key for key in TEXT_KEYS if fields.get(key) is not None), None)
    if missing := next((key for key in ("prompt", *weights) if fields.get(key) is None), None):
        raise BadRow(f"no `{missing}`; its columns: {list_columns(fields)}")
    if text is None:
        raise BadRow(f"no `response`; its columns: {list_columns(fields)}")
    score = sum(weight * read_number(fields[name], name) for name, weight in weights.items())
    return {"response": fields[text], "score": score}
