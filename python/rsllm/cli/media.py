"""Images and sounds in a prompt: the path of one that is there is cut from the text, and the file is sent along.

A path begins with `/`, `./`, `../`, `~/` or a drive, and ends like an image or a sound; blanks in it are escaped, as
terminals do when a file is dropped on them, or the whole path stands in single quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rsllm.errors import OptionError

__all__ = ["Found", "attached", "found", "refuse"]

_LIMIT_BYTES = 100 * 2**20
_ENDINGS = r"\.(?:png|jpe?g|webp|wav|mp3)"
_PATH = re.compile(
    rf"'(?P<quoted>[^'\n]{{1,1000}}{_ENDINGS})'"
    rf"|(?<![\w/.~\\])(?P<plain>(?:[A-Za-z]:[\\/]|\.{{0,2}}/|~/)(?:\\.|[^\s\\]){{0,1000}}?{_ENDINGS})(?![\w.])",
    re.IGNORECASE,
)
_KINDS = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image"),
    (re.compile(rb"\xff\xd8\xff"), "image"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio"),
    (re.compile(rb"ID3|\xff[\xe2-\xff]"), "audio"),
)
_NEEDED = {"image": "vision", "audio": "audio"}


@dataclass(frozen=True)
class Found:
    """A file that a text names, and how."""

    written: str
    path: Path


def found(text: str) -> list[Found]:
    """The files that a text names and that are there, each once, in their order."""
    files = []
    for match in _PATH.finditer(text):
        path = Path(match["quoted"] or re.sub(r"\\(.)", r"\1", match["plain"])).expanduser()
        if path.is_file():
            files.append(Found(match[0], path))
    return list(dict.fromkeys(files))


def refuse(text: str) -> None:
    """Raise `OptionError` where a text names a file: it is not to be taken for words."""
    for file in found(text):
        raise OptionError(
            f"images and sounds are not supported yet: {file.path}", hint="leave the file out of the prompt"
        )


def attached(text: str, files: Sequence[Found], able: Sequence[str]) -> tuple[str, list[str]]:
    """The text without its files, and those in base64; `able` are the model's capabilities. Raises `OptionError`."""
    import base64

    encoded = []
    for file in files:
        data, kind = _read(file.path)
        if _NEEDED[kind] not in able:
            what = "look at images" if kind == "image" else "listen to sounds"
            raise OptionError(f"the model cannot {what}: {file.path}", hint="leave the file out of the prompt")
        encoded.append(base64.b64encode(data).decode())
        text = text.replace(file.written, "")
        click.echo(f"Added {kind} '{file.path}'", err=True)
    return text.strip(), encoded


def _read(path: Path) -> tuple[bytes, str]:
    with path.open("rb") as file:
        data = file.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        raise OptionError(f"file size exceeds maximum limit (100MB): {path}")
    for pattern, kind in _KINDS:
        if pattern.match(data):
            return data, kind
    raise OptionError(f"invalid file type: {path} is neither PNG, JPEG, WebP, WAV nor MP3")
