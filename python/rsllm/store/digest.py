"""Digests: the one type that may become the name of a blob.

Whatever comes from a manifest, a request or a registry passes `Digest.parse` before it gets near a path, so a digest
such as `sha256:../../x` ends here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rsllm.errors import DigestError

__all__ = ["Digest"]

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})", re.ASCII)
_SHOWN = 80


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256; `hex` is 64 lower-case digits."""

    hex: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.hex, re.ASCII):
            raise DigestError(f"invalid digest format: {self.hex[:_SHOWN]!r}", name="digest")

    @classmethod
    def parse(cls, text: object) -> Digest:
        """`sha256:` or `sha256-` and 64 lower-case digits, nothing else; raises `DigestError`."""
        match = _DIGEST.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            shown = text[:_SHOWN] if isinstance(text, str) else text
            raise DigestError(
                f"invalid digest format: {shown!r}",
                name="digest",
                hint="a digest is sha256: and 64 digits, 0-9 and a-f",
            )
        return cls(match[1])

    @classmethod
    def of(cls, data: bytes) -> Digest:
        """The digest of these bytes."""
        return cls(hashlib.sha256(data).hexdigest())

    @property
    def file_name(self) -> str:
        """The name of its file: `sha256-…`."""
        return f"sha256-{self.hex}"

    @property
    def short(self) -> str:
        """The first twelve digits, as progress lines and lists show them."""
        return self.hex[:12]

    def __str__(self) -> str:
        return f"sha256:{self.hex}"
