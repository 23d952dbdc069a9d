"""How long work on the store tells of itself: the objects that pull, push and create stream."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One step. `digest` says which blob, `total` and `completed` are bytes; each is `None` where it does not apply."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None

    def as_dict(self) -> dict[str, str | int]:
        """What goes over the wire: the fields that are there."""
        fields = {"digest": self.digest, "total": self.total, "completed": self.completed}
        return {"status": self.status, **{name: value for name, value in fields.items() if value is not None}}
