"""Where a model may be fetched from: mirrors in the order they are configured, its own registry last.

A mirror serves the same addresses below another base. `RSLLM_REGISTRY_MIRRORS` stands before the default registry, an
entry `host=address` before that host; `HF_ENDPOINT` before hf.co and huggingface.co. Whoever answers first decides
which manifest a tag means; which bytes a blob has is decided by its digest, whoever sends them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from rsllm.errors import AddressRefusedError, OptionError
from rsllm.registry.settings import RegistrySettings
from rsllm.store.digest import Digest
from rsllm.store.name import DEFAULT_HOST, ModelName

__all__ = ["HUB_HOSTS", "Endpoint", "endpoints", "own_endpoint"]

HUB_HOSTS = ("hf.co", "huggingface.co")
_DEFAULT_SCHEME = "https"


@dataclass(frozen=True)
class Endpoint:
    """One place that may have a model: `site` is scheme and host, and the path that a mirror adds.

    `files` leads from digests to addresses of their own, for blobs that are not below `/v2`.
    """

    site: str
    namespace: str
    model: str
    mirror: bool = False
    files: dict[Digest, str] = field(default_factory=dict, hash=False)

    @property
    def base(self) -> str:
        """`{site}/v2/{namespace}/{model}`."""
        return f"{self.site}/v2/{self.namespace}/{self.model}"

    def manifest(self, tag: str) -> str:
        """The address of a manifest."""
        return f"{self.base}/manifests/{tag}"

    def blob(self, digest: Digest) -> str:
        """The address of a blob."""
        return self.files.get(digest) or f"{self.base}/blobs/{digest}"

    def with_files(self, files: dict[Digest, str]) -> Endpoint:
        """The same place, with these blobs elsewhere on it."""
        return replace(self, files=files)


def own_endpoint(name: ModelName, *, insecure: bool) -> Endpoint:
    """The registry that the name itself says; raises `AddressRefusedError` for http where that was not allowed."""
    if name.scheme == "http" and not insecure:
        raise AddressRefusedError("insecure protocol http", hint="allow it with --insecure, or write https://")
    scheme = "http" if insecure else _DEFAULT_SCHEME
    return Endpoint(f"{scheme}://{name.host}", name.namespace, name.model)


def endpoints(name: ModelName, settings: RegistrySettings, *, insecure: bool) -> list[Endpoint]:
    """All places to ask for a model, in order; raises `AddressRefusedError`, `OptionError` naming a bad variable."""
    own = own_endpoint(name, insecure=insecure)
    host = name.host.lower()
    sites = [site for where, site in map(_mirror, settings.mirrors) if where == host]
    if settings.hf_endpoint and host in HUB_HOSTS:
        sites.append(_site("HF_ENDPOINT", settings.hf_endpoint))
    mirrors = [Endpoint(site, name.namespace, name.model, mirror=True) for site in sites if site != own.site]
    return [*dict.fromkeys(mirrors), own]


def _mirror(entry: str) -> tuple[str, str]:
    """The host that an entry stands before, and its address."""
    host, separator, address = entry.partition("=")
    if not separator or "://" in host:
        host, address = DEFAULT_HOST, entry
    return host.strip().lower(), _site("RSLLM_REGISTRY_MIRRORS", address.strip())


def _site(variable: str, address: str) -> str:
    text = address if "://" in address else f"{_DEFAULT_SCHEME}://{address}"
    try:
        parsed = urlsplit(text)
        valid = (
            parsed.scheme in ("http", "https") and bool(parsed.hostname) and not parsed.username and not parsed.query
        )
        _ = parsed.port  # raises where it is none
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"{variable}: {address!r} is not an http or https address", name=variable)
    return text.rstrip("/")
