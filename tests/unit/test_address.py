"""OLLAMA_HOST in all its forms."""

from __future__ import annotations

import pytest

from rsllm.address import Address
from rsllm.errors import OptionError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("example.com", "http://example.com:11434"),
        ("example.com:56789", "http://example.com:56789"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://0.0.0.0:11434"),
        ("http://1.2.3.4", "http://1.2.3.4:80"),
        ("https://1.2.3.4", "https://1.2.3.4:443"),
        ("HTTPS://example.com:8443/a/b/", "https://example.com:8443/a/b"),
        ("example.com/ollama", "http://example.com:11434/ollama"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:99", "http://[::1]:99"),
        ("http://[fe80::1]:99/x", "http://[fe80::1]:99/x"),
        (" localhost:1 ", "http://localhost:1"),
        ("ollama.com", "https://ollama.com:443"),
    ],
)
def test_forms(text: str, url: str) -> None:
    assert Address.parse(text).url == url


@pytest.mark.parametrize(
    "text", ["ftp://x", "host:port", "host:99999", "host:-1", "user@host", "a b", "[::1", "x:1:2", "h?q", "h#f", "a\\b"]
)
def test_mistakes_name_the_variable(text: str) -> None:
    with pytest.raises(OptionError, match="OLLAMA_HOST"):
        Address.parse(text)


@pytest.mark.parametrize(("host", "loopback"), [("127.9.9.9", True), ("::1", True), ("localhost", True),
                                                ("0.0.0.0", False), ("::", False), ("box.local", False)])  # fmt: skip
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Address.parse(host).is_loopback is loopback


def test_clients_ask_an_address_that_listens_everywhere_on_this_machine() -> None:
    assert Address.parse("0.0.0.0:5").for_client.url == "http://127.0.0.1:5"
    assert Address.parse("[::]:5").for_client.url == "http://[::1]:5"
