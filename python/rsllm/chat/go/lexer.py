"""A Go template cut into texts and actions, and actions into tokens.

Blanks matter in two places: `{{-` and `-}}` take those of the text beside them, and between operands a blank separates
arguments (`.A .B`) where none makes a chain (`.A.B`). So each token knows whether a blank stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rsllm.errors import TemplateError

__all__ = ["KEYWORDS", "Action", "Token", "syntax_error", "tokenize"]

KEYWORDS = frozenset({"block", "break", "continue", "define", "else", "end", "if", "nil", "range", "template", "with"})

_BLANKS = " \t\r\n"
_COMMENT = re.compile(rf"[{_BLANKS}]*/\*")
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<raw>`[^`]*`)
    | (?P<character>'(?:[^'\\\n]|\\[^\n])+')
    | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|\.?[0-9](?:[0-9_.]|[eE][+-]?(?=[0-9])|[bBoO])*)i?)
    | (?P<declare>:=)
    | (?P<assign>=)
    | (?P<pipe>\|)
    | (?P<comma>,)
    | (?P<open>\()
    | (?P<close>\))
    | (?P<field>\.[^\W\d]\w*)
    | (?P<dot>\.)
    | (?P<variable>\$\w*)
    | (?P<word>[^\W\d]\w*)
    """,
    re.VERBOSE,
)
# What may follow a number, a name or a chain without a blank.
_TERMINATORS = frozenset({"comma", "pipe", "close", "open", "declare", "assign", "field"})
_WORDS = frozenset({"dot", "field", "number", "variable", "word"})


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an action. `kind` is the name of a group of the pattern; `end` closes each action."""

    kind: str
    text: str
    line: int
    spaced: bool
    """A blank stands before it."""


@dataclass(frozen=True, slots=True)
class Action:
    """What stands between `{{` and `}}`; its last token is of kind `end`."""

    tokens: tuple[Token, ...]
    line: int


def syntax_error(reason: str, line: int, hint: str | None = None) -> TemplateError:
    """The error of a text that is no template."""
    return TemplateError(f"the Go template is not valid: {reason} (line {line})", line=line, hint=hint)


def tokenize(source: str) -> Iterator[str | Action]:
    """Texts, trimmed, and actions, without comments; empty texts are left out. Raises `TemplateError`."""
    position, line = 0, 1
    trim_left = False
    while True:
        start = source.find("{{", position)
        text = source[position:] if start < 0 else source[position:start]
        next_line = line + text.count("\n")
        if trim_left:
            text = text.lstrip(_BLANKS)
        if start >= 0 and _trims_before(source, start):
            text = text.rstrip(_BLANKS)
        if text:
            yield text
        if start < 0:
            return
        inside = start + (3 if _trims_before(source, start) else 2)
        action, position = _inside(source, inside, next_line)
        trim_left = source.startswith("-", position - 3) and source[position - 4] in _BLANKS
        if action is not None:
            yield action
        line = next_line + source.count("\n", start, position)


def _trims_before(source: str, start: int) -> bool:
    return source.startswith("-", start + 2) and source[start + 3 : start + 4] in tuple(_BLANKS)


def _inside(source: str, position: int, line: int) -> tuple[Action | None, int]:
    """The action that begins behind its delimiter, and where the text goes on; `None` for a comment."""
    comment = _COMMENT.match(source, position)
    if comment is not None and _is_comment(source, position, comment):
        return None, _comment_end(source, comment.end(), line)
    tokens: list[Token] = []
    first_line = line
    depth = 0
    spaced = False
    while True:
        end = _end(source, position)
        if end is not None:
            if depth:
                raise syntax_error("a left parenthesis is not closed", line)
            tokens.append(Token("end", "", line, spaced))
            return Action(tuple(tokens), first_line), end
        match = _TOKEN.match(source, position)
        if match is None:
            raise _strange(source, position, line, first_line)
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "space":
            spaced = True
        else:
            _check_neighbour(tokens, kind, spaced, match[0], line)
            depth += (kind == "open") - (kind == "close")
            if depth < 0:
                raise syntax_error("unexpected right parenthesis", line)
            tokens.append(Token(kind, match[0], line, spaced))
            spaced = False
        line += match[0].count("\n")


def _is_comment(source: str, position: int, comment: re.Match[str]) -> bool:
    # Blanks may stand before a comment only behind a trim marker.
    return comment.end() - position == 2 or source.startswith("{{-", position - 3)


def _comment_end(source: str, position: int, line: int) -> int:
    close = source.find("*/", position)
    if close < 0:
        raise syntax_error("a comment is not closed", line)
    end = _end(source, close + 2)
    if end is None:
        raise syntax_error("a comment ends before the end of its action", line)
    return end


def _end(source: str, position: int) -> int | None:
    """Where the text goes on, if the action ends here."""
    if source.startswith("}}", position):
        return position + 2
    if source[position : position + 1] in tuple(_BLANKS) and source.startswith("-}}", position + 1):
        return position + 4
    return None


def _check_neighbour(tokens: list[Token], kind: str, spaced: bool, text: str, line: int) -> None:
    if not tokens or spaced:
        return
    before = tokens[-1].kind
    if (before in _WORDS and kind not in _TERMINATORS) or (before == "dot" and kind == "field"):
        raise syntax_error(f"unexpected {text[:20]!r} behind {tokens[-1].text[-20:]!r}", line)
    if before in ("string", "raw", "character", "close") and kind in ("string", "raw", "character", "word", "variable"):
        raise syntax_error(f"unexpected {text[:20]!r} in operand", line)


def _strange(source: str, position: int, line: int, first_line: int) -> TemplateError:
    if position >= len(source):
        return syntax_error("an action is not closed", first_line)
    character = source[position]
    if character in "\"`'":
        return syntax_error("a constant in quotes is not closed", line)
    return syntax_error(f"unexpected {character!r} in an action", line)
