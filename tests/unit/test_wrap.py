"""Word wrap, as a terminal shows what is written to it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsllm.cli.wrap import Wrap

COLUMNS = 40


def shown(written: str) -> list[str]:
    """The lines on a terminal that knows the sequences that are used."""
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[\d+D|\x1b\[K|.", written, re.DOTALL):
        if token == "\n":
            lines.append("")
            column = 0
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif token.startswith("\x1b["):
            column -= int(token[2:-1])
            assert column >= 0, "it is on the line where the word began"
        else:
            if column == COLUMNS:
                lines.append("")
                column = 0
            lines[-1] = lines[-1][:column] + token
            column += 1
    return lines


def wrapped(*pieces: str) -> list[str]:
    wrap = Wrap(COLUMNS)
    return shown("".join(wrap.feed(piece) for piece in pieces))


def test_lines_end_between_words() -> None:
    text = "The quick brown fox jumps over the lazy dog, and the dog does not mind."
    lines = wrapped(*re.findall(r".{1,3}", text))
    assert [line.rstrip() for line in lines] == [
        "The quick brown fox jumps over the",
        "lazy dog, and the dog does not",
        "mind.",
    ]
    assert all(len(line) <= COLUMNS - 5 for line in lines)


def test_breaks_of_the_text_count() -> None:
    assert wrapped("one\n\ntwo\n", "  three") == ["one", "", "two", "  three"]


def test_a_word_longer_than_a_line_is_not_torn_by_us() -> None:
    address = "https://example.com/" + "a" * 60
    assert "\n" not in Wrap(COLUMNS).feed(address)


def test_wide_characters_take_two_columns() -> None:
    wrap = Wrap(COLUMNS)
    written = wrap.feed("模" * 10 + " " + "模" * 10)
    assert written.count("\n") == 1


@pytest.mark.parametrize("size", [1, 3, 1000])
@given(words=st.lists(st.text("abc", min_size=1, max_size=25), max_size=40))
def test_nothing_is_lost_and_no_word_is_broken(size: int, words: list[str]) -> None:
    text = " ".join(words)
    lines = wrapped(*(text[at : at + size] for at in range(0, len(text), size)))
    assert " ".join(line.rstrip() for line in lines).split() == words
    assert all(len(line) <= COLUMNS - 5 for line in lines)
