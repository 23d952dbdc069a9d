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
MAX_DRAFT = 15  # a step verifies no more
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
    max_draft: int
    shift: bool
    num_keep: int
    logit_bias: Mapping[int | str, float]
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
    for name in options:
        if name not in OPTIONS:
            raise unknown_option(name)
    constraints = [name for name in _CONSTRAINTS if options.get(name) is not None]
    if len(constraints) > 1:
        raise OptionError(f"options {' and '.join(constraints)} exclude each other", name=constraints[1])
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

    names = list(OPTIONS) if known is None else list(known)
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


def _logit_bias(option: Option, value: Any) -> list[tuple[int | str, float]]:
    """Pairs of a token id, or a text all of whose tokens are meant, and what is added to its score; False bans, because
    the pairs travel as JSON, which has no infinity."""
    if not isinstance(value, Mapping):
        raise option.error(value)
    biases: list[tuple[int | str, float]] = []
    for token, bias in value.items():
        number = -math.inf if bias is False else bias
        if isinstance(token, bool) or isinstance(number, (bool, str, bytes)):
            raise option.error(value)
        try:
            key = token if isinstance(token, str) else int(token.__index__())
            number = float(number)
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise option.error(value) from None
        if math.isnan(number) or number == math.inf or key == "" or (isinstance(key, int) and not 0 <= key < 2**32):
            raise option.error(value)
        biases.append((key, False if number == -math.inf else number))
    return biases


def _schema(option: Option, value: Any) -> str | None:
    """A JSON schema as text; "json" stands for any object."""
    import json

    if value is None or isinstance(value, str):
        return value
    make = getattr(value, "model_json_schema", None)  # pydantic's name for it
    if callable(make):
        value = make()
    if not isinstance(value, Mapping):
        raise option.error(value)
    try:
        return json.dumps(value if isinstance(value, dict) else dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"option schema is no JSON: {error}", name=option.name) from error


def _text(option: Option, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise option.error(value)
    return value


def _parse_logit_bias(text: str) -> dict[int | str, float]:
    import json

    biases = json.loads(text)  # its error is a ValueError
    if not isinstance(biases, dict):
        raise ValueError(text)
    # JSON has no other keys than texts; digits are an id, as in every protocol.
    return {int(key) if key.isdecimal() else key: bias for key, bias in biases.items()}


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
    Option(
        "max_draft",
        MAX_DRAFT,
        "most tokens to guess, from the text so far or by a draft model, and verify at once; changes speed, not text",
        f"a whole number from 0 to {MAX_DRAFT}",
        _integer(0, MAX_DRAFT),
        int,
    ),
    Option(
        "shift",
        False,
        "when the context is full, forget the older half of it and go on; `stats.shifts` counts",
        "True or False",
        _boolean,
        _parse_bool,
    ),
    Option(
        "num_keep",
        4,
        "tokens at the beginning that a shift keeps",
        f"a whole number from 0 to {MAX_TOKENS_LIMIT}",
        _integer(0, MAX_TOKENS_LIMIT),
        int,
    ),
    Option(
        "logit_bias",
        {},
        "added to the scores of tokens, given by id or text",
        "a dict from token ids or texts to numbers below infinity, or to False",
        _logit_bias,
        _parse_logit_bias,
    ),
    Option(
        "schema",
        None,
        "the text is JSON valid under this JSON schema",
        'None, "json", a JSON schema as a dict or a text, or a class with model_json_schema()',
        _schema,
        str,
    ),
    Option(
        "regex",
        None,
        "the text matches this regular expression from beginning to end",
        "None or a text",
        _text,
        str,
    ),
    Option(
        "grammar",
        None,
        "the text obeys this grammar, in GBNF or llguidance's Lark",
        "None or a text",
        _text,
        str,
    ),
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}

OLLAMA_NAMES: Mapping[str, str] = {"num_predict": "max_tokens"}
"""Ollama's names for options that are called otherwise here."""

_CONSTRAINTS = ("schema", "regex", "grammar")
