"""Signing in at a registry: from a 401 with a challenge to a bearer token.

    WWW-Authenticate: Bearer realm="https://registry.example/token",service="registry",scope="repository:a/b:pull"

The answer is a GET of the realm whose address is signed with the user's key. A challenge is the registry's word and
may be hostile, so the realm must be on the registry's own host and port, over the same or a better scheme; a token
goes nowhere else either.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, quote_plus, urlsplit, urlunsplit

from rsllm.errors import RegistryAuthError, RegistryError
from rsllm.registry.keys import Key

__all__ = ["Challenge", "default_port", "token_request"]

_PARAMETER = re.compile(r'([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_MAX_CHALLENGE = 8192
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Challenge:
    """A parsed `WWW-Authenticate: Bearer …`."""

    realm: str
    service: str
    scope: str

    @classmethod
    def parse(cls, header: str) -> Challenge:
        """Raises `RegistryAuthError` where it is missing or of another kind."""
        scheme, _, rest = header[:_MAX_CHALLENGE].strip().partition(" ")
        if scheme.lower() != "bearer":
            asked = f"the registry asks for {scheme}" if scheme else "the registry does not say what it asks for"
            raise RegistryAuthError("unauthorized: access denied", hint=f"{asked}; only Bearer tokens are supported")
        found = {match[1].lower(): _unquoted(match[2], match[3]) for match in _PARAMETER.finditer(rest)}
        if not found.get("realm"):
            raise RegistryAuthError("unauthorized: access denied", hint="the registry's challenge names no realm")
        return cls(found["realm"], found.get("service", ""), found.get("scope", ""))


def _unquoted(quoted: str | None, plain: str | None) -> str:
    return re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain or ""


def token_request(
    challenge: Challenge, registry_url: str, key: Callable[[], Key], *, now: Callable[[], float] = time.time
) -> tuple[str, str]:
    """Address and `Authorization` header of the request for a token.

    `key` is called once the realm has passed, so that a hostile challenge has no key made. Raises `RegistryError`.
    """
    realm, registry = urlsplit(challenge.realm), urlsplit(registry_url)
    _check_realm(realm, registry)
    # Sorted by name, as the registry rebuilds the address to check the signature.
    query = [("nonce", base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="))]
    query += [("scope", scope) for scope in challenge.scope.split()]
    query += [("service", challenge.service), ("ts", str(int(now())))]
    encoded = "&".join(f"{name}={quote_plus(value)}" for name, value in query)
    url = urlunsplit((realm.scheme, realm.netloc, realm.path, encoded, ""))
    empty_body = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
    return url, key().authorization(f"GET,{url},{empty_body}".encode())


def _check_realm(realm: SplitResult, registry: SplitResult) -> None:
    if realm.scheme not in _PORTS or not realm.hostname:
        raise RegistryError(f"the registry's realm {realm.geturl()!r} is not an http address")
    if (realm.hostname, default_port(realm)) != (registry.hostname, default_port(registry)):
        raise RegistryError(
            f'realm host "{realm.netloc}" does not match original host "{registry.netloc}"',
            hint="credentials are sent to the registry's own host alone",
        )
    if registry.scheme == "https" and realm.scheme != "https":
        raise RegistryError(f"the registry's realm {realm.geturl()!r} would send credentials unencrypted")


def default_port(url: SplitResult) -> int | None:
    """The port of an address, or that of its scheme; raises `RegistryError` for a port that is none."""
    try:
        return url.port or _PORTS.get(url.scheme)
    except ValueError:
        raise RegistryError(f"the address {url.geturl()!r} has no valid port") from None
