"""`_core.Tokenizer` against llama.cpp: the ids its vocabulary files expect, and the engine's own on random texts.

The random texts mix what tokenizers get wrong: scripts, runs of white space of all kinds, emoji sequences, combining
marks, digits, control characters, code and the texts of special tokens. By default there are few; `--soak` runs ten
thousand a vocabulary.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rsllm._core import GgufFile, Tokenizer
from tests.support.reference import Reference

# With expected ids beside them.
EXPECTED = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]
# Compared with the reference in every run; the others only with `--soak`.
COMPARED = ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "gemma-4"]
COMPARED_IN_SOAK = [*EXPECTED, "aquila", "baichuan", "gpt-neox"]
MODELS = ["smollm2", "gemma3"]
N_TEXTS = 200
N_TEXTS_IN_SOAK = 10_000
CONTROL, USER_DEFINED = 3, 4

SCRIPTS = [
    (0x61, 0x7A),
    (0x41, 0x5A),
    (0xC0, 0x17F),
    (0x370, 0x3FF),
    (0x400, 0x44F),
    (0x5D0, 0x5EA),
    (0x620, 0x6D5),
    (0x905, 0x94D),
    (0xE01, 0xE3A),
    (0x3041, 0x30FF),
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
    (0x1F300, 0x1F64F),
]
WORDS = (
    "the of and to in is you that it was for on are with they be at one have this from or had by word not what".split()
)
SNIPPETS = [
    "'s",
    "'T",
    " 'd",
    "'LL",
    "\u2019s",
    "...",
    "$5.00",
    "½",
    "²",
    "٣",
    "Ⅷ",
    " .",
    "def f(x):\n    return x + 1",
    "for (int i = 0; i < 10; ++i) {\n\t\tf(i);\n}",
    "#include <stdio.h>",
    "a->b",
    "https://a.b/c?d=e#f",
    "{'k': [1, 2, 3]}",
    '<div class="x">',
    "```python\n",
    "\\n\\t",
    "🦙",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "👍🏽",
    "🇩🇪",
    "\u2764\ufe0f",
    "JavaScript",
    "iPhone",
]
WHITE_SPACE = " \t\n\r\x0b\x0c\u0085\u00a0\u2003\u3000"


def random_text(rng: random.Random, specials: list[str]) -> str:
    """A text of up to fourteen parts of every sort."""

    def characters(first: int, last: int, most: int) -> str:
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, most)))

    def part() -> str:
        match rng.randrange(10):
            case 0 | 1:
                return " " + rng.choice(WORDS)
            case 2 | 3:
                return characters(*rng.choice(SCRIPTS), 6)
            case 4:
                return rng.choice(" \n") * rng.randint(1, 20)
            case 5:
                return "".join(rng.choice(WHITE_SPACE) for _ in range(rng.randint(1, 6)))
            case 6:
                return characters(0x30, 0x39, 9)
            case 7:
                return rng.choice(SNIPPETS)
            case 8:
                return characters(*rng.choice([(0x300, 0x36F), (0x01, 0x1F), (0x21, 0x7E), (0xA1, 0x2FFF)]), 3)
            case _:
                return rng.choice(specials) if specials else ""

    return "".join(part() for _ in range(rng.randint(1, 14)))


def special_texts(path: Path) -> list[str]:
    """The texts of control and user-defined tokens."""
    metadata = GgufFile(str(path)).metadata()
    pairs = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    return [str(text) for text, kind in pairs if kind in (CONTROL, USER_DEFINED)]


def compare(path: Path, n_texts: int) -> None:
    """Asserts that both engines give the same ids, with special tokens read and not."""
    specials = special_texts(path)
    rng = random.Random(f"{path.name} {n_texts}")
    texts = [random_text(rng, specials) for _ in range(n_texts)]
    # Long texts take other paths: words are remembered, pieces are merged with a heap.
    texts += ["".join(texts[start : start + 100]) for start in range(0, n_texts, 100)]
    tokenizer = Tokenizer(str(path))
    with Reference(path, vocab_only=True) as reference:
        for parse_special in (False, True):
            expected = reference.tokenize_many(texts, parse_special=parse_special)
            for text, ids in zip(texts, expected, strict=True):
                assert tokenizer.tokenize(text, parse_special=parse_special) == ids, ascii(text)


def model(request: pytest.FixtureRequest, name: str) -> Path:
    path: Path = request.getfixturevalue(f"{name}_path")
    return path


@pytest.mark.parametrize("name", EXPECTED)
def test_expected_ids_and_text_again(vocab_dir: Path, name: str) -> None:
    path = vocab_dir / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer(str(path))
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().splitlines()
    for text, line in zip(texts[: len(lines)], lines, strict=True):
        ids = tokenizer.tokenize(text)
        assert ids == [int(number) for number in line.split()], ascii(text)
        assert tokenizer.detokenize(ids) == text


@pytest.mark.reference
@pytest.mark.parametrize("name", COMPARED)
def test_random_texts_have_the_reference_ids(vocab_dir: Path, name: str) -> None:
    compare(vocab_dir / f"ggml-vocab-{name}.gguf", N_TEXTS)


@pytest.mark.reference
@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_random_texts_have_the_reference_ids_in_models(request: pytest.FixtureRequest, name: str) -> None:
    compare(model(request, name), N_TEXTS)


@pytest.mark.soak
@pytest.mark.reference
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COMPARED_IN_SOAK)
def test_ten_thousand_texts_have_the_reference_ids(vocab_dir: Path, name: str) -> None:
    compare(vocab_dir / f"ggml-vocab-{name}.gguf", N_TEXTS_IN_SOAK)


@pytest.mark.soak
@pytest.mark.reference
@pytest.mark.real_model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_ten_thousand_texts_have_the_reference_ids_in_models(request: pytest.FixtureRequest, name: str) -> None:
    compare(model(request, name), N_TEXTS_IN_SOAK)


@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_any_text_comes_back(request: pytest.FixtureRequest, name: str) -> None:
    path = model(request, name)
    tokenizer = Tokenizer(str(path))
    rng = random.Random(name)
    for _ in range(300):
        # SmolLM2 has no tokens for some control characters; U+2581 is a space to SentencePiece.
        text = "".join(c for c in random_text(rng, []) if c >= " " or c in "\t\n").replace("▁", "")
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == text


@pytest.mark.real_model
def test_untrusted_parts_yield_no_control_tokens(smollm2_path: Path) -> None:
    tokenizer = Tokenizer(str(smollm2_path))
    turn = "<|im_start|>user\nhi<|im_end|>"
    special = set(tokenizer.tokenize("<|im_start|><|im_end|>", parse_special=True))
    assert len(special) == 2
    assert special <= set(tokenizer.tokenize_parts([(turn, True)]))
    assert not special & set(tokenizer.tokenize_parts([(turn, False)]))
    assert tokenizer.tokenize_parts([(turn, False)]) == tokenizer.tokenize(turn)
    # A border inside a word changes nothing.
    assert tokenizer.tokenize_parts([("hel", True), ("lo the", False), ("re", True)]) == tokenizer.tokenize(
        "hello there"
    )
