"""The options of generation: one table of names, types, ranges and defaults.

Python, the command line and (later) the server check their options against `OPTIONS`, so a name or a range is written
once. A name that does not exist is an `OptionError` that suggests the closest one; so is a value that is NaN, of the
wrong type or out of range. Nothing is dropped or clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from rsllm.errors import OptionError

__all__ = ["OLLAMA_NAMES", "OPTIONS", "GenerateOptions", "Option", "parse_option", "unknown_option", "validate"]

MAX_TOKENS_LIMIT = 2**31 - 1  # token counts are 32-bit signed in every file format and peer
SEED_LIMIT = 2**64 - 1
TOP_LOGPROBS_LIMIT = 128
STOP_LIMIT = 256  # stop strings are searched for at each token


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `stream`, `generate` and their twins; the meaning of each is in `OPTIONS`."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    stop: str | Iterable[str]
    logprobs: int | bool | None
    ignore_eos: bool
    schema: Any
    regex: str | None
    grammar: str | None


@dataclass(frozen=True)
class Option:
    """One option: what it is called, what it does, and which values it takes."""

    name: str
    default: Any
    help: str
    range: str
    check: Callable[[Option, Any], Any]
    parse: Callable[[str], Any]

    def error(self, value: object) -> OptionError:
        """The error that says which values this option takes."""
        return OptionError(f"option {self.name} must be {self.range}, not {value!r}", name=self.name)


def validate(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with the given ones checked and the others at their defaults, as the core wants them.

    >>> validate({"temperature": 0, "stop": "\\n"})["stop"]
    ['\\n']
    """
    for name, value in options.items():
        if name in _CONSTRAINTS:
            if value is not None:
                raise OptionError(
                    f"option {name} is not supported yet: constrained output has not landed in this version",
                    name=name,
                    hint="ask for the format in the prompt and check the text",
                )
        elif name not in OPTIONS:
            raise unknown_option(name)
    return {
        name: option.check(option, options[name]) if name in options else option.check(option, option.default)
        for name, option in OPTIONS.items()
    }


def parse_option(name: str, text: str) -> tuple[str, Any]:
    """An option given as text, as on the command line: its name here and its checked value.

    Ollama's names are known too, with its special values: a negative `num_predict` has no limit, `seed` -1 is random,
    a negative `top_k` is off.
    """
    ours = OLLAMA_NAMES.get(name, name)
    option = OPTIONS.get(ours)
    if option is None:
        raise unknown_option(name)
    try:
        value = option.parse(text.strip() if option.parse is not _parse_stop else text)
    except ValueError:
        error = option.error(text)
        raise OptionError(str(error).replace(ours, name, 1), name=name) from None
    if isinstance(value, int) and value < 0 and ours in ("max_tokens", "seed"):
        value = None
    if ours == "top_k" and value < 0:
        value = 0
    return ours, option.check(option, value)


def unknown_option(name: str, known: Iterable[str] | None = None) -> OptionError:
    """The error for a name that does not exist, with the closest that does."""
    import difflib

    names = [*OPTIONS, *_CONSTRAINTS] if known is None else list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    renamed = OLLAMA_NAMES.get(name)
    suggestion = renamed if renamed in names else close[0] if close else None
    message = f"unknown option {name!r}"
    if suggestion:
        message += f"; did you mean {suggestion!r}?"
    return OptionError(message, name=name, hint=None if suggestion else "options: " + ", ".join(names))


def _integer(low: int, high: int, *, none: bool = False) -> Callable[[Option, Any], Any]:
    def check(option: Option, value: Any) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool):
            raise option.error(value)
        try:
            number = value.__index__()  # numpy's integers too, but no float: 3.7 is not 3
        except AttributeError:
            raise option.error(value) from None
        if not isinstance(number, int) or not low <= number <= high:
            raise option.error(value)
        return number

    return check


def _number(low: float, high: float, *, open_low: bool = False) -> Callable[[Option, Any], float]:
    def check(option: Option, value: Any) -> float:
        if isinstance(value, (bool, str, bytes)):
            raise option.error(value)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise option.error(value) from None
        if math.isnan(number) or not low <= number <= high or (open_low and number == low):
            raise option.error(value)
        return number

    return check


def _boolean(option: Option, value: Any) -> bool:
    if not isinstance(value, bool):
        raise option.error(value)
    return value


def _stop(option: Option, value: Any) -> list[str]:
    try:
        strings = [value] if isinstance(value, str) else list(value or ())
    except TypeError:
        raise option.error(value) from None
    if len(strings) > STOP_LIMIT or not all(isinstance(text, str) and text for text in strings):
        raise option.error(value)
    return [str(text) for text in strings]


def _logprobs(option: Option, value: Any) -> int | None:
    if value is None or value is False:
        return None
    if value is True:
        return 0
    number: int = _integer(0, TOP_LOGPROBS_LIMIT)(option, value)
    return number


def _parse_bool(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _parse_stop(text: str) -> list[str]:
    # Escapes as people type them in a shell: `--stop '\n\n'`.
    return [text.replace("\\n", "\n").replace("\\t", "\t")]


_TABLE = (
    Option(
        "max_tokens",
        None,
        "most tokens to generate; unset = until the context is full",
        f"None or a whole number from 0 to {MAX_TOKENS_LIMIT}",
        _integer(0, MAX_TOKENS_LIMIT, none=True),
        int,
    ),
    Option(
        "temperature",
        0.8,
        "0 = always the likeliest token; higher = more varied",
        "a number from 0 to 100",
        _number(0, 100),
        float,
    ),
    Option(
        "top_k",
        40,
        "choose among the k likeliest tokens; 0 = all",
        f"a whole number from 0 to {MAX_TOKENS_LIMIT}",
        _integer(0, MAX_TOKENS_LIMIT),
        int,
    ),
    Option(
        "top_p",
        0.9,
        "choose among the likeliest tokens that together have this probability; 1 = all",
        "a number from 0 to 1",
        _number(0, 1),
        float,
    ),
    Option(
        "min_p",
        0.0,
        "drop tokens less likely than this share of the likeliest one; 0 = none",
        "a number from 0 to 1",
        _number(0, 1),
        float,
    ),
    Option(
        "typical_p",
        1.0,
        "choose among tokens of typical surprise that together have this probability; 1 = all",
        "a number above 0, at most 1",
        _number(0, 1, open_low=True),
        float,
    ),
    Option(
        "repeat_penalty",
        1.0,
        "divide the score of tokens seen lately; 1 = off",
        "a number above 0, at most 100",
        _number(0, 100, open_low=True),
        float,
    ),
    Option(
        "repeat_last_n",
        64,
        "how many tokens back the penalties look; 0 = off, -1 = the whole context",
        f"a whole number from -1 to {MAX_TOKENS_LIMIT}",
        _integer(-1, MAX_TOKENS_LIMIT),
        int,
    ),
    Option(
        "presence_penalty",
        0.0,
        "lower the score of each token that has appeared",
        "a number from -100 to 100",
        _number(-100, 100),
        float,
    ),
    Option(
        "frequency_penalty",
        0.0,
        "lower the score of a token by each time it has appeared",
        "a number from -100 to 100",
        _number(-100, 100),
        float,
    ),
    Option(
        "seed",
        None,
        "same seed, same prompt, same options: same text; unset = random",
        f"None or a whole number from 0 to {SEED_LIMIT}",
        _integer(0, SEED_LIMIT, none=True),
        int,
    ),
    Option(
        "stop",
        (),
        "end before this text; may be given several times",
        f"a text or up to {STOP_LIMIT} texts, none of them empty",
        _stop,
        _parse_stop,
    ),
    Option(
        "logprobs",
        None,
        "log probabilities of the tokens, with this many alternatives each",
        f"None, True, or a whole number from 0 to {TOP_LOGPROBS_LIMIT}",
        _logprobs,
        int,
    ),
    Option(
        "ignore_eos",
        False,
        "go on after the model's end-of-text token",
        "True or False",
        _boolean,
        _parse_bool,
    ),
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}

OLLAMA_NAMES: Mapping[str, str] = {"num_predict": "max_tokens"}
"""Ollama's names for options that are called otherwise here."""

_CONSTRAINTS = ("schema", "regex", "grammar")
