"""The server's log: its lines, what is never in them, and files of limited size."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rsllm.config import Config
from rsllm.errors import OptionError
from rsllm.server.logs import JsonFormatter, RotatingFile, TextFormatter, logging_to
from rsllm.server.trace import request_id
from tests.server.conftest import Bench, asking

SECRET = "xyzzy plugh"


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("rsllm.server", logging.INFO, __file__, 1, message, (), None)
    made.created, made.msecs = 1_700_000_000.123, 123.0
    made.request = "abc"
    made.fields = fields
    return made


def test_a_line_for_people() -> None:
    line = TextFormatter().format(record("GET / 200", outcome="ok", total_ms=1.5, error="a b", empty="", number=3))
    head = "2023-11-14T22:13:20.123Z INFO rsllm.server abc GET / 200"
    assert line == f'{head} outcome=ok total_ms=1.5 error="a b" empty="" number=3'


def test_a_line_for_machines() -> None:
    entry = json.loads(JsonFormatter().format(record("GET / 200", outcome="ok", total_ms=1.5)))
    assert entry == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "INFO",
        "logger": "rsllm.server",
        "request_id": "abc",
        "message": "GET / 200",
        "outcome": "ok",
        "total_ms": 1.5,
    }


@pytest.mark.parametrize("form", [TextFormatter(), JsonFormatter()])
def test_nothing_that_is_logged_begins_a_line_of_its_own(form: logging.Formatter) -> None:
    line = form.format(record("unknown option 'a\n2023 INFO forged\x1b[31m\u2028'", model="x\ny"))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("form", [TextFormatter(), JsonFormatter()])
def test_a_traceback_is_kept(form: logging.Formatter) -> None:
    made = record("an internal error")
    try:
        raise RuntimeError("why")
    except RuntimeError:
        made.exc_info = sys.exc_info()
    assert "RuntimeError: why" in form.format(made)


async def test_one_line_a_request_says_what_it_took(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="rsllm.server"):
        await client.post("/api/generate", json={"model": "tiny", "prompt": "hi"})
    (line,) = [entry for entry in caplog.records if entry.getMessage() == "POST /api/generate 200"]
    fields = line.fields  # type: ignore[attr-defined]
    assert fields["model"] == "tiny:latest"
    assert (fields["outcome"], fields["finish"], fields["generated_tokens"]) == ("ok", "stop", 4)
    names = {"total_ms", "load_ms", "queue_ms", "ttft_ms", "prompt_tokens", "cached_tokens"}
    assert names | {"prefill_ms", "prefill_rate", "decode_ms", "decode_rate"} <= fields.keys()
    assert fields["load_ms"] <= fields["ttft_ms"] <= fields["total_ms"]


async def test_a_failure_can_be_found_by_its_id(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """OBS-02."""
    bench = make_bench()
    bench.add(behaviour={"crash_after": 1, "delay": 0.05})
    async with bench.pool, asking(bench) as client:
        with caplog.at_level(logging.INFO):
            response = await client.post(
                "/api/generate", json={"model": "tiny", "prompt": "x"}, headers={"x-request-id": "find-me"}
            )
    last = json.loads(response.text.splitlines()[-1])
    assert "signal SIGKILL" in last["error"]
    assert last["request_id"] == "find-me"
    (line,) = [entry for entry in caplog.records if entry.getMessage() == "POST /api/generate 200"]
    assert line.fields["error"] == "RunnerCrashedError"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": SECRET, "system": SECRET}),
        ("/api/chat", {"messages": [{"role": "user", "content": SECRET}]}),
        ("/api/chat", {"messages": [{"role": SECRET, "content": SECRET}]}),
        ("/api/embed", {"input": [SECRET]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}]}),
        ("/v1/completions", {"prompt": SECRET}),
        ("/v1/responses", {"input": SECRET}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": SECRET}]}),
        ("/api/generate", {"prompt": SECRET * 1000, "truncate": False}),
        ("/api/generate", {"prompt": SECRET, "format": "xml"}),
    ],
)
async def test_what_people_write_is_never_logged(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any]
) -> None:
    with caplog.at_level(logging.DEBUG):
        await client.post(path, json={"model": "tiny", **body})
    assert f"POST {path}" in caplog.text
    assert "xyzzy" not in caplog.text + "".join(str(vars(entry)) for entry in caplog.records)


def test_the_id_is_of_the_context_that_logs(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "log"
    token = request_id.set("one")
    with logging_to(file, form="json"):
        logging.getLogger("rsllm.test").info("with")
        request_id.reset(token)
        logging.getLogger("rsllm.test").info("without")
        logging.getLogger("rsllm.test").debug("never")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(entry["message"], entry["request_id"]) for entry in entries] == [("with", "one"), ("without", "-")]


def test_a_file_is_of_limited_size_also_for_what_is_written_to_standard_error(tmp_path: Path) -> None:
    """As a command starts a server: its output goes to the file that is its log."""
    file = tmp_path / "server.log"
    code = (
        "import logging, os, sys; from pathlib import Path; from rsllm.server.logs import RotatingFile\n"
        "handler = RotatingFile(Path(sys.argv[1]), 1000, 3)\n"
        "logger = logging.getLogger('x'); logger.addHandler(handler); logger.setLevel(logging.INFO)\n"
        "for number in range(100):\n"
        "    logger.info('line %d %s', number, 'x' * 40); os.write(2, b'raw %d\\n' % number)\n"
    )
    with file.open("ab") as output:
        subprocess.run([sys.executable, "-c", code, str(file)], stdout=output, stderr=output, check=True, timeout=30)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["server.log", "server.log.1", "server.log.2"]
    assert all(entry.stat().st_size < 2_000 for entry in tmp_path.iterdir())
    assert "raw 99" in file.read_text()
    assert "line 99" in file.read_text()


def test_output_that_goes_elsewhere_stays_there(tmp_path: Path) -> None:
    handler = RotatingFile(tmp_path / "log", 100, 2)
    before = os.fstat(2)
    for _ in range(10):
        handler.emit(record("x" * 50))
    handler.close()
    assert os.path.samestat(before, os.fstat(2))
    assert (tmp_path / "log.1").exists()


def test_the_form_is_of_the_environment() -> None:
    assert Config.from_environment({"HOME": "/h"}).log_format == "text"
    assert Config.from_environment({"HOME": "/h", "RSLLM_LOG_FORMAT": "JSON"}).log_format == "json"
    with pytest.raises(OptionError, match="RSLLM_LOG_FORMAT"):
        Config.from_environment({"HOME": "/h", "RSLLM_LOG_FORMAT": "xml"})
