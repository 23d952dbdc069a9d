"""OLLAMA_HOST in all its forms: where a server listens, and where clients ask.

`[scheme://][host][:port][/path]`. Without a scheme it is http on port 11434; with one, the port is the scheme's own.
IPv6 addresses stand bare or in brackets.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from rsllm.errors import OptionError

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "Address"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 11434
_PORTS = {"http": 80, "https": 443}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Beyond it no host name is valid, and a mistake is not to be echoed whole.
_SHOWN = 100


@dataclass(frozen=True)
class Address:
    """A scheme, a host without brackets, a port, and a path without a slash at its end."""

    scheme: str = "http"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address; raises `OptionError` naming OLLAMA_HOST.

        >>> Address.parse(":8080").url, Address.parse("https://example.com/ollama").url, Address.parse("::1").url
        ('http://127.0.0.1:8080', 'https://example.com:443/ollama', 'http://[::1]:11434')
        """
        text = text.strip()
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = "http", text
        scheme = scheme.lower()
        if scheme not in _PORTS:
            raise _invalid(text, f"the scheme {scheme[:20]!r} is neither http nor https")
        authority, slash, path = rest.partition("/")
        if authority.lower() == "ollama.com" and not separator:
            return cls("https", "ollama.com", 443)
        host, port = _split(text, authority)
        default = _PORTS[scheme] if separator else DEFAULT_PORT
        return cls(scheme, host or DEFAULT_HOST, default if port is None else port, (slash + path).rstrip("/"))

    @property
    def url(self) -> str:
        """As the base of requests."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def for_client(self) -> Address:
        """Where to ask: an address that listens everywhere is reached on this machine."""
        return Address(self.scheme, _EVERYWHERE.get(self.host, self.host), self.port, self.path)

    def __str__(self) -> str:
        return self.url


def _split(text: str, authority: str) -> tuple[str, int | None]:
    """Host and port of an authority."""
    if _is_ipv6(authority):  # bare, so its colons begin no port
        return authority, None
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _invalid(text, str(error)) from None
    if parts.username is not None or parts.query or parts.fragment or any(blank in authority for blank in " \t\\"):
        raise _invalid(text, "only a scheme, a host, a port and a path may stand in it")
    return host, port


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _invalid(text: str, reason: str) -> OptionError:
    return OptionError(
        f"OLLAMA_HOST is no address: {text[:_SHOWN]!r}: {reason}",
        name="OLLAMA_HOST",
        hint="write it as host:port or http://host:port",
    )
