"""Manifests: kept as they came, written as Ollama writes them, and refused by field when damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsllm.errors import ManifestError
from rsllm.store.digest import Digest
from rsllm.store.manifest import MANIFEST_LIMIT, Layer, Manifest, MediaType, mentioned_digests

DIGEST = "sha256:" + "ab" * 32
LAYER = {"mediaType": MediaType.MODEL, "digest": DIGEST, "size": 5}

LAYERS = st.builds(
    Layer,
    media_type=st.sampled_from([MediaType.MODEL, MediaType.TENSOR, MediaType.LICENSE]) | st.text(max_size=20),
    digest=st.binary(max_size=4).map(Digest.of),
    size=st.integers(0, 2**63 - 1),
    from_=st.none() | st.text(min_size=1, max_size=20),
    name=st.none() | st.text(min_size=1, max_size=20),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def raw(**changes: Any) -> bytes:
    value = {"schemaVersion": 2, "mediaType": MediaType.MANIFEST, "config": LAYER, "layers": [LAYER], **changes}
    return json.dumps(value).encode()


@given(st.none() | LAYERS, st.lists(LAYERS, max_size=4))
def test_what_is_built_reads_as_itself(config: Layer | None, layers: list[Layer]) -> None:
    built = Manifest.build(config, layers)
    assert Manifest.parse(built.raw) == built
    assert built.size == sum(layer.size for layer in (*layers, *([config] if config else [])))
    assert built.digests <= mentioned_digests(built.raw)


def test_the_bytes_are_those_that_ollama_writes() -> None:
    config = Layer(MediaType.CONFIG, Digest.of(b"{}"), 2)
    model = Layer(MediaType.MODEL, Digest.of(b"w"), 1, from_="/a<b>&c\u2028")
    assert Manifest.build(config, [model]).raw == (
        b'{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
        b'"config":{"mediaType":"application/vnd.docker.container.image.v1+json",'
        b'"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},'
        b'"layers":[{"mediaType":"application/vnd.ollama.image.model",'
        b'"digest":"sha256:50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326","size":1,'
        b'"from":"/a\\u003cb\\u003e\\u0026c\\u2028"}]}\n'
    )


def test_the_bytes_are_kept_whatever_their_form() -> None:
    odd = b' {"layers" : [], "unknown": {"a": 1}}\r\n'
    manifest = Manifest.parse(odd)
    assert manifest.raw == odd
    assert manifest.digest == Digest.of(odd)
    assert manifest.config is None
    assert manifest.layers == ()


@pytest.mark.parametrize(
    "config", [None, {}, {"digest": ""}, {"mediaType": "", "digest": "", "size": 0}], ids=["null", "empty", "", "zero"]
)
def test_a_manifest_may_have_no_configuration(config: Any) -> None:
    assert Manifest.parse(raw(config=config)).config is None
    assert Manifest.parse(raw(layers=None)).layers == ()


def test_empty_layers_are_layers() -> None:
    assert Manifest.parse(raw(layers=[{**LAYER, "size": 0}, {"digest": DIGEST}])).layers[1].size == 0


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (raw(layers={}), "layers"),
        (raw(layers=[3]), "layers[0]"),
        (raw(layers=[LAYER, {**LAYER, "digest": "sha256:../x"}]), "layers[1].digest"),
        (raw(layers=[{**LAYER, "digest": None}]), "layers[0].digest"),
        (raw(layers=[{**LAYER, "size": -1}]), "layers[0].size"),
        (raw(layers=[{**LAYER, "size": 1.5}]), "layers[0].size"),
        (raw(layers=[{**LAYER, "size": True}]), "layers[0].size"),
        (raw(layers=[{**LAYER, "size": 2**63}]), "layers[0].size"),
        (raw(layers=[{**LAYER, "mediaType": 1}]), "layers[0].mediaType"),
        (raw(layers=[{**LAYER, "from": []}]), "layers[0].from"),
        (raw(config=[]), "config"),
        (raw(config={**LAYER, "size": "5"}), "config.size"),
        (raw() + b"{", None),
        (raw()[:-1], None),
        (b"", None),
        (b"[]", None),
        (b"null", None),
        (b"\xff\xfe", None),
        (b"\xef\xbb\xbf" + raw(), None),
        (b"[" * 200_000, None),
        (raw(layers=[{**LAYER, "size": float("nan")}]), None),
        (b"<!DOCTYPE html><html></html>", None),
        (b'{"layers":[{"size":' + b"9" * 5000 + b"}]}", None),
        (b" " * (MANIFEST_LIMIT + 1), None),
        (b'{"layers":[' + b"{}," * 20_001 + b"{}]}", None),
    ],
)
def test_a_damaged_manifest_is_refused_by_field(data: bytes, field: str | None) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(data)
    assert caught.value.field == field
    if field is not None:
        assert field in str(caught.value)
    assert len(str(caught.value)) < 300


def parses_or_says_why(data: bytes) -> None:
    try:
        manifest = Manifest.parse(data)
    except ManifestError:
        mentioned_digests(data)
    else:
        assert manifest.raw == data
        assert manifest.size >= 0


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_a_typed_error(data: bytes) -> None:
    parses_or_says_why(data)


@given(st.fixed_dictionaries({}, optional={"config": JSON_VALUES, "layers": JSON_VALUES, "mediaType": JSON_VALUES}))
@settings(max_examples=200)
def test_any_json_is_a_manifest_or_a_typed_error(value: Any) -> None:
    parses_or_says_why(json.dumps(value).encode())


@given(JSON_VALUES, st.sampled_from(["mediaType", "digest", "size", "from", "name"]), st.booleans())
def test_any_value_of_a_field_is_one_or_a_typed_error(value: Any, field: str, in_config: bool) -> None:
    layer = {**LAYER, field: value}
    parses_or_says_why(raw(config=layer) if in_config else raw(layers=[layer]))


@given(st.data())
@settings(max_examples=200)
def test_a_manifest_with_some_bytes_changed_is_one_or_a_typed_error(data: st.DataObject) -> None:
    changed = bytearray(raw())
    for _ in range(data.draw(st.integers(1, 6))):
        where = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                changed[where] = data.draw(st.integers(0, 255))
            case 1:
                del changed[where : where + data.draw(st.integers(1, 20))]
            case _:
                changed[where:where] = data.draw(st.binary(max_size=8))
        changed = changed or bytearray(b"x")
    parses_or_says_why(bytes(changed))
