"""Constants of Go: numbers, characters and strings in quotes."""

from __future__ import annotations

import re

__all__ = ["number", "unquote"]

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\'\"])|x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)
_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0(?:_?[0-7])*|[1-9](?:_?\d)*)"
)
_FLOAT = re.compile(r"[+-]?(?:\d(?:_?\d)*\.?(?:\d(?:_?\d)*)?|\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?")
_INTEGER_LIMIT = 2**63
_DIGITS_LIMIT = 400


def number(text: str) -> int | float:
    """The value of a number as Go writes it; raises `ValueError` with a reason.

    >>> number("0x_1F"), number("1e3")
    (31, 1000.0)
    """
    if len(text) > _DIGITS_LIMIT:
        raise ValueError("a number is too long")
    if _INTEGER.fullmatch(text):
        digits = text.replace("_", "")
        if re.fullmatch(r"[+-]?0[0-7]+", digits):  # the octal of C
            value = int(digits, 8)
        else:
            value = int(digits, 0)
        if not -_INTEGER_LIMIT <= value < 2 * _INTEGER_LIMIT:
            raise ValueError(f"integer overflow: {text}")
        return value
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[+-]?0\d+", text):  # 09 is a wrong octal
        result = float(text.replace("_", ""))
        if result in (float("inf"), float("-inf")):
            raise ValueError(f"number out of range: {text}")
        return result
    raise ValueError(f"bad number: {text}")


def unquote(text: str) -> str:
    """The string or character of a constant with its quotes; raises `ValueError` with a reason.

    >>> unquote('"a\\\\n"')
    'a\\n'
    """
    if text[0] == "`":
        return text[1:-1].replace("\r", "")
    inner = text[1:-1]
    if "\\" not in inner:
        return _whole(inner, text)
    parts: list[bytes] = []
    position = 0
    while True:
        start = inner.find("\\", position)
        parts.append(inner[position : start if start >= 0 else len(inner)].encode(errors="surrogatepass"))
        if start < 0:
            break
        match = _ESCAPE.match(inner, start)
        if match is None:
            raise ValueError(f"unknown escape in {text[:40]}")
        parts.append(_escaped(match, text[0]))
        position = match.end()
    # Bytes put together by hand need not be UTF-8; a prompt is text.
    return _whole(b"".join(parts).decode(errors="replace"), text)


def _escaped(match: re.Match[str], quote: str) -> bytes:
    if match["simple"]:
        if match["simple"] in "'\"" and match["simple"] != quote:
            raise ValueError(f"unknown escape {match[0]}")
        return _ESCAPES[match["simple"]].encode()
    if match["byte"] or match["octal"]:
        value = int(match["byte"], 16) if match["byte"] else int(match["octal"], 8)
        # In a character constant it is a code point, in a string a byte.
        return bytes([value]) if quote == '"' else chr(value).encode()
    code = int(match["short"] or match["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"no character has the escape {match[0]}")
    return chr(code).encode()


def _whole(value: str, text: str) -> str:
    if text[0] == "'" and len(value) != 1:
        raise ValueError(f"a character constant has one character: {text[:40]}")
    return value
