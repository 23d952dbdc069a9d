"""Names and digests: what they may be, what they mean, and that they survive being written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.errors import DigestError, ModelNameError, OptionError
from rsllm.store.digest import Digest
from rsllm.store.name import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, ModelName

FIRST = "abcXYZ019_"


def part(more: str, longest: int = 80) -> st.SearchStrategy[str]:
    """A part of a name: one of the first characters, then those and `more`."""
    rest = st.text(FIRST + more, max_size=longest - 1)
    return st.builds(lambda first, others: first + others, st.sampled_from(FIRST), rest)


NAMES = st.builds(ModelName, part("-._:", 120), part("-"), part("-._"), part("-._"), st.sampled_from(["http", "https"]))


@given(NAMES)
def test_a_name_written_in_full_reads_as_itself(name: ModelName) -> None:
    assert ModelName.parse(f"{name.scheme}://{name.full}") == name


@given(NAMES)
def test_a_short_name_means_the_same_model(name: ModelName) -> None:
    assert ModelName.parse(name.short).key == name.key


@given(st.text(max_size=120))
def test_any_text_is_a_name_or_a_typed_error(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except ModelNameError as error:
        assert str(error).startswith("invalid model name")
        assert len(str(error)) < 400
    else:
        assert name.validated() == name
        assert not {"", ".", ".."} & set(name.parts)
        assert not any("/" in part or "\0" in part for part in name.parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("llama3.2", (DEFAULT_HOST, DEFAULT_NAMESPACE, "llama3.2", DEFAULT_TAG)),
        (" qwen3:8b ", (DEFAULT_HOST, DEFAULT_NAMESPACE, "qwen3", "8b")),
        ("me/m", (DEFAULT_HOST, "me", "m", DEFAULT_TAG)),
        ("hf.co/Org/Repo-GGUF:Q4_K_M", ("hf.co", "Org", "Repo-GGUF", "Q4_K_M")),
        ("localhost:5000/me/m", ("localhost:5000", "me", "m", DEFAULT_TAG)),
        ("http://127.0.0.1:5000/a/b:c", ("127.0.0.1:5000", "a", "b", "c")),
        ("_a:_b", (DEFAULT_HOST, DEFAULT_NAMESPACE, "_a", "_b")),
    ],
)
def test_what_is_left_out_is_filled_in(text: str, parts: tuple[str, ...]) -> None:
    assert ModelName.parse(text).parts == parts


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("llama3.2", "llama3.2:latest"),
        ("Library/llama3.2:1b", "llama3.2:1b"),
        ("me/m", "me/m:latest"),
        ("hf.co/o/r:Q4_K_M", "hf.co/o/r:Q4_K_M"),
        ("hf.co/library/r:x", "hf.co/library/r:x"),
    ],
)
def test_lists_show_names_short(text: str, short: str) -> None:
    assert ModelName.parse(text).short == short


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a:", "the tag is empty"),
        (":a", "the model is empty"),
        ("a/b/c/d", "more than three parts"),
        ("../x", "a namespace has"),
        ("a//b", "the namespace is empty"),
        ("..", "a model has"),
        ("m:..", "a tag has"),
        ("-m", "starts with"),
        ("some.user/m", "a namespace has letters, digits and - _"),
        ("m@sha256:" + "a" * 64, "'@'"),
        ("ftp://h/n/m", "scheme"),
        ("m:" + "x" * 81, "81 characters"),
        ("h" * 351 + "/n/m", "351 characters"),
        ("modèle", "a model has"),
        ("m\n", "ok"),
        ("a b", "a model has"),
        ("m\0", "a model has"),
        ("m:a\\b", "a tag has"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(text: str, reason: str) -> None:
    if reason == "ok":  # white space around a name is dropped
        assert ModelName.parse(text).model == "m"
        return
    with pytest.raises(ModelNameError, match=r"^invalid model name") as caught:
        ModelName.parse(text)
    assert reason in str(caught.value)
    assert isinstance(caught.value, OptionError)


def test_two_spellings_have_one_key() -> None:
    assert ModelName.parse("Llama3.1:Q6_K").key == ModelName.parse("llama3.1:q6_k").key


@given(st.binary(max_size=64))
def test_a_digest_written_reads_as_itself(data: bytes) -> None:
    digest = Digest.of(data)
    assert Digest.parse(str(digest)) == digest == Digest.parse(digest.file_name)
    assert digest.short == digest.hex[:12]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "g" * 64,
        "sha256:" + "a" * 64 + "\n",
        "sha256/" + "a" * 64,
        "sha512:" + "a" * 64,
        "sha256:../../../../tmp/" + "x" * 48,
        "sha256:" + "\u0661" * 64,
        None,
        7,
    ],
)
def test_what_is_no_digest_is_refused(text: object) -> None:
    with pytest.raises(DigestError, match=r"^invalid digest format"):
        Digest.parse(text)


def test_a_digest_cannot_be_made_around_the_check() -> None:
    with pytest.raises(DigestError):
        Digest("../x")


@given(st.text(max_size=90))
def test_any_text_is_a_digest_or_a_typed_error(text: str) -> None:
    for candidate in (text, "sha256:" + text, "sha256-" + text):
        try:
            assert len(Digest.parse(candidate).hex) == 64
        except DigestError:
            continue
