"""Proof that a person at this machine typed the name of a model.

A name may lead to a private address, or to a file, where its user typed it, and not where a page or a program passed it
on to the server. The command line proves that by a signature with a key that stands in the user's state folder and that
nobody else can read; the server of the same user knows the key. A server of another user does not, and there
`RSLLM_PRIVATE_REGISTRIES` decides alone.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import time
from pathlib import Path

from rsllm.config import config

__all__ = ["HEADER", "is_typed", "signature"]

HEADER = "x-rsllm-typed"
"""The header of a request that carries the signature."""

_KEY_BYTES = 32
_VALID_SECONDS = 300


def signature(path: str, model: str) -> str | None:
    """The value of the header for a request to `path` about `model`; `None` where no key can be kept."""
    try:
        key = _key(create=True)
    except OSError:  # no place to write to: then nothing is proved
        return None
    now = str(int(time.time()))
    return f"{now}:{_sign(key, now, path, model)}" if key else None


def is_typed(value: str | None, path: str, model: str) -> bool:
    """Whether the header of a request proves that this server's user typed the name, a moment ago."""
    when, _, signed = (value or "").partition(":")
    if not signed or not when.isascii() or not when.isdigit() or abs(time.time() - int(when)) > _VALID_SECONDS:
        return False
    try:
        key = _key(create=False)
    except OSError:
        return False
    return bool(key) and hmac.compare_digest(signed.encode(), _sign(key, when, path, model).encode())


def _sign(key: bytes, when: str, path: str, model: str) -> str:
    return hmac.new(key, "\n".join((when, path, model)).encode(errors="surrogatepass"), "sha256").hexdigest()


def _key(*, create: bool) -> bytes:
    """The key, made where it is missing; empty where there is none, or others might know it."""
    path = config().state_dir / "typed.key"
    if create and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            return b""
        key = file.read(_KEY_BYTES + 1)
    return key if len(key) == _KEY_BYTES else b""


def _make(path: Path) -> None:
    """Written beside its place and linked there, so that of two commands at once one makes it, and whole."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()
