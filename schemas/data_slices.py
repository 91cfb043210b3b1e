"""Slices of a split, as the hub's data sets are written: `train[:5%]`, `train[100:200]`, `[-1000:]`."""

import re
from dataclasses import dataclass

SPLIT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]*)(\[(?P<start>-?\d[\d_]*)?(?P<start_unit>%)?:(?P<stop>-?\d[\d_]*)?(?P<stop_unit>%)?\])?"
)


@dataclass(frozen=True)
class Slice:
    """Rows of a split from `start` to before `stop`: numbers from 0, or percent; negative ones count from the end."""

    start: int | None
    stop: int | None
    percent: bool

    @property
    def needs_count(self) -> bool:
        """Return whether the number of rows of the split decides which rows these are."""
        return self.percent or (self.start or 0) < 0 or (self.stop or 0) < 0

    def resolve(self, count: int) -> tuple[int, int]:
        """Return the numbers of the first row and of the one after the last, of `count` rows.

        Percents are rounded to the nearest row and limits beyond the rows are those of the rows, as in the library
        `datasets`.
        """
        start, stop = (
            round(bound * count / 100) if self.percent else bound
            for bound in (self.start or 0, (100 if self.percent else count) if self.stop is None else self.stop)
        )
        start, stop = (max(count + bound, 0) if bound < 0 else min(bound, count) for bound in (start, stop))
        return start, max(start, stop)


def parse_split(text: str) -> tuple[str | None, Slice | None]:
    """Return the name of a split, or None, and the slice of it, or None. Raise ValueError for other texts."""
    match = SPLIT.fullmatch(text)
    if match is None or not text:
        advice = "; write several sources, one for each part" if "+" in text else ""
        raise ValueError(
            f"`{text}` is no split; write a name, or a slice of it as train[:5%] or train[100:200]{advice}"
        )
    name = match["name"] or None
    if "[" not in text:
        return name, None
    start, stop = (None if match[key] is None else int(match[key]) for key in ("start", "stop"))
    units = [unit for key in ("start", "stop") if match[key] is not None for unit in [match[f"{key}_unit"]]]
    if any(match[key] is None and match[f"{key}_unit"] for key in ("start", "stop")) or len(set(units)) > 1:
        raise ValueError(f"`{text}`: give both bounds as rows, or both in percent")
    percent = units[:1] == ["%"]
    if percent and any(abs(bound) > 100 for bound in (start, stop) if bound is not None):
        raise ValueError(f"`{text}`: a bound has more than 100 percent")
    return name, Slice(start, stop, percent)
