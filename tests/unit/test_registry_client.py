"""Keys, challenges and endpoints: what needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rsllm.config import Config
from rsllm.errors import OptionError, RegistryAuthError, RegistryError
from rsllm.registry.auth import Challenge, token_request
from rsllm.registry.endpoints import Endpoint, endpoints
from rsllm.registry.keys import Key, load_or_create
from rsllm.registry.settings import RegistrySettings
from rsllm.store.digest import Digest
from rsllm.store.name import ModelName


def settings(**changes: object) -> RegistrySettings:
    return RegistrySettings(**changes)  # type: ignore[arg-type]


def test_settings_come_from_the_environment() -> None:
    config = Config.from_environment(
        {
            "HOME": "/home/u",
            "RSLLM_REGISTRY_MIRRORS": "https://a.test, hf.co=b.test ,",
            "HF_ENDPOINT": "https://hub.test",
            "RSLLM_PRIVATE_REGISTRIES": "10.0.0.0/8,box:5000",
            "OLLAMA_NOPRUNE": "1",
        }
    )
    made = RegistrySettings.from_config(config, user_typed=True)
    assert made.mirrors == ("https://a.test", "hf.co=b.test")
    assert made.hf_endpoint == "https://hub.test"
    assert made.private_allowed == ("10.0.0.0/8", "box:5000")
    assert made.key_path == Path("/home/u/.ollama/id_ed25519")
    assert made.user_typed
    assert not made.prune_after_pull
    assert not RegistrySettings.from_config(config).user_typed


# Keys


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / ".ollama" / "id_ed25519"
    key = load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    public = path.with_name("id_ed25519.pub")
    assert public.stat().st_mode & 0o777 == 0o644
    assert public.read_text() == f"ssh-ed25519 {key.public}\n"
    assert load_or_create(path).public == key.public
    assert path.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert sorted(os.listdir(path.parent)) == ["id_ed25519", "id_ed25519.pub"]


def test_many_who_make_it_at_once_have_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_or_create(tmp_path / "id_ed25519").public, range(8)))
    assert len(keys) == 1


@pytest.mark.parametrize("data", [b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END"])
def test_a_file_that_is_no_key_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    path.write_bytes(data)
    with pytest.raises(RegistryError, match="id_ed25519 cannot be read"):
        load_or_create(path)
    assert path.read_bytes() == data


def test_a_key_of_another_kind_is_an_error(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "id_ed25519"
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(RegistryError, match="not an ed25519 key"):
        load_or_create(path)


def test_a_key_that_openssh_made_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "id_ed25519"
    try:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("this machine has no ssh-keygen")
    assert load_or_create(path).public == path.with_name("id_ed25519.pub").read_text().split()[1]


# Challenges


@pytest.mark.parametrize(
    ("header", "realm", "service", "scope"),
    [
        ('Bearer realm="https://r/t",service="s",scope="a b"', "https://r/t", "s", "a b"),
        (
            'bearer realm="https://r/t" , scope="repository:a/b:pull,push"',
            "https://r/t",
            "",
            "repository:a/b:pull,push",
        ),
        ("Bearer realm=https://r/t,service=s", "https://r/t", "s", ""),
        (r'Bearer realm="https://r/\"t"', 'https://r/"t', "", ""),
    ],
)
def test_challenges(header: str, realm: str, service: str, scope: str) -> None:
    assert Challenge.parse(header) == Challenge(realm, service, scope)


@pytest.mark.parametrize("header", ["", "Basic realm=x", "Bearer", "Bearer service=s", "Negotiate", '"' * 100_000])
def test_challenges_that_cannot_be_met(header: str) -> None:
    with pytest.raises(RegistryAuthError, match="unauthorized: access denied"):
        Challenge.parse(header)


def no_key() -> Key:
    raise AssertionError("the key must not be touched")


@pytest.mark.parametrize(
    ("realm", "registry"),
    [
        ("https://evil.test/token", "https://registry.test"),
        ("https://registry.test:444/token", "https://registry.test"),
        ("http://registry.test:443/token", "https://registry.test"),
        ("https://registry.test.evil.test/", "https://registry.test"),
        ("https://registry.test@evil.test/", "https://registry.test"),
        ("https://registry.test:99999/token", "https://registry.test"),
        ("ftp://registry.test/", "https://registry.test"),
        ("/token", "https://registry.test"),
    ],
)
def test_a_realm_elsewhere_is_refused_before_the_key_is_touched(realm: str, registry: str) -> None:
    with pytest.raises(RegistryError):
        token_request(Challenge(realm, "s", "x"), registry, no_key)


def test_the_request_for_a_token_is_signed_over_its_address(tmp_path: Path) -> None:
    key = load_or_create(tmp_path / "key")
    challenge = Challenge("https://registry.test:443/token?ignored=1", "a service", "one two")
    url, authorization = token_request(challenge, "https://registry.test", lambda: key, now=lambda: 17.9)
    assert url.startswith("https://registry.test:443/token?nonce=")
    assert url.endswith("&scope=one&scope=two&service=a+service&ts=17")
    empty = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
    assert authorization == key.authorization(f"GET,{url},{empty}".encode())


# Endpoints


def sites(name: str, *, insecure: bool = False, **changes: object) -> list[str]:
    return [place.site for place in endpoints(ModelName.parse(name), settings(**changes), insecure=insecure)]


def test_a_name_leads_to_its_registry() -> None:
    (place,) = endpoints(ModelName.parse("llama3.2"), settings(), insecure=False)
    assert place.manifest("latest") == "https://registry.ollama.ai/v2/library/llama3.2/manifests/latest"
    digest = Digest.of(b"")
    assert place.blob(digest) == f"https://registry.ollama.ai/v2/library/llama3.2/blobs/{digest}"
    assert sites("hf.co/org/repo:Q4_K_M") == ["https://hf.co"]
    assert sites("box:5000/a/b", insecure=True) == ["http://box:5000"]


def test_mirrors_stand_before_the_registry_they_are_for() -> None:
    mirrors = ("https://one.test/prefix/", "two.test", "hf.co=https://three.test")
    assert sites("m", mirrors=mirrors) == ["https://one.test/prefix", "https://two.test", "https://registry.ollama.ai"]
    assert sites("hf.co/a/b", mirrors=mirrors, hf_endpoint="http://four.test") == [
        "https://three.test",
        "http://four.test",
        "https://hf.co",
    ]
    assert sites("other.test/a/b", mirrors=mirrors, hf_endpoint="four.test") == ["https://other.test"]


@pytest.mark.parametrize("mirror", ["file:///x", "http://", "http://u:p@h", "http://h?x=1", "http://h:port", "a b://c"])
def test_a_mirror_that_is_no_address_is_an_error_naming_the_variable(mirror: str) -> None:
    with pytest.raises(OptionError, match="RSLLM_REGISTRY_MIRRORS"):
        sites("m", mirrors=(mirror,))


def test_http_is_spoken_only_where_it_was_allowed() -> None:
    with pytest.raises(RegistryError, match="insecure protocol http"):
        sites("http://box/a/b")
    assert sites("http://box/a/b", insecure=True) == ["http://box"]


def test_blobs_may_have_addresses_of_their_own() -> None:
    digest = Digest.of(b"x")
    place = Endpoint("https://h", "a", "b").with_files({digest: "https://h/a/b/resolve/1/m.gguf"})
    assert place.blob(digest) == "https://h/a/b/resolve/1/m.gguf"
