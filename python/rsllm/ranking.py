"""The prompt of a reranker: a query and a document as one list of token ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["pair_ids"]

_TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"(\{query\}|\{document\})")

Tokenize = Callable[[list[tuple[str, bool]]], list[int]]


def pair_ids(
    query: str, document: str, metadata: Mapping[str, Any], special: Mapping[str, Any], tokenize: Tokenize
) -> list[int]:
    """The ids of a pair, as llama.cpp writes it.

    With a template: that, its control tokens read as such, and the texts in their places. Without: BOS, the query, EOS,
    the separator, the document and EOS, each token where the file asks for it. `special` is `Model.special_tokens`,
    `tokenize` takes parts that are trusted or not.
    """
    template = metadata.get(_TEMPLATE_KEY)
    if isinstance(template, str) and template:
        texts = {"{query}": query, "{document}": document}
        parts = [(texts.get(part, part), part not in texts) for part in _PLACES.split(template)]
        return tokenize([part for part in parts if part[0]])
    # The key has always been spelt like this.
    separator = metadata.get("tokenizer.ggml.seperator_token_id")
    end = special["eos"] if special["eos"] is not None else separator
    bos = [special["bos"]] if special["add_bos"] and special["bos"] is not None else []
    eos = [end] if special["add_eos"] and end is not None else []
    between = [separator] if metadata.get("tokenizer.ggml.add_sep_token") and separator is not None else []
    return [*bos, *tokenize([(query, False)]), *eos, *between, *tokenize([(document, False)]), *eos]
