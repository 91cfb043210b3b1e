"""A view of a batch's columns by the parameter names of loss functions.

`<name>_T` is a token column of the batch at its sampled tokens, or a path column spread over them; `<name>_P` is a path
column. Columns of auxiliary models have the models' names; the mapping `auxiliary_T` holds all of them.
Shapes: T sampled tokens, P paths.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import locate_in_path

AUXILIARY = "aux:"
"""Prefix of the columns of auxiliary models in a batch."""


class ColumnView(Mapping[str, Any]):
    """The columns of a batch, and `more`; numbers come in the precision and on the device of `like`."""

    def __init__(self, batch: Batch, like: Tensor | None = None, /, **more: Any) -> None:
        self.batch, self.like = batch, like
        self.columns: dict[str, Any] = {"batch": batch, **more}

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns:
            self.columns[name] = self._convert(self._look_up(name))
        return self.columns[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.columns[name] = value

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        own = ("learn", "owner")
        tokens = (f"{name.removeprefix(AUXILIARY)}_T" for name in self.batch.tokens if name not in own)
        paths = (f"{name}_{unit}" for name in self.batch.paths if ":" not in name for unit in "TP")
        derived = ("path_T", "place_T", "length_T", "length_P", "scores_P")
        return iter(dict.fromkeys((*self.columns, *tokens, *paths, *derived)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def detach(self) -> None:
        """Detach the columns from the graph that computed them."""
        self.columns = {k: v.detach() if isinstance(v, Tensor) else v for k, v in self.columns.items()}

    def _look_up(self, name: str) -> Any:
        base, _, unit = name.rpartition("_")
        batch = self.batch
        if name == "scores_P":
            return {k.removeprefix("score:"): v for k, v in batch.paths.items() if k.startswith("score:")}
        if name == "auxiliary_T":
            return {name: self[f"{name}_T"] for name in _auxiliaries(batch)}
        if name == "path_T":
            return batch.path_T
        if name == "place_T":
            return locate_in_path(batch.path_T)[0]
        if base == "length":
            length_P = batch.path_T.bincount(minlength=batch.num_paths)
            return length_P if unit == "P" else length_P[batch.path_T]
        if unit == "T" and base in batch.tokens:
            return batch.sampled(base)
        if unit == "T" and base in batch.paths:
            return batch.paths[base][batch.path_T]
        if unit == "P" and base in batch.paths:
            return batch.paths[base]
        if unit in ("T", "P") and not base.startswith(AUXILIARY):
            return self._look_up(f"{AUXILIARY}{name}")
        raise KeyError(name)

    def _convert(self, value: Any) -> Any:
        if self.like is None or not isinstance(value, Tensor):
            return value
        return value.to(self.like.device, self.like.dtype if value.is_floating_point() else value.dtype)


def _auxiliaries(batch: Batch) -> list[str]:
    """Return the names of the columns of auxiliary models, without those of single heads."""
    named = (n.removeprefix(AUXILIARY) for n in (*batch.tokens, *batch.paths) if n.startswith(AUXILIARY))
    return [name for name in named if "." not in name]
