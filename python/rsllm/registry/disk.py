"""The disk's side of a download: one thread that writes, one that reads back and hashes, both at low I/O priority.

What is hashed is what the file holds, read back (from memory as a rule, since it was written a moment ago) in the
order of the file, while later bytes are still coming.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rsllm.registry.parts import Part, PartFiles
from rsllm.store.files import explained, lower_io_priority

__all__ = ["Disk"]

_Result = TypeVar("_Result")
_HASH_BYTES = 2**20


class Disk:
    """The open data file of one download; `close` it, whatever happens."""

    def __init__(self, files: PartFiles) -> None:
        self._files = files
        self._writer = _thread("rsllm-write")
        self._hasher = _thread("rsllm-hash")
        self._file = files.data.open("r+b", buffering=0)
        self._reading = files.data.open("rb", buffering=0)
        self._digest = hashlib.sha256()
        self._hashed = 0

    async def write(self, part: Part, data: bytes | bytearray) -> None:
        """Append to a part, and note how far it is; `part.completed` moves when both are done."""
        await _run(self._writer, lambda: self._write(part, data))

    async def hash_to(self, end: int) -> None:
        """Take the file's bytes before `end` into the digest; they must have been written."""
        await _run(self._hasher, lambda: self._hash_to(end))

    def digest(self) -> str:
        """The SHA-256 of the bytes hashed so far, in hexadecimal."""
        return self._digest.hexdigest()

    async def sync(self) -> None:
        """Have the bytes survive a power cut."""
        await _run(self._writer, lambda: os.fsync(self._file.fileno()))

    async def close(self) -> None:
        """Close the file once the threads are done with it."""
        closing = asyncio.gather(_run(self._writer, self._file.close), _run(self._hasher, self._reading.close))
        await asyncio.shield(closing)
        self._writer.shutdown(wait=False)
        self._hasher.shutdown(wait=False)

    def _write(self, part: Part, data: bytes | bytearray) -> None:
        with explained(self._files.data, "write a download"):
            self._file.seek(part.position)
            rest = memoryview(data)
            while len(rest):
                rest = rest[self._file.write(rest) :]
            part.completed += len(data)
            self._files.save(part)

    def _hash_to(self, end: int) -> None:
        with explained(self._files.data, "read a download"):
            while self._hashed < end:
                data = self._reading.read(min(_HASH_BYTES, end - self._hashed))
                if not data:
                    raise OSError(f"the file ends at {self._hashed:,} of {end:,} bytes")
                self._digest.update(data)
                self._hashed += len(data)


def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=lower_io_priority)


async def _run(executor: ThreadPoolExecutor, job: Callable[[], _Result]) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(executor, job)
