"""Watchdogs: which bands the curves have left, and for how long."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.watch import Watch


class Watchdogs:
    """Counts, for every watch, the iterations in a row outside its band."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = list(watches)
        self.outside = [0] * len(self.watches)

    @property
    def is_good(self) -> bool:
        """Whether every watched point was inside its band when last seen."""
        return not any(self.outside)

    def look(self, points: Mapping[str, float]) -> list[tuple[Watch, str]]:
        """The watches that trip now, each with a sentence; a point that is not there says nothing."""
        tripped = []
        for i, watch in enumerate(self.watches):
            value = points.get(watch.metric)
            if value is None:
                continue
            low = watch.min is not None and not value >= watch.min
            high = watch.max is not None and not value <= watch.max
            self.outside[i] = self.outside[i] + 1 if low or high else 0
            if self.outside[i] >= watch.patience:
                bound = f"below {watch.min:g}" if low else f"above {watch.max:g}"
                tripped.append((watch, f"{watch.metric} was {value:.4g}, {bound}, for {self.outside[i]} iteration(s)"))
        return tripped

    def reset(self) -> None:
        """Begin to count anew, as after a step back."""
        self.outside = [0] * len(self.watches)

    def to_json(self) -> Any:
        """As plain values."""
        return list(self.outside)

    def load(self, values: Any) -> None:
        """Put back what `to_json` gave."""
        self.outside = list(values)
