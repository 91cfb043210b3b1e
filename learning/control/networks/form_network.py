"""A network that values writing words into the fields of a form: its weights are the same for all fields.

Shapes: B observations, F fields, V words, E numbers of an embedding.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError


def find_sizes(spaces: Spaces) -> tuple[int, int]:
    """Return the numbers of fields and words of a form. Raise StepError for a world that is none.

    An observation has F (2 F + 2 V + 1) numbers, and there are F · V choices.
    """
    fields = round((math.sqrt(max(1 + 8 * (spaces.observations - 2 * spaces.actions), 0)) - 1) / 4)
    words = spaces.actions // max(fields, 1)
    is_form = fields * words == spaces.actions and fields * (2 * fields + 2 * words + 1) == spaces.observations
    if not spaces.is_discrete or spaces.agents > 1 or not is_form:
        raise StepError(f"a form has F (2F + 2V + 1) numbers to observe and F · V choices; {spaces.describe()}")
    return fields, words


def split_form(observation: Any, fields: int, words: int) -> tuple[Any, Any, Any, Any]:
    """Return names and words of the instruction's pairs, names and contents of the page's fields, (B, F, …) each."""
    pairs = observation[:, : fields * (fields + words)].reshape(-1, fields, fields + words)
    page = observation[:, fields * (fields + words) :].reshape(-1, fields, fields + words + 1)
    return pairs[..., :fields], pairs[..., fields:], page[..., :fields], page[..., fields:]


class FormValues(nn.Module):
    """Values (B, F · V): a field attends to the instruction by its name; its words are scored with what it finds."""

    def __init__(self, spaces: Spaces, hidden: nn.Module, size: int) -> None:
        super().__init__()
        self.fields, self.words = find_sizes(spaces)
        self.ask, self.answer = nn.Linear(self.fields, size), nn.Linear(self.fields, size)
        self.hidden = hidden
        """From what the instruction says, what the field has, the word, and the share of fields filled, to a value."""

    def attend(self, observation: Tensor) -> Tensor:
        """Return how much each field (rows) attends to each pair of the instruction (B, F, F)."""
        instructed_BFF, _, names_BFF, _ = split_form(observation, self.fields, self.words)
        match = self.ask(names_BFF) @ self.answer(instructed_BFF).transpose(1, 2)
        return match.softmax(-1)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the values of all choices, field by field."""
        flat = observation.reshape(-1, observation.shape[-1])
        _, instructed_BFV, _, contents_BFC = split_form(flat, self.fields, self.words)
        found_BFV = self.attend(flat) @ instructed_BFV
        filled_B1 = 1 - contents_BFC[:, :, -1].mean(1, keepdim=True)
        shape = (len(flat), self.fields, self.words)
        parts = [part[:, :, None].expand(*shape, -1) for part in (found_BFV, contents_BFC)]
        parts += [torch.eye(self.words).expand(*shape, -1), filled_B1[:, None, None].expand(*shape, 1)]
        return self.hidden(torch.cat(parts, -1)).reshape(*observation.shape[:-1], -1)
