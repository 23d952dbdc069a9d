"""rsllm through its core's own benchmark call, which runs the engine thread as a request does."""

from __future__ import annotations

import os
from typing import Any

from protocol import serve

from rsllm import _core


class Rsllm:
    """One engine, F16 KV, the instruction set of `RSLLM_ISA` or the one it chooses by itself."""

    def load(self, model: str, threads: int, context: int) -> dict[str, Any]:
        """Loads and says what was chosen, and how many bytes of weights a generated token reads."""
        self.engine = _core.Engine(
            model, threads=threads, context=context, kv_type="f16", isa=os.environ.get("RSLLM_ISA")
        )
        self.file = (model, threads)
        info = self.engine.info()
        return {
            "version": _core.__version__,
            "system": f"isa {info['isa']}",
            "decode_bytes_per_token": info["decode_bytes_per_token"],
        }

    def prefill(self, tokens: int) -> dict[str, Any]:
        """A prompt from nothing."""
        found = self.engine.bench(prompt=tokens, generate=0, depth=0)
        return {"seconds": found["prompt_ns"] / 1e9, "tokens": found["prompt_tokens"]}

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """Generation after `depth` tokens, and how fast loops that do nothing else then read the same file."""
        found = self.engine.bench(prompt=0, generate=tokens, depth=depth)
        return {
            "seconds": found["generate_ns"] / 1e9,
            "tokens": found["generate_tokens"],
            "read_bytes_per_second": _core.measure_read_bandwidth(*self.file),
        }


if __name__ == "__main__":
    serve(Rsllm())
