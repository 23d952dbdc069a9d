"""Split models of hf.co, which its registry refuses: the files themselves, made into one model here.

hf.co speaks the registry protocol, but answers 400 for a model that is cut into several GGUF files. Its own interface
lists the files of a repository with their SHA-256, so they are fetched as blobs are, by digest, and joined into one
GGUF, which both programs run. The listing names a revision, and all files are taken from that one.

The shards are removed once they are joined; a pull that is cut short before that goes on with what it has.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rsllm.errors import DigestError, DownloadError, ModelNotFoundError, RegistryError
from rsllm.registry.client import RegistryClient, check_answer
from rsllm.registry.endpoints import HUB_HOSTS, Endpoint
from rsllm.store.digest import Digest
from rsllm.store.manifest import Layer, MediaType
from rsllm.store.name import DEFAULT_TAG, ModelName

__all__ = ["Listing", "Shard", "choose", "is_split", "listing", "texts"]

_LISTING_BYTES = 16 * 2**20
_TEXT_BYTES = 2**20
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.ASCII)
_PREFERRED = ("q4_k_m", "q4_k_s", "q4_0", "q8_0", "f16", "bf16")
"""What `latest` means where there is a choice: hf.co's own first choice, then its neighbours."""
_TEXTS = {"template": MediaType.TEMPLATE, "system": MediaType.SYSTEM, "params": MediaType.PARAMS}
_REVISION = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Shard:
    """One file of a split model: `path` in the repository, `name` its last part, `size` in bytes."""

    path: str
    digest: Digest
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def layer(self) -> Layer:
        """What a manifest would say of it."""
        return Layer(MediaType.MODEL, self.digest, self.size)


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one revision; `texts` are those of `template`, `system` and `params` it has."""

    revision: str
    shards: tuple[Shard, ...]
    texts: tuple[str, ...]

    def address(self, place: Endpoint, path: str) -> str:
        """Where a file is."""
        return f"{place.site}/{place.namespace}/{place.model}/resolve/{self.revision}/{quote(path)}"


def is_split(name: ModelName, error: RegistryError) -> bool:
    """Whether a registry refused `name` because it is a split model."""
    return error.status == 400 and name.host.lower() in HUB_HOSTS and "shard" in str(error).lower()


async def listing(client: RegistryClient, place: Endpoint) -> Listing:
    """Ask for the files of a repository; raises `DownloadError`, `ModelNotFoundError`."""
    url = f"{place.site}/api/models/{place.namespace}/{place.model}?blobs=true"
    status, body = await client.read("GET", url, registry=place.site, limit=_LISTING_BYTES)
    if status == 404:
        raise ModelNotFoundError(f"there is no repository {place.namespace}/{place.model} at {place.site}")
    check_answer(status, body, f"list the files of {place.namespace}/{place.model}")
    try:
        answer = json.loads(body)
        revision, entries = answer["sha"], answer["siblings"]
        paths = [entry["rfilename"] for entry in entries]
        if not _REVISION.fullmatch(revision) or not all(isinstance(path, str) for path in paths):
            raise ValueError("no revision")
        shards = [_shard(path, entry) for path, entry in zip(paths, entries, strict=True) if _is_shard(path)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DigestError) as error:
        raise RegistryError(f"the list of files of {place.namespace}/{place.model} makes no sense: {error}") from None
    return Listing(revision, tuple(shards), tuple(path for path in _TEXTS if path in paths))


def _is_shard(path: str) -> bool:
    return _SHARD.fullmatch(path) is not None and ".." not in path.split("/")


def _shard(path: str, entry: dict[str, Any]) -> Shard:
    lfs = entry["lfs"]
    size = lfs["size"]
    if type(size) is not int or size <= 0:
        raise ValueError(f"{path} has no size")
    return Shard(path, Digest.parse(f"sha256:{lfs.get('sha256') or lfs.get('oid')}"), size)


def choose(found: Listing, tag: str) -> list[Shard]:
    """The shards of the model that `tag` means, in order: a quantisation, or the name of one of the files.

    Raises `ModelNotFoundError` where there is none or several, `DownloadError` where shards are missing.
    """
    models: dict[tuple[str, int], dict[int, Shard]] = {}
    for shard in found.shards:
        match = _SHARD.fullmatch(shard.path)
        if match is not None:
            models.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = shard
    stem, count = _matching(list(models), tag)
    shards = models[stem, count]
    missing = [number for number in range(1, count + 1) if number not in shards]
    if missing or len(shards) != count:
        raise DownloadError(f"{stem} has {count} shards, and the repository lacks {', '.join(map(str, missing))}")
    return [shards[number] for number in range(1, count + 1)]


def _matching(models: list[tuple[str, int]], tag: str) -> tuple[str, int]:
    wanted = tag.lower()
    if shard := _SHARD.fullmatch(tag):
        wanted = shard["stem"].lower()
    tags = _PREFERRED if wanted == DEFAULT_TAG else (wanted.removesuffix(".gguf"),)
    for candidate in tags:
        word = re.compile(rf"(^|[-_./]){re.escape(candidate)}($|[-_./])")
        for whole in (False, True):  # the name of the file says more than that of its folder
            fitting = [model for model in models if word.search(_searched(model[0], whole))]
            if fitting:
                return min(fitting, key=lambda model: (len(model[0]), model))
    if wanted == DEFAULT_TAG and models:
        return min(models)
    there = ", ".join(sorted(stem for stem, _ in models)[:20]) or "none"
    raise ModelNotFoundError(f"the repository has no split model {tag!r}", hint=f"there are: {there}")


def _searched(stem: str, whole: bool) -> str:
    return (stem if whole else stem.rpartition("/")[2]).lower()


async def texts(client: RegistryClient, place: Endpoint, found: Listing) -> dict[str, bytes]:
    """The files beside the model that say how to use it, by the media types of their layers."""
    layers: dict[str, bytes] = {}
    for path in found.texts:
        url, what = found.address(place, path), f"{path} of {place.namespace}/{place.model}"
        status, body = await client.read("GET", url, registry=place.site, limit=_TEXT_BYTES)
        check_answer(status, body, what)
        try:
            body.decode()
            if path == "params" and not isinstance(json.loads(body), dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{what} cannot be read: {error}") from None
        layers[_TEXTS[path]] = body
    return layers
