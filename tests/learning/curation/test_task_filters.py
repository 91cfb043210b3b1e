"""Filters of tasks: by their tests before and after a change, by date, and by notes in their metadata."""

import json

import pytest

from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import RowFilterUse


def keep(about, **use):
    row = {"id": "r", "prompt": [], "metadata": json.dumps(about)}
    return bind(RowFilterUse.model_validate(use))(row)


@pytest.mark.parametrize(
    ("day", "kept"), [("2024-12-31", (False, True)), ("2025-01-01", (True, False)), ("2025-01-02", (True, False))]
)
def test_a_day_belongs_to_what_begins_with_it(day, kept):
    bounds = ({"since": "2025-01-01"}, {"before": "2025-01-01"})
    assert tuple(keep({"date": day}, use="dated", **bound) for bound in bounds) == kept
    assert keep({"date": day}, use="dated", since="2024-12-01", before="2025-02-01")
    assert keep({"date": day}, use="dated")


@pytest.mark.parametrize("about", [{}, {"date": "yesterday"}, {"date": None}, {"date": 2025}])
def test_rows_without_a_date_are_refused(about):
    with pytest.raises(StepError, match="row r: its metadata have no `date`"):
        keep(about, use="dated", since="2025-01-01")


def test_a_bound_that_is_no_day_is_refused():
    with pytest.raises(StepError, match="write a day as 2025-01-01"):
        keep({"date": "2025-01-01"}, use="dated", since="soon")


def test_notes_are_allowed_or_refused():
    about = {"quality": "clear"}
    assert keep(about, use="noted", key="quality")
    assert keep(about, use="noted", key="quality", allowed=["clear"])
    assert keep({}, use="noted", key="quality", refused=["vague"])
    assert not keep({}, use="noted", key="quality", allowed=["clear"])
    assert not keep(about, use="noted", key="quality", refused=["clear"])


def test_what_is_no_task_is_refused():
    with pytest.raises(StepError, match="its metadata need `files`"):
        keep({}, use="fails_then_passes")
