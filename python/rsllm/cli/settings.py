"""What a person can set for an answer or a conversation, and how it is written on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rsllm.errors import OptionError
from rsllm.options import OPTIONS, parse_option

__all__ = ["LOADING", "THINK_LEVELS", "Settings", "parse_format", "parse_think", "request_options", "set_option"]

THINK_LEVELS = ("high", "medium", "low", "max")


@dataclass
class Settings:
    """What a person can set for a conversation."""

    system: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """By this package's names, as `parse_option` returns them."""
    loading: dict[str, Any] = field(default_factory=dict)
    """`num_ctx`, `num_thread`, `use_mmap`."""
    format: Any = None
    """`None`, "json" or a schema."""
    think: bool | str | None = None
    keep_alive: Any = None
    raw: bool = False


def request_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of this package as Ollama's: its names, and its numbers for none."""
    request: dict[str, Any] = {}
    for name, value in options.items():
        if name == "max_tokens":
            request["num_predict"] = -1 if value is None else value
        elif name == "seed":
            request["seed"] = -1 if value is None else value
        elif name == "logit_bias":
            request[name] = {str(token): bias for token, bias in value}
        else:
            request[name] = value
    return request


def parse_format(text: str) -> Any:
    """`json`, a JSON schema, or the path of a file with one; raises `OptionError`."""
    if text == "json":
        return text
    where = "the format"
    if not text.lstrip().startswith("{"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise OptionError(
                f"the format is neither json nor a JSON schema, and there is no file {text!r}", name="format"
            )
        where, text = f"the schema in {path}", _read(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is no JSON: {error}", name="format") from None
    if not isinstance(value, dict):
        raise OptionError(f"{where} must be a JSON schema, which is an object", name="format")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(f"the schema in {path} is not UTF-8: byte {error.start}", name="format") from None


def parse_think(text: str) -> bool | str:
    """A value of `--think`; raises `OptionError`."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in THINK_LEVELS:
        return lowered
    raise OptionError(
        f'invalid value for --think: "{text}" (must be true, false, high, medium, low, or max)', name="think"
    )


LOADING: dict[str, Callable[[str], Any]] = {
    "num_ctx": int,
    "num_thread": int,
    "num_gpu": int,
    "use_mmap": lambda text: {"true": True, "false": False, "1": True, "0": False}[text.lower()],
}
"""Options that only a server can change, since it loads the model anew for them, with what reads them."""


def set_option(settings: Settings, name: str, text: str) -> None:
    """Set an option of a conversation, by either name; `stop` takes several words. Raises `OptionError`."""
    ours, value = parse_option(name, text)
    if ours == "stop":
        value = [word for part in text.split() for word in parse_option(name, part)[1]]
    if ours not in OPTIONS or ours in ("schema", "logprobs"):
        raise OptionError(f"{name} cannot be set here: use /set format", name=name)
    settings.options[ours] = value
