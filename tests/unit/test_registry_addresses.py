"""Which addresses may be reached, and that connections go to the one that was checked."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import httpx2
import pytest

from rsllm.errors import AddressRefusedError, OptionError
from rsllm.registry.addresses import AddressRules, is_public, split_host
from rsllm.registry.transport import PinnedTransport


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fe80::1%2",
        "fc00::1", "fd12::1", "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused(text: str) -> None:
    """SEC-08."""
    assert not is_public(ip_address(text))
    with pytest.raises(AddressRefusedError, match="private address"):
        AddressRules().check("name.test", 443, [text])


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public_is_not(text: str) -> None:
    assert is_public(ip_address(text))
    assert AddressRules().check("name.test", 443, [text]) == [text]


def test_of_several_addresses_the_public_ones_are_left() -> None:
    assert AddressRules().check("name.test", 443, ["127.0.0.1", "8.8.8.8", "nonsense"]) == ["8.8.8.8"]


@pytest.mark.parametrize(
    ("entry", "host", "address"),
    [
        ("registry.test", "registry.test", "10.0.0.1"),
        ("Registry.Test:5000", "registry.test", "10.0.0.1"),
        ("10.0.0.0/8", "anything.test", "10.0.0.1"),
        ("10.0.0.1", "anything.test", "10.0.0.1"),
        ("::1", "::1", "::1"),
        ("[::1]:5000", "::1", "::1"),
        ("fd00::/8", "x.test", "fd00::5"),
    ],
)
def test_the_list_allows(entry: str, host: str, address: str) -> None:
    assert AddressRules([entry]).check(host, 5000, [address]) == [address]


@pytest.mark.parametrize(
    "entry", ["registry.test:5001", "registry.tes", "11.0.0.0/8", "10.0.0.2", "", "fd00::/8", "test"]
)
def test_the_list_allows_nothing_else(entry: str) -> None:
    with pytest.raises(AddressRefusedError) as caught:
        AddressRules([entry]).check("registry.test", 5000, ["10.0.0.1"])
    assert "RSLLM_PRIVATE_REGISTRIES=registry.test:5000" in (caught.value.hint or "")


def test_a_trusted_origin_is_that_port_alone() -> None:
    rules = AddressRules(trusted=[("Box", 5000)])
    assert rules.check("box", 5000, ["192.168.1.1"]) == ["192.168.1.1"]
    with pytest.raises(AddressRefusedError):
        rules.check("box", 5001, ["192.168.1.1"])


def test_a_network_that_is_none_is_an_error_naming_the_variable() -> None:
    with pytest.raises(OptionError, match="RSLLM_PRIVATE_REGISTRIES"):
        AddressRules(["10.0.0.0/99"])


def test_hosts_and_ports() -> None:
    assert split_host("A.b:5") == ("a.b", 5)
    assert split_host("a.b") == ("a.b", None)
    assert split_host("::1") == ("::1", None)
    assert split_host("[::1]:7") == ("::1", 7)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[httpx2.Request]]:
    """The requests that would have been sent."""
    requests: list[httpx2.Request] = []

    async def send(self: Any, request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        if request.url.host == "9.9.9.9":
            raise httpx2.ConnectError("nobody there")
        return httpx2.Response(200)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", send)
    return requests


async def ask(transport: PinnedTransport, url: str) -> int:
    async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
        return (await client.get(url)).status_code


async def test_the_connection_goes_to_the_address_that_was_checked(connected: list[httpx2.Request]) -> None:
    """The resolver is asked once for each request, so a second answer of it changes nothing."""
    answers = [["8.8.8.8"], ["127.0.0.1"]]

    async def resolver(host: str, port: int) -> list[str]:
        return answers.pop(0)

    transport = PinnedTransport(AddressRules(), resolver=resolver, proxies={})
    assert await ask(transport, "https://name.test/x") == 200
    (request,) = connected
    assert request.url.host == "8.8.8.8"
    assert request.headers["Host"] == "name.test"
    assert request.extensions["sni_hostname"] == "name.test"
    assert len(answers) == 1
    with pytest.raises(AddressRefusedError):
        await ask(transport, "https://name.test/x")


async def test_the_next_address_is_tried(connected: list[httpx2.Request]) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["9.9.9.9", "8.8.8.8"]

    assert await ask(PinnedTransport(AddressRules(), resolver=resolver, proxies={}), "http://name.test/") == 200
    assert [request.url.host for request in connected] == ["9.9.9.9", "8.8.8.8"]


async def test_a_name_without_an_address_is_no_connection() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(httpx2.ConnectError, match=r"name\.test cannot be resolved"):
        await ask(PinnedTransport(AddressRules(), resolver=resolver, proxies={}), "http://name.test/")


@pytest.mark.parametrize(
    ("url", "proxies", "behind"),
    [
        ("http://name.test/", {"http": "proxy.test:3128"}, True),
        ("https://name.test/", {"http": "proxy.test:3128"}, False),
        ("https://name.test/", {"all": "http://proxy.test:3128"}, True),
        ("http://name.test/", {"http": "proxy.test:3128", "no": ".test"}, False),
        ("http://localhost/", {"http": "proxy.test:3128"}, False),
        ("http://127.0.0.1/", {"http": "proxy.test:3128"}, False),
    ],
)
async def test_proxies_of_the_environment_are_used_but_for_loopback(
    url: str, proxies: dict[str, str], behind: bool, connected: list[httpx2.Request]
) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["8.8.4.4"]

    rules = AddressRules(["127.0.0.1"])
    assert await ask(PinnedTransport(rules, resolver=resolver, proxies=proxies), url) == 200
    assert (connected[0].url.host == "name.test") is behind


async def test_behind_a_proxy_private_addresses_are_refused_as_well(connected: list[httpx2.Request]) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return {"inside.test": ["10.0.0.1"]}[host]

    transport = PinnedTransport(AddressRules(), resolver=resolver, proxies={"http": "proxy.test:3128"})
    for url in ("http://10.0.0.1/", "http://inside.test/"):
        with pytest.raises(AddressRefusedError):
            await ask(transport, url)
    assert not connected
