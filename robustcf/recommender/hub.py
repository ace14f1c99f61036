"""``push`` and ``pull``: a recommender in a repository of the Hugging Face hub."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf.errors import DownloadError, InputError
from robustcf.recommender.saved import open_recommender

if TYPE_CHECKING:
    from robustcf.recommender.recommender import Recommender

_FILES = ("*.json", "*.safetensors", "*.npz")


def push(model: Recommender, repository: str, card: str, **options: Any) -> str:
    """Upload a recommender and its card, see :meth:`Recommender.push`; return the address."""
    kept = ("include_interactions", "include_test")
    saving = {name: options.pop(name) for name in kept if name in options}
    hub, errors = _hub()
    client = hub.HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    with tempfile.TemporaryDirectory() as folder:
        place = model.save(Path(folder) / "model", **saving)
        (place / "README.md").write_text(card, encoding="utf-8")
        try:
            client.create_repo(repository, private=options["private"], exist_ok=True)
            done = client.upload_folder(
                repo_id=repository, folder_path=place, commit_message="Upload a recommender"
            )
        except errors as error:
            raise DownloadError(f"{repository}: the upload failed ({error})") from error
    return str(done)


def pull(
    repository: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_dir: str | Path | None = None,
) -> Recommender:
    """Return a recommender from a repository of the Hugging Face hub; nothing in it is run.

    Args:
        repository: ``owner/name``.
        revision: a branch, tag or commit; None for the newest.
        token: of a private repository; None for the one that is logged in.
        endpoint: another server; None for the hub, or ``HF_ENDPOINT``.
        cache_dir: where files are kept; None for the library's own cache.

    Raises:
        DownloadError: the repository cannot be reached or read.
        InputError: it does not hold a saved recommender.
    """
    hub, errors = _hub()
    try:
        folder = hub.snapshot_download(
            repository,
            revision=revision,
            token=token,
            endpoint=endpoint,
            cache_dir=cache_dir,
            allow_patterns=list(_FILES),
        )
    except errors as error:
        raise DownloadError(f"{repository}: the download failed ({error})") from error
    # The cache holds links, which saved recommenders may not have.
    with tempfile.TemporaryDirectory() as copy:
        for pattern in _FILES:
            for path in Path(folder).glob(pattern):
                (Path(copy) / path.name).write_bytes(path.read_bytes())
        return open_recommender(copy)


def _hub() -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        hub: Any = importlib.import_module("huggingface_hub")  # an extra
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        words = "huggingface_hub is not installed: pip install 'robustcf[hub]'"
        raise InputError(words) from error
    return hub, (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError)
