"""`notify:` of a recipe: messages about its runs to a webhook."""

import re
from typing import Literal

from pydantic import Field, field_validator

from schemas.base import Schema

Occasion = Literal["end", "failed_gate", "waiting_approval", "refused_promotion", "foreign_change"]
"""What a message is about."""
ADDRESS = re.compile(r"\$\{env:[A-Za-z_][A-Za-z0-9_]*\}|prefect:[a-z0-9-]+/[A-Za-z0-9_.-]+")


class Notify(Schema):
    """A webhook that receives messages as Slack does: `{"text": "..."}` as JSON, by POST."""

    to: str
    """Where the address is, which is a secret: `${env:SLACK_WEBHOOK}`, or a block of Prefect, `prefect:secret/NAME` or
    `prefect:slack-webhook/NAME`."""
    on: list[Occasion] = Field(
        default=["end", "failed_gate", "waiting_approval", "refused_promotion", "foreign_change"],
        min_length=1,
        max_length=5,
    )
    """Occasions: a run ended, a gate failed, a gate waits for approval, a promotion was refused, the registered model
    of `promote` was changed outside posttrain (seen while `posttrain up` runs)."""

    @field_validator("to")
    @classmethod
    def _check_to(cls, to: str) -> str:
        if not ADDRESS.fullmatch(to):
            raise ValueError(
                "the address of a webhook is a secret and does not belong into a recipe; put it into an environment "
                "variable or a block of Prefect, and write ${env:NAME}, prefect:secret/NAME or "
                "prefect:slack-webhook/NAME"
            )
        return to
