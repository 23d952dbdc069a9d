"""Split models of hf.co: which files a tag means, and what is not believed of a listing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rsllm.errors import DownloadError, ModelNotFoundError, RegistryError
from rsllm.registry import hub
from rsllm.registry.client import RegistryClient
from rsllm.registry.endpoints import Endpoint
from rsllm.store.digest import Digest
from rsllm.store.name import ModelName
from tests.support.hostile_registry import HostileRegistry
from tests.support.registry import quick

SHA = "0123456789abcdef0123456789abcdef01234567"


def found(*stems: str, count: int = 2) -> hub.Listing:
    shards = [
        hub.Shard(f"{stem}-{number:05}-of-{count:05}.gguf", Digest.of(f"{stem}{number}".encode()), number)
        for stem in stems
        for number in range(count, 0, -1)
    ]
    return hub.Listing(SHA, tuple(shards), ())


@pytest.mark.parametrize(
    ("tag", "stem"),
    [
        ("Q4_K_M", "big-Q4_K_M"),
        ("q4_k_m", "big-Q4_K_M"),
        ("Q8_0", "Q8_0/big-Q8_0"),
        ("BF16", "BF16/big"),
        ("latest", "big-Q4_K_M"),
        ("big-Q4_K_M-00002-of-00002.gguf", "big-Q4_K_M"),
        ("big-Q4_K_M.gguf", "big-Q4_K_M"),
    ],
)
def test_a_tag_means_a_quantisation_or_a_file(tag: str, stem: str) -> None:
    shards = hub.choose(found("big-Q4_K_M", "big-UD-Q4_K_M", "big-Q4_K_M_L", "Q8_0/big-Q8_0", "BF16/big"), tag)
    assert [shard.path for shard in shards] == [f"{stem}-00001-of-00002.gguf", f"{stem}-00002-of-00002.gguf"]
    assert shards[0].name == f"{stem.rpartition('/')[2]}-00001-of-00002.gguf"


def test_without_a_usual_quantisation_latest_is_the_first() -> None:
    assert hub.choose(found("big-IQ2_XS", "big-IQ1_S"), "latest")[0].path.startswith("big-IQ1_S")


def test_a_tag_that_is_not_there_says_what_is() -> None:
    with pytest.raises(ModelNotFoundError, match="no split model 'Q5_K_M'") as caught:
        hub.choose(found("big-Q4_K_M"), "Q5_K_M")
    assert caught.value.hint == "there are: big-Q4_K_M"
    with pytest.raises(ModelNotFoundError):
        hub.choose(hub.Listing(SHA, (), ()), "latest")


def test_missing_shards_are_named() -> None:
    listing = found("big-Q4_K_M", count=3)
    lacking = hub.Listing(SHA, tuple(shard for shard in listing.shards if "00002" not in shard.path), ())
    with pytest.raises(DownloadError, match="has 3 shards, and the repository lacks 2"):
        hub.choose(lacking, "latest")


def test_a_file_is_taken_from_the_revision_that_was_listed() -> None:
    place = Endpoint("https://hf.co", "org", "repo")
    address = found().address(place, "a b/ü-00001-of-00002.gguf")
    assert address == f"https://hf.co/org/repo/resolve/{SHA}/a%20b/%C3%BC-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("host", "status", "text", "split"),
    [
        ("hf.co", 400, "400: The specified tag is a sharded GGUF.", True),
        ("huggingface.co", 400, "400: sharded", True),
        ("hf.co", 404, "404: sharded", False),
        ("hf.co", 400, "400: something else", False),
        ("other.test", 400, "400: sharded", False),
    ],
)
def test_only_the_refusal_of_split_models_leads_here(host: str, status: int, text: str, split: bool) -> None:
    assert hub.is_split(ModelName.parse(f"{host}/a/b"), RegistryError(text, status=status)) is split


def entry(path: str = "m-00001-of-00001.gguf", **lfs: Any) -> dict[str, Any]:
    return {"rfilename": path, "lfs": {"sha256": "a" * 64, "size": 7, **lfs}}


async def listed(body: bytes, folder: Path) -> hub.Listing:
    with HostileRegistry() as registry:
        registry.tricks["other"] = lambda exchange: exchange.answer(200, body)
        async with RegistryClient(quick(folder), trusted=(registry.url,)) as client:
            return await hub.listing(client, Endpoint(registry.url, "a", "b"))


async def test_a_listing(tmp_path: Path) -> None:
    files = [entry(), entry("x/../y-00001-of-00001.gguf"), {"rfilename": "template"}, {"rfilename": "README.md"}]
    answer = await listed(json.dumps({"sha": SHA, "siblings": files}).encode(), tmp_path)
    assert answer == hub.Listing(SHA, (hub.Shard("m-00001-of-00001.gguf", Digest("a" * 64), 7),), ("template",))


@pytest.mark.parametrize(
    "damage",
    [
        lambda answer: answer.update(sha="../../x"),
        lambda answer: answer.pop("siblings"),
        lambda answer: answer["siblings"].append({"rfilename": 7}),
        lambda answer: answer["siblings"].append(entry(sha256="../../x")),
        lambda answer: answer["siblings"].append(entry(size=-1)),
        lambda answer: answer["siblings"].append({"rfilename": "m-00001-of-00001.gguf"}),
    ],
)
async def test_a_listing_that_makes_no_sense(damage: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    answer: dict[str, Any] = {"sha": SHA, "siblings": [entry()]}
    damage(answer)
    with pytest.raises(RegistryError, match="makes no sense"):
        await listed(json.dumps(answer).encode(), tmp_path)


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{" * 9999])
async def test_a_listing_that_is_none(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="makes no sense"):
        await listed(body, tmp_path)
