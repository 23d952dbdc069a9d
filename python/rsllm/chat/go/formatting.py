"""What `print`, `println` and `printf` of Go make of values.

A verb that does not fit its value is no error in Go but a note in the output, `%!d(string=x)`, and is one here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rsllm.chat.go.budget import Budget, failure
from rsllm.chat.go.json_text import JsonWriter, shortest
from rsllm.chat.go.marks import Marks
from rsllm.chat.go.values import JsonDict, JsonList, PropertyType, Struct, Value, items_of, type_name

__all__ = ["WIDTH_LIMIT", "Formatter"]

WIDTH_LIMIT = 10_000
_VERB = re.compile(
    r"%(?P<flags>[-+# 0]*)(?P<width>\*|\d*)(?:(?P<point>\.)(?P<precision>\*|\d*))?(?P<verb>.?)", re.DOTALL
)
_QUOTED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class _Spec:
    """One `%…` of a format."""

    verb: str
    flags: str = ""
    width: int | None = None
    precision: int | None = None


_DEFAULT = _Spec("v")


class Formatter:
    """Formats for one rendering; what people wrote stays marked."""

    def __init__(self, marks: Marks, budget: Budget) -> None:
        self._marks = marks
        self._budget = budget
        self.json = JsonWriter(marks, budget)

    def show(self, value: Value) -> str:
        """As an action prints it, and `%v`."""
        return value if isinstance(value, str) else self._format(_DEFAULT, value)

    def print(self, values: Sequence[Value]) -> str:
        """With blanks between neighbours that are both no strings."""
        parts: list[str] = []
        for index, value in enumerate(values):
            if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
                parts.append(" ")
            parts.append(self._counted(self.show(value)))
        return "".join(parts)

    def println(self, values: Sequence[Value]) -> str:
        """With blanks between all, and a line feed."""
        return " ".join(self._counted(self.show(value)) for value in values) + "\n"

    def printf(self, pattern: str, values: Sequence[Value]) -> str:
        """By a pattern, of which each `%…` takes a value."""
        parts: list[str] = []
        used = position = 0
        for match in _VERB.finditer(pattern):
            self._budget.tick()
            parts.append(self._counted(pattern[position : match.start()]))
            position = match.end()
            text, used = self._verb(match, values, used)
            parts.append(self._counted(text))
        parts.append(self._counted(pattern[position:]))
        if used < len(values):
            extra = ", ".join(
                "<nil>" if value is None else f"{type_name(value)}={self.show(value)}" for value in values[used:]
            )
            parts.append(self._counted(f"%!(EXTRA {extra})"))
        return "".join(parts)

    def _counted(self, text: str) -> str:
        self._budget.text(len(text))
        return text

    def _verb(self, match: re.Match[str], values: Sequence[Value], used: int) -> tuple[str, int]:
        verb = self._marks.plain(match["verb"])
        spec, notes, used = self._spec(match, verb, values, used)
        if verb in ("", "%"):
            return notes + (verb or "%!(NOVERB)"), used
        if verb == "[":
            raise failure("printf with numbered arguments (%[1]s) is not supported", self._budget.line)
        if used >= len(values):
            return f"{notes}%!{verb}(MISSING)", used
        return notes + self._format(spec, values[used]), used + 1

    def _spec(self, match: re.Match[str], verb: str, values: Sequence[Value], used: int) -> tuple[_Spec, str, int]:
        """The flags and numbers of one `%…`, Go's complaints about them, and how many values are used so far."""
        flags, notes = match["flags"], ""
        numbers: list[int | None] = []
        for name, complaint in (("width", "%!(BADWIDTH)"), ("precision", "%!(BADPREC)")):
            given = match[name]
            number = int(given[:9]) if given and given != "*" else None
            if given == "*":
                number = _integer(values[used]) if used < len(values) else None
                used += used < len(values)
                notes += complaint if number is None else ""
            elif name == "precision" and match["point"] and number is None:
                number = 0
            if number is not None and number < 0:
                flags, number = (flags + "-", -number) if name == "width" else (flags, None)
            if (number or 0) > WIDTH_LIMIT:
                raise failure(f"printf pads to {number:,}; at most {WIDTH_LIMIT:,}", self._budget.line)
            numbers.append(number)
        return _Spec(verb, flags, *numbers), notes, used

    def _format(self, spec: _Spec, value: Value) -> str:
        if spec.verb == "T":
            return _pad(type_name(value), spec)
        if value is None:
            return _pad("<nil>", spec) if spec.verb == "v" else f"%!{spec.verb}(<nil>)"
        if isinstance(value, bool):
            return _pad("true" if value else "false", spec) if spec.verb in "tv" else self._wrong(spec, value)
        if isinstance(value, int):
            return self._integer(spec, value)
        if isinstance(value, float):
            return self._float(spec, value)
        if isinstance(value, str):
            return self._string(spec, value)
        if isinstance(value, PropertyType | Struct | JsonDict | JsonList) and spec.verb in "vsqxX":
            if isinstance(value, PropertyType) and len(value) == 1:
                return self._string(spec, value[0])
            as_text = _Spec("s", spec.flags, spec.width) if spec.verb == "v" else spec
            return self._string(as_text, self.json.write(value))
        return self._container(spec, value)

    def _container(self, spec: _Spec, value: Value) -> str:
        """Go's own form: `[a b]`, `map[a:1 b:2]`."""
        if isinstance(value, list):
            return self._counted("[" + " ".join(self._format(spec, item) for item in value) + "]")
        if isinstance(value, dict):
            key_spec = spec if spec.verb in "vsqxX" else _Spec(spec.verb)
            members = (
                f"{self._string(key_spec, self._marks.mark(key))}:{self._format(spec, item)}"
                for key, item in items_of(value)
            )
            return self._counted("map[" + " ".join(members) + "]")
        return self._wrong(spec, value)

    def _wrong(self, spec: _Spec, value: Value) -> str:
        return f"%!{spec.verb}({type_name(value)}={self.show(value)})"

    def _string(self, spec: _Spec, text: str) -> str:
        if spec.precision is not None and spec.verb in "vsq":
            text = text[: spec.precision]
        if spec.verb == "v" and "#" in spec.flags:
            spec = _Spec("q", "", spec.width)
        if spec.verb in "sv":
            return _pad(text, spec)
        if spec.verb == "q":
            return _pad(self._quoted(text, spec.flags), spec)
        if spec.verb in "xX":
            gap = " " if " " in spec.flags else ""
            prefix = ("0x" if spec.verb == "x" else "0X") if "#" in spec.flags and text else ""
            self._budget.text(len(text) * 12)

            def hexadecimal(plain: str) -> str:
                data = plain.encode(errors="surrogatepass")[: spec.precision]
                digits = data.hex(gap) if gap else data.hex()
                return prefix + (digits.upper() if spec.verb == "X" else digits)

            return _pad(self._marks.rewritten(text, hexadecimal), spec)
        return self._wrong(spec, text)

    def _quoted(self, text: str, flags: str) -> str:
        def quote(plain: str) -> str:
            if "#" in flags and "`" not in plain and all(c.isprintable() or c == "\t" for c in plain):
                return f"`{plain}`"
            return '"' + "".join(_quoted_character(c, '"', "+" in flags) for c in plain) + '"'

        self._budget.text(len(text) * 10)
        return self._marks.rewritten(text, quote)

    def _integer(self, spec: _Spec, value: int) -> str:
        if spec.verb in "cqU":
            if spec.verb == "U":
                return _pad(f"U+{value:04X}", spec)
            character = chr(value) if 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else "\ufffd"
            if spec.verb == "c":
                return _pad(character, spec)
            return _pad(f"'{_quoted_character(character, chr(39), '+' in spec.flags)}'", spec)
        forms: dict[str, tuple[str, str]] = {
            "d": ("d", ""), "v": ("d", ""), "b": ("b", "0b"), "o": ("o", "0"), "O": ("o", "0o"),
            "x": ("x", "0x"), "X": ("X", "0X"),
        }  # fmt: skip
        if spec.verb not in forms:
            return self._wrong(spec, value)
        form, prefix = forms[spec.verb]
        digits = format(abs(value), form)
        if spec.precision is not None:
            digits = "" if spec.precision == 0 and value == 0 else digits.rjust(spec.precision, "0")
        prefix = prefix if "#" in spec.flags or spec.verb == "O" else ""
        sign = "-" if value < 0 else _sign(spec.flags)
        if _pads_with_zeros(spec) and spec.precision is None:
            digits = digits.rjust((spec.width or 0) - len(sign) - len(prefix) * (spec.verb == "O"), "0")
        return _pad(sign + prefix + digits, spec)

    def _float(self, spec: _Spec, value: float) -> str:
        verb = spec.verb
        if verb not in "eEfFgGv":
            return self._wrong(spec, value)
        sign = "-" if math.copysign(1, value) < 0 else _sign(spec.flags)
        if not math.isfinite(value):
            sign = sign or ("+" if math.isinf(value) else "")
            return _pad("NaN" if math.isnan(value) else sign + "Inf", spec)
        if verb in "vgG":
            digits = _general(abs(value), spec.precision)
            digits = digits.upper() if verb == "G" else digits
        else:
            digits = format(abs(value), f".{6 if spec.precision is None else spec.precision}{verb}")
        if _pads_with_zeros(spec):
            digits = digits.rjust((spec.width or 0) - len(sign), "0")
        return _pad(sign + digits, spec)


def _integer(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _general(value: float, precision: int | None) -> str:
    """`%g`: the fewest digits that mean the value unless a precision is given."""
    if precision is not None:
        text = format(value, f".{max(precision, 1)}e")
        digits, exponent = shortest(float(format(value, f".{max(precision, 1) - 1}e")))
        threshold = max(precision, 1)
        if threshold > len(digits) >= exponent + 1:
            threshold = len(digits)
    else:
        digits, exponent = shortest(value)
        threshold = 6
    if value != 0 and not -4 <= exponent < threshold:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{text}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return format(value if precision is None else float(f"{digits}e{exponent - len(digits) + 1}"),
                  f".{max(len(digits) - 1 - exponent, 0)}f")  # fmt: skip


def _quoted_character(character: str, quote: str, ascii_only: bool) -> str:
    if character in _QUOTED:
        return _QUOTED[character]
    if character == quote:
        return "\\" + quote
    if character.isprintable() and (character.isascii() or not ascii_only):
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _sign(flags: str) -> str:
    return "+" if "+" in flags else " " if " " in flags else ""


def _pads_with_zeros(spec: _Spec) -> bool:
    return "0" in spec.flags and "-" not in spec.flags and spec.width is not None


def _pad(text: str, spec: _Spec) -> str:
    if spec.width is None or len(text) >= spec.width:
        return text
    if "-" in spec.flags:
        return text.ljust(spec.width)
    pad: Callable[[int, str], str] = text.rjust
    return pad(spec.width, "0" if "0" in spec.flags and spec.verb in "sqvxXt" else " ")
