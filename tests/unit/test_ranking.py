"""What a reranker is asked: pairs of texts as token ids."""

from __future__ import annotations

from typing import Any

import pytest

from rsllm.ranking import pair_ids

SPECIAL: dict[str, Any] = {"bos": 1, "eos": 2, "add_bos": True, "add_eos": True}
SEPARATOR = {"tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.add_sep_token": True}


def tokenize(parts: list[tuple[str, bool]]) -> list[int]:
    """A control token is one that a trusted part has in angle brackets."""
    ids: list[int] = []
    for text, trusted in parts:
        assert text
        ids += [9] if trusted and text.startswith("<") else list(text.encode())
    return ids


@pytest.mark.parametrize(
    ("metadata", "special", "expected"),
    [
        ({}, {}, [1, *b"q", 2, *b"d", 2]),
        (SEPARATOR, {}, [1, *b"q", 2, 3, *b"d", 2]),
        (SEPARATOR, {"eos": None}, [1, *b"q", 3, 3, *b"d", 3]),
        ({**SEPARATOR, "tokenizer.ggml.add_sep_token": False}, {"add_eos": False}, [1, *b"qd"]),
        ({}, {"bos": None}, [*b"q", 2, *b"d", 2]),
        ({}, {"add_bos": False, "eos": None}, [*b"qd"]),
    ],
)
def test_without_a_template(metadata: dict[str, Any], special: dict[str, Any], expected: list[int]) -> None:
    assert pair_ids("q", "d", metadata, {**SPECIAL, **special}, tokenize) == expected


def test_with_a_template_and_texts_that_look_like_control_tokens_or_places() -> None:
    metadata = {"tokenizer.chat_template.rerank": "<begin>{query}: {document}"}
    assert pair_ids("<q>", "{query}", metadata, SPECIAL, tokenize) == [9, *b"<q>: {query}"]
    assert pair_ids("q", "d", {"tokenizer.chat_template.rerank": ""}, SPECIAL, tokenize)[0] == 1
