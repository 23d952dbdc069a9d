"""Connections that go where the check was made.

`PinnedTransport` resolves a host, has the addresses checked, and connects to one of those very addresses, with the
host's own name in the `Host` header and in TLS. The HTTP library never resolves a name, so there is no second answer
of the resolver to be fooled by. Each host and address has a connection pool of its own: a connection whose
certificate was checked for one name never serves another.

Proxies of the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) are used for everything but
loopback. A proxy does the resolving, so there the check covers literal addresses and whatever this machine's own
resolver knows. Certificates come from the system, or from `SSL_CERT_FILE` or `SSL_CERT_DIR`.
"""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import httpx2

from rsllm.errors import DownloadError, RegistryError
from rsllm.registry.addresses import AddressRules, resolve
from rsllm.registry.settings import Resolver

__all__ = ["PinnedTransport", "network_errors"]

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=32)


class PinnedTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport under `rules`.

    `resolver` takes the place of the system's; `proxies` (scheme to address, and `no`) that of the environment's.
    Transports that are given the same `certificates` read the system's once, and only when one of them needs them.
    """

    def __init__(
        self,
        rules: AddressRules,
        *,
        resolver: Resolver | None = None,
        proxies: Mapping[str, str] | None = None,
        certificates: list[ssl.SSLContext] | None = None,
    ) -> None:
        self._rules = rules
        self._resolver = resolver or resolve
        self._proxies = dict(urllib.request.getproxies() if proxies is None else proxies)
        self._certificates = [] if certificates is None else certificates
        self._pools: dict[tuple[str, str, bool], httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, port = request.url.host, request.url.port or {"http": 80, "https": 443}[request.url.scheme]
        proxy = self._proxy(request.url.scheme, host, port)
        if proxy is not None:
            await self._check_behind_proxy(host, port)
            return await self._pool("proxy", proxy, secure=True, proxy=proxy).handle_async_request(request)
        addresses = self._rules.check(host, port, await self._resolve(host, port))
        for address in addresses[:-1]:
            try:
                return await self._send(request, host, address)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing was sent yet: the next address may answer
        return await self._send(request, host, addresses[-1])

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()

    async def _send(self, request: httpx2.Request, host: str, address: str) -> httpx2.Response:
        pinned = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,  # `Host` is among them, and names the host
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        secure = request.url.scheme == "https"
        return await self._pool(host, address, secure=secure).handle_async_request(pinned)

    async def _resolve(self, host: str, port: int) -> list[str]:
        if _is_address(host):
            return [host]
        try:
            addresses = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"the name {host} cannot be resolved: {error}") from error
        if not addresses:
            raise httpx2.ConnectError(f"the name {host} has no address")
        return addresses

    async def _check_behind_proxy(self, host: str, port: int) -> None:
        try:
            addresses = await self._resolve(host, port)
        except httpx2.ConnectError:
            return  # behind many proxies only the proxy can resolve names
        self._rules.check(host, port, addresses)

    def _proxy(self, scheme: str, host: str, port: int) -> str | None:
        proxy = self._proxies.get(scheme) or self._proxies.get("all")
        if not proxy or host == "localhost" or (_is_address(host) and ip_address(host).is_loopback):
            return None
        if urllib.request.proxy_bypass_environment(f"{host}:{port}", self._proxies):  # type: ignore[attr-defined]
            return None
        return proxy if "://" in proxy else f"http://{proxy}"

    def _pool(self, name: str, address: str, *, secure: bool, proxy: str | None = None) -> httpx2.AsyncHTTPTransport:
        pool = self._pools.get((name, address, secure))
        if pool is None:
            pool = httpx2.AsyncHTTPTransport(verify=self._verify() if secure else False, limits=_LIMITS, proxy=proxy)
            self._pools[name, address, secure] = pool
        return pool

    def _verify(self) -> ssl.SSLContext:
        if not self._certificates:
            self._certificates.append(_tls_context())
        return self._certificates[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _tls_context() -> ssl.SSLContext:
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        raise RegistryError(
            f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {error}",
            hint="name a file of certificates in PEM format, or unset the variable",
        ) from error


@contextmanager
def network_errors(url: str) -> Iterator[None]:
    """Turn what the HTTP library raises into a `DownloadError` that names the address and, for TLS, the reason."""
    where = _origin(url)
    try:
        yield
    except httpx2.TimeoutException as error:
        raise DownloadError(f"{where} did not answer in time", hint="try again; what came so far is kept") from error
    except httpx2.ProxyError as error:
        raise DownloadError(f"the proxy refused to connect to {where}: {error}") from error
    except httpx2.TransportError as error:
        if (reason := _certificate_problem(error)) is not None:
            raise RegistryError(
                f"the certificate of {where} was refused: {reason}",
                hint="if network or registry have a certificate authority of their own, name its file in SSL_CERT_FILE",
            ) from error
        raise DownloadError(f"no connection to {where}: {error or type(error).__name__}") from error
    except httpx2.InvalidURL as error:
        raise RegistryError(f"{url[:200]!r} is not an address: {error}") from error


def _certificate_problem(error: BaseException | None) -> str | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message or str(error)
        error = error.__cause__ or error.__context__
    return None


def _origin(url: str) -> str:
    """Scheme, host and port, without what may be secret in the rest."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.host}" + (f":{parsed.port}" if parsed.port else "")
