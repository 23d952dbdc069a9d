"""The reference engine (llama.cpp) as an oracle: tokens, greedy text, teacher-forced logits.

`Reference` starts `reference_worker.py` in the environment of `assets.reference_python()`, loads one model there and
asks it questions. A crash of the engine ends that child and shows here as `ReferenceError` with its last words.
Perplexity follows from the logits: `fidelity.perplexity`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from tests.support import assets

Logits = npt.NDArray[np.float32]


class ReferenceError(RuntimeError):
    """The reference engine refused a request or died."""


class Reference:
    """One model in the reference engine. A context manager; `close` ends the child process."""

    def __init__(
        self,
        model: Path,
        *,
        kv_type: Literal["f32", "f16", "q8_0", "q4_0"] = "f16",
        threads: int | None = None,
        context: int = 2048,
        ubatch: int = 512,
        vocab_only: bool = False,
    ) -> None:
        worker = Path(__file__).with_name("reference_worker.py")
        # Waiting threads sleep: the tests share the machine's cores with whatever else runs.
        environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
        self._errors = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            [str(assets.reference_python()), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        answer = self._call(
            "load",
            model=str(model),
            kv_type=kv_type,
            threads=threads or len(os.sched_getaffinity(0)),
            n_ctx=context,
            n_ubatch=ubatch,
            vocab_only=vocab_only,
        )
        self.vocab_size: int = answer["n_vocab"]
        self.system_info: str = answer["system"]

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The ids of one text."""
        return self.tokenize_many([text], add_special=add_special, parse_special=parse_special)[0]

    def tokenize_many(
        self, texts: Sequence[str], *, add_special: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        """The ids of many texts, in one exchange."""
        answer: list[list[int]] = self._call(
            "tokenize", texts=list(texts), add_special=add_special, parse_special=parse_special
        )
        return answer

    def detokenize(self, ids: Sequence[int], *, render_special: bool = True) -> str:
        """The text of the ids; bytes that are not UTF-8 are replaced."""
        answer: str = self._call("detokenize", ids=list(ids), render_special=render_special)
        return answer

    def greedy(self, ids: Sequence[int], max_tokens: int) -> tuple[list[int], list[float]]:
        """The greedy continuation, ended by an end-of-generation token, and how far each token led the second best."""
        answer = self._call("greedy", ids=list(ids), max_tokens=max_tokens)
        return answer["ids"], answer["margins"]

    def logits(self, ids: Sequence[int], *, prompt: int | None = None, out: Path | None = None) -> Logits:
        """Teacher-forced logits `[n, vocab]`, one row a position.

        The first `prompt` ids (all unless given) are computed in one batch, the others one by one. With `out` the rows
        are kept in that `.npy` file and mapped; without, they are read and the file is removed.
        """
        prompt = len(ids) if prompt is None else prompt
        if out is not None:
            self._call("logits", ids=list(ids), prompt=prompt, out=str(out))
            mapped: Logits = np.load(out, mmap_mode="r")
            return mapped
        with tempfile.TemporaryDirectory(prefix=".logits-", dir=assets.cache_dir()) as folder:
            path = Path(folder) / "logits.npy"
            self._call("logits", ids=list(ids), prompt=prompt, out=str(path))
            rows: Logits = np.load(path)
            return rows

    def rank(self, ids: Sequence[int]) -> float:
        """The score that a reranker gives the ids of a pair."""
        score: float = self._call("rank", ids=list(ids), threads=1)
        return score

    def close(self) -> None:
        """Ends the child process."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._child.wait()
        self._errors.close()

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, call: str, **arguments: Any) -> Any:
        stdin, stdout = self._pipe(self._child.stdin), self._pipe(self._child.stdout)
        try:
            stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._child.wait()
            self._errors.seek(0)
            tail = self._errors.read().decode(errors="replace")[-2000:]
            raise ReferenceError(f"the reference engine ended with status {code} during `{call}`:\n{tail}")
        reply = json.loads(line)
        if "error" in reply:
            raise ReferenceError(reply["error"])
        return reply["ok"]

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "both pipes were asked for"
        return pipe
