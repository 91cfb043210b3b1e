"""Parse feedback on a response."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from flows.serving.refusals import Refused
from flows.serving.requests import validate_parameters

MAX_FEEDBACK_BYTES = 4096
ID = re.compile(r"(chatcmpl|cmpl)-[0-9a-f]{24}")


def _check_id(text: str) -> str:
    if not ID.fullmatch(text):
        raise PydanticCustomError(
            "id", "must be the `id` of a response of this server: chatcmpl- or cmpl- and 24 hexadecimal digits"
        )
    return text


class FeedbackBody(BaseModel):
    """POST /v1/feedback."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, AfterValidator(_check_id)]
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
