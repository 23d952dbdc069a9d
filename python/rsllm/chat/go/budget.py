"""How much one rendering of a Go template may do. Templates come with model files, written by strangers."""

from __future__ import annotations

import time

from rsllm.errors import TemplateError

__all__ = ["OUTPUT_LIMIT", "STEP_DEPTH_LIMIT", "TEXT_LIMIT", "TIME_LIMIT_SECONDS", "Budget", "failure"]

TIME_LIMIT_SECONDS = 0.5
OUTPUT_LIMIT = 8 * 2**20
"""Most characters of a prompt, and of any one string."""
TEXT_LIMIT = 4 * OUTPUT_LIMIT
"""Most characters that all functions together may put into strings."""
STEP_DEPTH_LIMIT = 100
"""Most blocks, parentheses and templates within each other while running."""


class Budget:
    """Counts; raises `TemplateError` where a limit is passed, with the line where the rendering stands."""

    def __init__(self) -> None:
        self.line = 1
        self._deadline = time.thread_time() + TIME_LIMIT_SECONDS
        self._text = 0
        self._output = 0
        self._depth = 0

    def tick(self) -> None:
        """Look at the clock: this thread's processor time."""
        if time.thread_time() > self._deadline:
            raise failure(f"it ran longer than {TIME_LIMIT_SECONDS:g} s", self.line)

    def enter(self) -> None:
        """One level deeper."""
        self._depth += 1
        if self._depth > STEP_DEPTH_LIMIT:
            raise failure(f"blocks and templates are nested more than {STEP_DEPTH_LIMIT} deep", self.line)

    def leave(self) -> None:
        """One level up."""
        self._depth -= 1

    def text(self, length: int) -> None:
        """A function is about to make a string, or a part of one."""
        self._text += length
        if length > OUTPUT_LIMIT or self._text > TEXT_LIMIT:
            raise failure(f"its functions make more than {OUTPUT_LIMIT:,} characters", self.line)

    def output(self, length: int) -> None:
        """Characters are about to be put out."""
        self._output += length
        if self._output > OUTPUT_LIMIT:
            raise failure(f"it puts out more than {OUTPUT_LIMIT:,} characters", self.line)


def failure(reason: str, line: int) -> TemplateError:
    """The error of a template that ran and failed."""
    return TemplateError(f"the Go template failed in line {line}: {reason}", line=line)
