"""What has gone wrong elsewhere with models on a server: paths in requests, names that lead out, files that lie."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import httpx2
import numpy as np
import pytest

from rsllm.store.name import ModelName
from tests.server.conftest import Bench, lines
from tests.support.tiny_models import SHAPES, write


async def answer(client: httpx2.AsyncClient, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and error of a request, also of one whose error comes in a stream."""
    response = await client.request(method, path, json=body)
    if response.headers.get("content-type", "").startswith("application/x-ndjson"):
        return response.status_code, str(lines(response)[-1].get("error", ""))
    return response.status_code, str(response.json().get("error", "")) if response.content else ""


@pytest.mark.parametrize(
    "body",
    [
        lambda path: {"path": path},
        lambda path: {"modelfile": f"FROM {path}"},
        lambda path: {"from": path},
        lambda path: {"files": {path: "sha256:" + "0" * 64}},
        lambda path: {"adapters": {path: "sha256:" + "0" * 64}, "from": "tiny"},
    ],
)
async def test_a_request_to_create_does_not_tell_which_files_there_are(
    client: httpx2.AsyncClient, bench: Bench, body: Any
) -> None:
    """CVE-2024-39719, CVE-2024-39721."""
    answers = set()
    for path in ("/etc/passwd", "/etc/nothing", "/dev/random", "/usr/lib"):
        status, error = await answer(client, "POST", "/api/create", {"model": "made", **body(path)})
        assert status == 400
        answers.add(error.replace(path, "PATH"))  # at most what was asked for is echoed
    assert len(answers) == 1
    assert str(bench.store.root) not in answers.pop()


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "a/../../b", "/etc/passwd", "..", "a/b/c/d", "x/../y:z", "a\0b"]
)
async def test_a_name_cannot_lead_out_of_the_store(client: httpx2.AsyncClient, bench: Bench, name: str) -> None:
    """CVE-2024-39722."""
    before = sorted(bench.store.root.rglob("*"))
    for method, path, body in (
        ("POST", "/api/push", {"model": name}),
        ("POST", "/api/pull", {"model": name}),
        ("POST", "/api/show", {"model": name}),
        ("POST", "/api/create", {"model": name, "from": "tiny"}),
        ("POST", "/api/create", {"model": "made", "from": name}),
        ("POST", "/api/copy", {"source": "tiny", "destination": name}),
        ("POST", "/api/copy", {"source": name, "destination": "made"}),
        ("DELETE", "/api/delete", {"model": name}),
    ):
        status, error = await answer(client, method, path, body)
        assert status in (400, 404), (path, status, error)
        assert "invalid" in error, (path, error)
    assert sorted(bench.store.root.rglob("*")) == before


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "TINY:Latest", "library/tiny"])
async def test_latest_may_be_left_out_everywhere(
    client: httpx2.AsyncClient, bench: Bench, tmp_path: Path, name: str
) -> None:
    """STO-17."""
    path = write(tmp_path / "tiny.gguf", SHAPES["llama"])
    digest, _ = bench.store.add_blob(path)
    await client.post("/api/create", json={"model": "tiny", "files": {"tiny.gguf": str(digest)}, "stream": False})
    assert (await client.post("/api/show", json={"model": name})).status_code == 200
    assert (await client.post("/api/copy", json={"source": name, "destination": "other"})).status_code == 200
    copied = bench.store.find(ModelName.parse("other:latest"))
    assert copied.digest == bench.store.find(ModelName.parse("tiny")).digest
    assert (await client.request("DELETE", "/api/delete", json={"model": name})).status_code == 200
    assert [entry.name.short for entry in bench.store.names()] == ["other:latest"]


async def created_from(client: httpx2.AsyncClient, content: bytes, **more: Any) -> tuple[int, str]:
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code in (200, 201)
    return await answer(
        client, "POST", "/api/create", {"model": "made", "files": {"m.gguf": digest}, "stream": False, **more}
    )


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16])
async def test_a_tensor_larger_than_its_file_is_refused(
    client: httpx2.AsyncClient, bench: Bench, tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    """CVE-2026-7482: else what lies behind the file in memory would become part of a model, and could be pushed."""
    path = tmp_path / "short.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((2, 512), np.float32), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = path.read_bytes()
    content = content[: content.rindex(b"token_embd.weight") + 256][: len(content) - 3000]
    for more in ({}, {"quantize": "q4_K_M"}):
        status, error = await created_from(client, content, **more)
        assert status == 400
        assert "truncated" in error or "quantized" in error
    assert [entry.name.short for entry in bench.store.names()] == ["tiny:latest"]


async def test_crafted_headers_are_errors(client: httpx2.AsyncClient, bench: Bench) -> None:
    """Counts and lengths beyond all bounds, in files of both byte orders and of the first version.

    CVE-2025-0315, CVE-2025-0317, CVE-2025-66959, CVE-2025-66960, CVE-2026-86289; of llama.cpp CVE-2024-21825,
    CVE-2024-21836, CVE-2024-23496, CVE-2024-23605.
    """
    huge = 2**63
    crafted = (
        struct.pack("<4sIQQ", b"GGUF", 3, huge, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, huge),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, huge) + b"general.alignment",
        struct.pack("<4sIIIQ", b"GGUF", 1, 0, 1, 2**64 - 1),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 17) + b"general.alignment" + struct.pack("<II", 4, 0),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**61 + 1),
        struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    )
    for content in crafted:
        status, error = await created_from(client, content)
        assert status == 400, content
        assert "internal error" not in error, error
    assert [entry.name.short for entry in bench.store.names()] == ["tiny:latest"]


@pytest.mark.parametrize(
    "image",
    [bytes(range(10)), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b""],
    ids=["noise", "cut", "svg", "nothing"],
)
async def test_what_is_no_image_is_refused_and_the_server_lives(client: httpx2.AsyncClient, image: bytes) -> None:
    """MM-07, CVE-2025-15514."""
    message = {"role": "user", "content": "x", "images": [base64.b64encode(image).decode()]}
    for path, body in (("/api/chat", {"messages": [message]}), ("/api/generate", {**message, "prompt": "x"})):
        status, error = await answer(client, "POST", path, {"model": "tiny", "stream": False, **body})
        assert status == 400 and ("images" in error or "vision" in error), (path, error)
    assert (await client.get("/api/version")).status_code == 200


async def test_a_negative_count_of_what_to_discard_has_no_effect_and_that_is_said(client: httpx2.AsyncClient) -> None:
    """CVE-2026-21869: there is no such option here."""
    for place in ({"options": {"n_discard": -1}}, {"n_discard": -1}):
        body = {"model": "tiny", "prompt": "x", "stream": False, **place}
        reply = (await client.post("/api/generate", json=body)).json()
        assert reply["done"], reply
        assert any("n_discard" in warning for warning in reply["warnings"])


async def test_an_archive_is_not_unpacked(client: httpx2.AsyncClient, bench: Bench) -> None:
    """CVE-2024-45436: archives are never uploaded; as a blob one is no model."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr("../../x", b"GGUF")
    status, error = await created_from(client, archive.getvalue())
    assert (status, error.partition(":")[0]) == (400, "supplied file was not in GGUF format")
    assert not list(bench.store.root.parent.rglob("x"))
