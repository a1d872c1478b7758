"""Fetching a file from the network: only when asked, completely or not at all, and never unverified."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import uuid
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from warpgrad.errors import WarpgradError, require

_CHUNK = 1 << 18
_TIMEOUT = 60.0


def download(
    url: str, sha256: str, destination: Path, progress: Callable[[int, int | None], None] | None = None
) -> Path:
    """Fetch `url` to `destination`, unless a file with that checksum is already there.

    `progress(bytes so far, bytes in all or None)` is called as data arrives. Data that does not match `sha256` is
    discarded; an existing file at `destination` is only ever replaced by a verified one.
    """
    require(url.startswith(("https://", "http://")), f"{url} is not a web address: only http and https work.")
    if destination.is_file():
        with destination.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return destination
    partial = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}.partial")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        found = _fetch(url, partial, progress)
        require(
            found == sha256,
            f"the file from {url} has the checksum {found} instead of {sha256} and was discarded; "
            f"try again, or download it by hand to {destination}.",
        )
        partial.replace(destination)
    except (OSError, HTTPException) as failure:
        raise WarpgradError(
            f"{url} could not be downloaded ({failure}): try again, or download it by hand to {destination}."
        ) from failure
    finally:
        partial.unlink(missing_ok=True)
    return destination


def _fetch(url: str, partial: Path, progress: Callable[[int, int | None], None] | None) -> str:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, partial.open("xb") as file:
        length = answer.headers.get("Content-Length") or ""
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            if progress is not None:
                progress(file.tell(), int(length) if length.isdigit() else None)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
