"""Parse feedback on a response."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.serving.refusals import Refused
from flows.serving.requests import validate_parameters

MAX_FEEDBACK_BYTES = 4096
ID = r"^(chatcmpl|cmpl)-[0-9a-f]{24}$"


class FeedbackBody(BaseModel):
    """POST /v1/feedback."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str = Field(pattern=ID)
    """Id of the response."""
    rating: Literal["good", "bad"] | None = None
    score: float | None = Field(default=None, ge=0, le=1)

    @property
    def value(self) -> float:
        """Return the score: 1 for good, 0 for bad."""
        return float(self.rating == "good") if self.score is None else self.score


def read_feedback(body: Any) -> FeedbackBody:
    """Parse feedback. Raise Refused."""
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    given: FeedbackBody = validate_parameters(FeedbackBody, body)
    if (given.rating is None) == (given.score is None):
        raise Refused('give either `rating`, "good" or "bad", or `score`, a number from 0 to 1', "score")
    return given
