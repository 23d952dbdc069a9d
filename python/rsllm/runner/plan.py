"""How much memory a model will take, known before any of it is allocated.

The figures are the core's own: it computes them from the file's metadata with the code that allocates, so they equal
`Engine.info()` to the byte once the model is loaded. Weights are mapped from the file: they take memory that the system
can take back at any time, at a price in speed, and are listed apart from what the process allocates for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rsllm.errors import ProtocolError

__all__ = ["MemoryPlan", "mebibytes"]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one model takes, in bytes, and the context that this is for."""

    context: int
    """Tokens."""
    context_reason: str
    """Why it is so long: as requested, the model's limit, or what fits."""
    training_context: int
    """Tokens that the model was trained for."""
    weight_bytes: int
    """Mapped from the file."""
    kv_bytes: int
    """The KV cache of a full context."""
    scratch_bytes: int
    """Activations and scratch."""
    mapped: bool = True
    """The weights are mapped; else they are read, and are memory of the process's own."""

    @classmethod
    def from_core(cls, plan: Mapping[str, Any], *, mapped: bool = True) -> MemoryPlan:
        """The plan that `_core.plan` gives. Members that are not known here are left alone."""
        try:
            return cls(
                context_reason=str(plan["context_reason"]),
                mapped=mapped,
                **{
                    name: int(plan[name])
                    for name in ("context", "training_context", "weight_bytes", "kv_bytes", "scratch_bytes")
                },
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a memory plan lacks or garbles a figure: {error!r}"[:500]) from None

    @property
    def own_bytes(self) -> int:
        """What the process allocates for itself: this must fit, or loading is refused."""
        return self.kv_bytes + self.scratch_bytes + (0 if self.mapped else self.weight_bytes)

    @property
    def total_bytes(self) -> int:
        """With the weights: what should fit for full speed."""
        return self.kv_bytes + self.scratch_bytes + self.weight_bytes

    def describe(self) -> str:
        """The plan in one line.

        >>> MemoryPlan(4096, "as requested", 8192, 96 << 20, 90 << 20, 30 << 20).describe()
        'context 4096 (as requested): 96 MiB of weights, mapped; 90 MiB of KV cache; 30 MiB of scratch'
        """
        return (
            f"context {self.context} ({self.context_reason}): {mebibytes(self.weight_bytes)} of weights, "
            f"{'mapped' if self.mapped else 'read'}; "
            f"{mebibytes(self.kv_bytes)} of KV cache; {mebibytes(self.scratch_bytes)} of scratch"
        )


def mebibytes(n_bytes: int) -> str:
    """Bytes in whole MiB."""
    return f"{n_bytes >> 20} MiB"
