"""JSON in the bytes that Go's encoder writes, so that equal content has equal digests whichever program wrote it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

__all__ = ["go_json"]

_FIXED_FROM, _FIXED_TO = 1e-6, 1e21


def go_json(value: Any) -> bytes:
    """Compact, five characters escaped, numbers as Go shortens them, a newline at the end. Keys keep their order.

    >>> go_json({"temperature": 1.0, "stop": ["<|im_end|>"]})
    b'{"temperature":1,"stop":["\\\\u003c|im_end|\\\\u003e"]}\\n'
    """
    text = _written(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode(errors="replace") + b"\n"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(str(key), ensure_ascii=False)}:{_written(value[key])}" for key in value) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value, ensure_ascii=False)


def _float(value: float) -> str:
    if value == 0 or _FIXED_FROM <= abs(value) < _FIXED_TO:
        text = format(Decimal(repr(value)), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{exponent[:1]}{exponent[1:].lstrip('0')}"
