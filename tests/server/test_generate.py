"""`POST /api/generate`."""

from __future__ import annotations

import httpx2

from tests.server.conftest import Bench, lines


async def test_the_answer_streams(client: httpx2.AsyncClient, bench: Bench) -> None:
    bench.add(behaviour={"delay": 0.03})
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"})
    assert response.status_code == 200
    events = lines(response)
    assert [event["response"] for event in events] == ["ab"] * 4 + [""]
    assert all(event["model"] == "tiny" and event["created_at"].endswith("Z") for event in events)
    assert [event["done"] for event in events] == [False] * 4 + [True]
    last = events[-1]
    assert last["done_reason"] == "stop"
    for name in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count"):
        assert last[name] > 0
    assert last["eval_count"] == 4
    assert bytes(last["context"]) == b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\naaaa"
    assert "warnings" not in last
