"""Bodies that come compressed: zstd, as some clients send theirs, gzip and deflate.

A small body can hold a huge one, so nothing is made of it beyond a limit, whatever it says of itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from rsllm.server.errors import ApiError

__all__ = ["INFLATED_BYTES", "inflated", "is_known"]

INFLATED_BYTES = 20 << 20
"""What a compressed body may hold, at most."""

# zstd keeps so much of what it has written; a frame that asks for more is refused (a power of two).
_WINDOW_LOG = 25


def is_known(encoding: str) -> bool:
    """Whether bodies in this encoding are read."""
    return encoding in _DECODERS


def inflated(data: bytes, encoding: str, limit: int) -> bytes:
    """What a body holds; raises `ApiError`: 400 where it is damaged, 413 where it holds more than `limit` bytes.

    >>> inflated(zlib.compress(b"text"), "deflate", 10)
    b'text'
    """
    decoder = _DECODERS[encoding]()
    damaged = ApiError(400, f"the body is not what its encoding {encoding!r} says")
    try:
        # One byte more tells whether there is more.
        found: bytes = decoder.decompress(data, limit + 1)
    except (zlib.error, ValueError, EOFError) as error:
        raise damaged from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise damaged from error
        raise
    if len(found) > limit:
        raise ApiError(413, f"the body holds more than {limit:,} bytes once it is decompressed")
    if not decoder.eof:
        raise ApiError(400, f"the body in the encoding {encoding!r} is cut short")
    if decoder.unused_data:
        raise damaged
    return found


def _zstd() -> Any:
    # In Python's own library from 3.14 on.
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from backports import zstd
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


_DECODERS: dict[str, Callable[[], Any]] = {
    "zstd": _zstd,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "x-gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}
