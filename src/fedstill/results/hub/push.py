"""The files of a model for the Hub, and bringing them there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import is_own
from fedstill.config.source import dump
from fedstill.results.hub.card import EXPERIMENT, Subject, bare, card
from fedstill.results.record import Record
from fedstill.results.runs import load_runs

FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""What a saved model consists of; nothing else of a run is ever copied."""
NAMING = {"path", "test", "name", "tokenizer", "_name_or_path", "name_or_path", "tokenizer_file"}
"""Keys whose values may be paths of this machine."""


def subject_of(folder: Path, party: str | None, repository: str, language: str | None = None) -> Subject:
    """The model to push; an error if the run is not finished, has no such model, or the name is not one of the Hub."""
    _check_name(repository)
    record = Record(folder)
    party = party or record.usual_party
    name = str(record.summary.get("models", {}).get(party, ""))  # an unfinished run says so here
    record.check_model(party)
    if is_own(name):
        raise FedstillError(
            f"{party}'s model is a class of your own ({name}), which nobody could load from the Hub without its file."
        )
    (run,) = load_runs([folder])
    return Subject(record, run, party, repository, language)


def write(subject: Subject, out: Path) -> list[Path]:
    """Write everything that the Hub gets into an empty folder; the files."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedstillError(f"{out} is not empty; choose another folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    model = subject.record.model_folder(subject.party)
    for path in sorted(found for pattern in FILES for found in model.glob(pattern)):
        if path.name in ("config.json", "tokenizer_config.json", "fedstill.json"):
            values = without_paths(json.loads(path.read_text(encoding="utf-8")))
            (out / path.name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(path, out / path.name)
    if subject.is_simulated and subject.record.settings:
        (out / EXPERIMENT).write_text(dump(without_paths(subject.record.settings)), encoding="utf-8")
    (out / "README.md").write_text(card(subject), encoding="utf-8")
    return sorted(out.iterdir())


@contextmanager
def written(subject: Subject) -> Iterator[Path]:
    """The same in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedstill-push-") as scratch:
        write(subject, Path(scratch))
        yield Path(scratch)


def upload(folder: Path, repository: str, is_private: bool) -> str:
    """Bring a folder to the Hub, into a new repository or an existing one; its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        made = api.create_repo(repository, private=is_private or None, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="A model made with fedstill")
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        if _status(error) in (None, 401):
            raise FedstillError("the Hub does not know you: log in with `hf auth login`, or set HF_TOKEN.") from error
        said = str(error).strip().splitlines()[0]
        raise FedstillError(f"the Hub refused {repository} ({said}); is the name yours?") from error
    except (HTTPError, OSError) as error:
        raise FedstillError(
            f"the Hub cannot be reached ({type(error).__name__}): nothing was pushed; --out FOLDER writes the same "
            "files for later."
        ) from error
    return str(made)


def without_paths(values: Any, key: str = "") -> Any:
    """The same values; of what names a file of this machine only the last part."""
    if isinstance(values, dict):
        return {name: without_paths(value, str(name)) for name, value in values.items()}
    if isinstance(values, list):
        return [without_paths(value, key) for value in values]
    return bare(values) if isinstance(values, str) and key in NAMING else values


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _check_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise FedstillError(f"{repository!r} is no name on the Hub ({error}).") from error
    if repository.count("/") != 1:
        raise FedstillError(f"{repository!r}: give user/name, or organisation/name.")
