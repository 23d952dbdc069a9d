"""Which network addresses may be reached.

A name in a pull, and every redirect that follows, may point into the machine or the network it stands in: to another
service on loopback, to a router, to the metadata address of a cloud. Such addresses are refused unless the user's
own words allow them: the registry that was typed, a mirror that was configured, or an entry of
`RSLLM_PRIVATE_REGISTRIES`, which is a comma list of hosts, `host:port`, addresses and networks (`10.0.0.0/8`).

The check is on the address that will be connected to, never on the name, so a name that resolves to something else
a moment later gains nothing: `rsllm.registry.transport` connects to what was checked here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from rsllm.errors import AddressRefusedError, OptionError

__all__ = ["AddressRules", "is_public", "resolve", "split_host"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Addresses that carry an IPv4 address inside; what they lead to is what counts.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")


class AddressRules:
    """What may be reached beyond the public network.

    `allowed` are entries as in `RSLLM_PRIVATE_REGISTRIES`; raises `OptionError` for one that makes no sense.
    `trusted` are origins `(host, port)` that the user named.
    """

    def __init__(self, allowed: Iterable[str] = (), trusted: Iterable[tuple[str, int]] = ()) -> None:
        self._trusted = {(host.lower(), port) for host, port in trusted}
        self._hosts: set[tuple[str, int | None]] = set()
        self._networks: list[_Network] = []
        for entry in allowed:
            self._allow(entry.strip())

    def _allow(self, entry: str) -> None:
        if not entry:
            return
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            return
        except ValueError:
            if "/" in entry:
                raise OptionError(
                    f"RSLLM_PRIVATE_REGISTRIES: {entry!r} is neither a host nor a network",
                    name="RSLLM_PRIVATE_REGISTRIES",
                    hint="write host, host:port, an address, or a network such as 10.0.0.0/8",
                ) from None
        self._hosts.add(split_host(entry))

    def check(self, host: str, port: int, addresses: Iterable[str]) -> list[str]:
        """Those of `addresses`, to which `host` resolved, that may be reached; `AddressRefusedError` if none may."""
        host = host.lower()
        if (host, port) in self._trusted or {(host, port), (host, None)} & self._hosts:
            return list(addresses)
        found = [(text, _address(text)) for text in addresses]
        allowed = [text for text, address in found if self._reachable(address)]
        if not allowed:
            shown = ", ".join(text for text, _ in found) or "no address"
            where = f"{host}:{port}" if shown == host else f"{host}:{port} leads to {shown}, which"
            raise AddressRefusedError(
                f"{where} is a private address and was refused",
                hint=f"to allow it, start the server with RSLLM_PRIVATE_REGISTRIES={host}:{port}",
            )
        return allowed

    def _reachable(self, address: _Address | None) -> bool:
        if address is None:
            return False
        return is_public(address) or any(
            address.version == network.version and address in network for network in self._networks
        )


def is_public(address: _Address) -> bool:
    """Whether an address belongs to the public network, looking into addresses that embed another one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64_LOCAL:
            return False
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(inner)
        if address.scope_id or address.is_site_local or int(address) >> 32 == 0:  # `::a.b.c.d`, loopback, unspecified
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def split_host(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `::1` and `[::1]:port` as host in lower case and port, if there is one."""
    text = text.lower()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    return host, int(port) if port.isascii() and port.isdigit() else None


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host by the system's resolver, each once, in its order; raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
