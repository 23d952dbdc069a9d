'''Modelfiles: the recipe of a model, read and written as Ollama reads and writes it.

One instruction a line, `NAME value`; names in any case, in any order. A value is the rest of the line without the white
space around it, or stands in `"…"` or `"""…"""` and may then have several lines. There are no escapes: a quoted value
ends at the first line that ends with its quotes. So a quotation mark, or three of them, may stand anywhere in a value
except at the end of a line that is not its last one.

A few texts cannot be quoted so, for instance a template with a line that ends in three quotation marks. They are
written as one line of JSON under the comment `# rsllm: the next value is JSON`. No file that Ollama reads has that
comment, so every Modelfile of Ollama means here what it means there.
'''

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rsllm.errors import ModelfileError
from rsllm.store.parameters import DEPRECATED, typed

__all__ = ["COMMANDS", "Instruction", "Modelfile", "parse"]

COMMANDS = (
    "from", "license", "template", "system", "adapter", "draft", "renderer", "parser", "parameter", "message",
    "requires",
)  # fmt: skip
"""The instructions, in the order in which the message about an unknown one names them."""

_ROLES = ("system", "user", "assistant")
_JSON_NOTE = "# rsllm: the next value is JSON"
_LIMIT = 64 * 2**20
_SHOWN = 60
_NAME = re.compile(r"[A-Za-z]+")
_KEY = re.compile(r"[A-Za-z0-9_]+")
_SEMVER = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)(\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?)?)?", re.ASCII)


@dataclass(frozen=True)
class Instruction:
    """One instruction: `key` is the name of a PARAMETER or the role of a MESSAGE, and empty otherwise."""

    name: str
    value: str
    key: str = ""
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        head = f"{self.name.upper()} {self.key} " if self.key else f"{self.name.upper()} "
        quoted = _quoted(self.value)
        return f"{_JSON_NOTE}\n{head}{json.dumps(self.value)}" if quoted is None else head + quoted


@dataclass(frozen=True)
class Modelfile:
    """The instructions, in order; `str()` is a file that reads back as the same ones."""

    instructions: tuple[Instruction, ...]

    def __str__(self) -> str:
        return "".join(f"{instruction}\n" for instruction in self.instructions)

    def all(self, name: str) -> list[str]:
        """The values of every instruction of this name."""
        return [instruction.value for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> str | None:
        """The value that counts of an instruction that may stand once."""
        return next((value for value in reversed(self.all(name))), None)

    @property
    def parameters(self) -> dict[str, Any]:
        """The PARAMETERs with their types; `stop` gathers, of others the last counts. Raises `ModelfileError`."""
        found: dict[str, Any] = {}
        for instruction in self.instructions:
            if instruction.name != "parameter" or instruction.key in DEPRECATED:
                continue
            try:
                value = typed(instruction.key, instruction.value)
            except ValueError as error:
                raise ModelfileError(str(error), line=instruction.line, hint=_where(instruction)) from None
            found[instruction.key] = [*found.get("stop", []), value] if instruction.key == "stop" else value
        return found

    @property
    def warnings(self) -> list[str]:
        """What is said of parameters that have no effect any more."""
        names = [one.key for one in self.instructions if one.name == "parameter" and one.key in DEPRECATED]
        return [f"warning: parameter {name} is deprecated" for name in dict.fromkeys(names)]

    def to_request(self) -> dict[str, Any]:
        """What `POST /api/create` wants to know of it, but for the files and the model it is made from.

        Raises `ModelfileError` for parameters and for REQUIRES.
        """
        request: dict[str, Any] = {
            name: value for name in ("template", "system", "renderer", "parser") if (value := self.last(name))
        }
        if (version := self.last("requires")) is not None:
            request["requires"] = _semver(version)
        if licenses := self.all("license"):
            request["license"] = licenses
        if parameters := self.parameters:
            request["parameters"] = parameters
        messages = [
            {"role": instruction.key, "content": instruction.value}
            for instruction in self.instructions
            if instruction.name == "message"
        ]
        if messages:
            request["messages"] = messages
        return request


def parse(data: bytes | str) -> Modelfile:
    """Read a Modelfile; raises `ModelfileError` with the number of the line.

    >>> parse('FROM llama3.2\\nPARAMETER temperature 0.5').parameters
    {'temperature': 0.5}
    """
    if len(data) > _LIMIT:
        raise ModelfileError(f"the Modelfile is larger than {_LIMIT:,} bytes")
    text = _decoded(data) if isinstance(data, bytes) else data.removeprefix("\ufeff")
    instructions = tuple(_instructions(_printable(text)))
    if not any(instruction.name == "from" for instruction in instructions):
        raise ModelfileError("no FROM line", hint="a Modelfile names its model: FROM llama3.2, or FROM ./model.gguf")
    return Modelfile(instructions)


def _decoded(data: bytes) -> str:
    encoding = "utf-8-sig"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelfileError(
            f"(line {line}): the Modelfile is not {encoding.removesuffix('-sig').upper()}: byte {error.start}",
            line=line,
            hint="save it as UTF-8",
        ) from None


def _printable(text: str) -> str:
    """Without control characters, which Ollama drops as well, and without halves of characters."""
    if text.isascii() and text.isprintable():
        return text
    kept = "\t\n\r"
    return "".join(one for one in text if one in kept or unicodedata.category(one) not in ("Cc", "Cs"))


class _Lines:
    """The lines of a text one after another, without their ends; a CR ends a line as well."""

    def __init__(self, text: str) -> None:
        self._pieces = re.split(r"(\r\n|\n|\r)", text)
        self._at = 0
        self.number = 0

    def next(self) -> str | None:
        """The next line; `None` at the end."""
        if self._at >= len(self._pieces):
            return None
        line = self._pieces[self._at]
        self._at += 2
        self.number += 1
        return line

    @property
    def end(self) -> str:
        """How the line given last ended."""
        return self._pieces[self._at - 1] if self._at - 1 < len(self._pieces) else ""


def _instructions(text: str) -> Iterator[Instruction]:
    lines = _Lines(text)
    is_json = False
    while (line := lines.next()) is not None:
        rest = line.strip()
        if not rest or rest.startswith("#"):
            is_json = rest == _JSON_NOTE or (is_json and not rest)
            continue
        number = lines.number
        name, rest = _head(line.lstrip(), number)
        key = ""
        if name in ("parameter", "message"):
            key, rest = _key(name, rest, number)
        value = _value(rest, lines, number)
        if is_json:
            value = _from_json(rest.strip(), number)
        is_json = False
        yield Instruction(name, value, key, number)


def _head(line: str, number: int) -> tuple[str, str]:
    """The name of an instruction, and what comes after the space behind it."""
    match = _NAME.match(line)
    name = match[0].lower() if match else ""
    after = line[len(name) :]
    if name not in COMMANDS or (after and not after[0].isspace()):
        names = ", ".join(f'"{command}"' for command in COMMANDS[:-1])
        raise ModelfileError(
            f'(line {number}): command must be one of {names}, or "{COMMANDS[-1]}"',
            line=number,
            hint=f"the line is {_shown(line)}",
        )
    if not after.strip():
        raise ModelfileError(
            "unexpected EOF",
            line=number,
            hint=f'line {number}: {name.upper()} has no value; an empty one is written as ""',
        )
    return name, after


def _key(name: str, rest: str, number: int) -> tuple[str, str]:
    """The name of a parameter, or the role of a message."""
    rest = rest.lstrip()
    match = _KEY.match(rest)
    key = match[0] if match else ""
    after = rest[len(key) :]
    if name == "message" and (key not in _ROLES or not after[:1].isspace()):
        raise ModelfileError(
            'message role must be one of "system", "user", or "assistant"',
            line=number,
            hint=f"line {number}: {_shown(rest)}",
        )
    if not key or not after.strip():
        raise ModelfileError("unexpected EOF", line=number, hint=f"line {number}: PARAMETER wants a name and a value")
    return key, after


def _value(rest: str, lines: _Lines, number: int) -> str:
    """A value that begins with `rest`, and takes further lines while its quotes are open."""
    pieces = [rest.lstrip()]
    if not pieces[0].startswith('"'):
        return rest.strip()
    quotes = '"""' if pieces[0].startswith('"""') else '"'
    total = len(pieces[0])
    while True:
        # What may close the value stands at the end of what there is so far.
        tail = pieces[-1].rstrip()
        if tail.endswith(quotes) and total - len(pieces[-1]) + len(tail) >= 2 * len(quotes):
            whole = "".join(pieces).rstrip()
            return whole[len(quotes) : len(whole) - len(quotes)]
        end = lines.end
        line = lines.next()
        if line is None:
            raise ModelfileError(
                "unexpected EOF",
                line=number,
                hint=f"the value that begins in line {number} with {quotes} does not end: {quotes} must end a line",
            )
        pieces += [end, line]
        total += len(end) + len(line)


def _from_json(text: str, number: int) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, str):
        raise ModelfileError(f"(line {number}): the value is not a JSON string: {_shown(text)}", line=number)
    return value


def _quoted(value: str) -> str | None:
    """The value as Ollama writes it, or as Ollama can read it; `None` where it cannot."""
    plain = bool(value) and value == value.strip() and not re.search(r"[\r\n]", value)
    fenced = (f'"""{value}"""', f'"{value}"') if '"' in value else (f'"{value}"', f'"""{value}"""')
    for text in (value, *fenced) if plain else fenced:
        lines = _Lines("SYSTEM " + text)
        first = lines.next() or ""
        try:
            same = _printable(text) == text and _value(first[len("SYSTEM") :], lines, 1) == value
        except ModelfileError:
            same = False
        if same and lines.next() is None:
            return text
    return None


def _semver(version: str) -> str:
    version = version.removeprefix("v")
    if not _SEMVER.fullmatch(version):
        raise ModelfileError("requires must be a valid semver (e.g. 0.14.0)", hint=f"REQUIRES {_shown(version)}")
    return version


def _where(instruction: Instruction) -> str:
    return f"line {instruction.line}: PARAMETER {instruction.key} {_shown(instruction.value)}"


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
