"""Variables of the environment, as who starts a server meets them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from click.testing import Result

from rsllm.address import Address
from rsllm.config import Config, config
from rsllm.server.main import announce

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RSLLM_RUNNER_MEMORY", "abc"), ("OLLAMA_GPU_OVERHEAD", "8 bananas"), ("OLLAMA_KV_CACHE_TYPE", "q3")],
)
def test_junk_is_an_error_before_the_server_starts(
    rsllm_command: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """MEM-01: the user need not wait for the first load that fails."""
    monkeypatch.setenv(variable, value)
    config.cache_clear()
    result = rsllm_command("serve")
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {variable} must be ")
    assert result.output.count("\n") == 1


def test_what_has_no_effect_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    settings = Config.from_environment({"HOME": "/home/u", "OLLAMA_GPU_OVERHEAD": "8G"})
    with caplog.at_level(logging.INFO, logger="rsllm.server"):
        announce(Address.parse(""), settings)
    assert [(record.levelname, record.message) for record in caplog.records[1:]] == [
        ("WARNING", "OLLAMA_GPU_OVERHEAD has no effect: this build has no GPU backend")
    ]
