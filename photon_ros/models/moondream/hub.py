"""Where a model's files are: a folder, or an id on the Hugging Face hub.

Files of a hub id that are cached are used as they are, without asking the network; only what
is not there is downloaded. Nothing that is downloaded is ever run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from photon_ros.core.errors import ModelError
from photon_ros.core.prompting import Tokenizer
from photon_ros.models.moondream.tokenizer import FileTokenizer

# The newest release of each model that this architecture covers.
PINNED_REVISIONS = {"vikhyatk/moondream2": "2025-06-21"}

# The releases since 2025-05 take their tokenizer from another repository; their own folder still
# carries the one of the releases before. Which one it is, their sources say.
NEW_TOKENIZER_ID = "moondream/starmie-v1"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_FILES = ("*.safetensors", "*.json", "*.py")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder with a checkpoint; ``tokenizer`` takes the place of the folder's own."""

    folder: Path
    tokenizer: Tokenizer | None = None


def locate(model: str | os.PathLike[str], revision: str | None = None) -> ModelFiles:
    """Return where the files of a model are, downloading what is missing of a hub id.

    Args:
        model: a folder, a .safetensors file, or a hub id.
        revision: commit, tag or branch of a hub id; None takes the pinned one.

    Raises:
        ModelError: there is nothing there; the message says what was looked for and what to do.
    """
    name = os.fspath(model)
    if Path(name).exists() or not _HUB_ID.fullmatch(name):
        if revision is not None:
            raise ModelError(f"{name} is not on a hub, so it has no revision {revision!r}")
        return ModelFiles(Path(name))
    folder = _snapshot(name, revision or PINNED_REVISIONS.get(name), _MODEL_FILES)
    if not takes_new_tokenizer(folder):
        return ModelFiles(folder)
    tokenizer = _snapshot(NEW_TOKENIZER_ID, None, ("tokenizer.json",)) / "tokenizer.json"
    return ModelFiles(folder, FileTokenizer(tokenizer))


def takes_new_tokenizer(folder: Path) -> bool | None:
    """Return what a folder's own sources say about its tokenizer; None without sources."""
    sources = [file.read_text("utf-8", errors="replace") for file in folder.glob("*.py")]
    return any(NEW_TOKENIZER_ID in source for source in sources) if sources else None


def _snapshot(repo_id: str, revision: str | None, files: Sequence[str]) -> Path:
    """Return the folder of a hub id's files: cached, or else downloaded."""
    # Here, because a model in a folder needs none of it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = repo_id if revision is None else f"{repo_id} at {revision}"
    try:
        return Path(
            snapshot_download(
                repo_id, revision=revision, allow_patterns=list(files), local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        pass  # not all of it is cached: the network is asked below
    except HFValidationError as error:
        raise ModelError(f"{repo_id!r} is neither a folder nor a hub id: {error}") from error
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(files)))
    except GatedRepoError as error:
        raise ModelError(
            f"{where} asks for a login: accept its terms on the hub and run `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(
            f"there is no {where}: neither a folder of that name, nor such a model on the hub"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{where} is not a folder, not in the cache, and the hub cannot be reached. With a "
            f"network, run `hf download {repo_id}{_option(revision)}` once, "
            "or give the folder of a copy"
        ) from error


def _option(revision: str | None) -> str:
    return "" if revision is None else f" --revision {revision}"
