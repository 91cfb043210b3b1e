"""`posttrain push hub`: a model with its card into a repository of the Hugging Face hub."""

import os
import re
import tempfile
from pathlib import Path

from flows.processes.redaction import make_redactor
from flows.publishing.model_card import write_model_card
from flows.publishing.model_export import write_hf
from flows.serving.models import choose
from lineage.audit.log import append
from lineage.layout import Layout
from schemas.errors import PlanError

TOKEN = "HF_TOKEN"
ENDPOINT = "HF_ENDPOINT"
NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


def push_to_hub(layout: Layout, word: str, repository: str, *, public: bool, max_shard_size: str) -> str:
    """Upload a model as one commit of a repository, which is created private unless `public`; return its URL.

    The token is the environment's HF_TOKEN, the server that of HF_ENDPOINT (default: the public hub). Raise PlanError
    without a token, for an invalid name, and if the server refuses; the token is in no message.
    """
    if not NAME.fullmatch(repository):
        raise PlanError(f"{repository!r} is not a repository of the hub; write ORGANISATION/NAME")
    token = os.environ.get(TOKEN)
    if not token:
        raise PlanError(f"push hub: set the environment variable {TOKEN} to a token that may write to {repository}")
    chosen = choose(word, layout)
    with tempfile.TemporaryDirectory(dir=layout.make_state()) as work:
        folder = Path(work)
        write_hf(chosen, folder, max_shard_size)
        write_model_card(layout, chosen, folder)
        url = _upload(folder, repository, token, f"posttrain: {chosen.description}", public=public)
    append(layout, "published", target=chosen.description, digest=chosen.digest, repository=repository, commit=url)
    return url


def _upload(folder: Path, repository: str, token: str, message: str, *, public: bool) -> str:
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(endpoint=os.environ.get(ENDPOINT) or None, token=token)
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HTTPError, OSError, RuntimeError, ValueError) as error:
        message = make_redactor(frozenset({token})).text(f"{type(error).__name__}: {error}")
        raise PlanError(f"push hub: {repository} was not uploaded: {message}") from None
    return str(commit.commit_url)
