"""The ed25519 key by which registries know a user: `~/.ollama/id_ed25519`, in OpenSSH's format, as Ollama keeps it.

Made when a registry first asks for it and there is none: the private half readable by its owner alone (0600), the
public half beside it with `.pub` (0644). Two processes that make it at once end with one key. What is sent is the
public key and a signature, never the key.
"""

from __future__ import annotations

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rsllm.errors import RegistryError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Key", "load_or_create"]

_MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class Key:
    """A private key; `public` is the second field of the line in its `.pub` file."""

    public: str
    _private: Ed25519PrivateKey

    def authorization(self, signed: bytes) -> str:
        """What goes into the `Authorization` header: the public key, a colon, the signature of `signed`."""
        return f"{self.public}:{base64.b64encode(self._private.sign(signed)).decode()}"


def load_or_create(path: Path) -> Key:
    """The key at `path`, made if it is absent; raises `RegistryError` for a file that is no ed25519 key."""
    try:
        return _load(path)
    except FileNotFoundError:
        _create(path)
        return _load(path)


def _load(path: Path) -> Key:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    try:
        private = load_ssh_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RegistryError(
            f"the key {path} cannot be read: {error}",
            hint="it must be an OpenSSH ed25519 key without a passphrase; move it away to have a new one made",
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise RegistryError(f"the key {path} is not an ed25519 key", hint="move it away to have a new one made")
    return Key(_public_line(private).split()[1], private)


def _create(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        _write(temporary, text, 0o600)
        try:
            os.link(temporary, path)  # unlike a rename, this never replaces the key of another process
        except FileExistsError:
            return
    finally:
        temporary.unlink(missing_ok=True)
    public = path.with_name(path.name + ".pub")
    public.unlink(missing_ok=True)
    _write(public, (_public_line(private) + "\n").encode(), 0o644)


def _public_line(private: Ed25519PrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
