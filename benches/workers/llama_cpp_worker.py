"""llama.cpp through `llama_cpp`'s bindings of its C API, as llama-bench measures: one call a batch, no sampling."""

from __future__ import annotations

import os
import time
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as C
from protocol import serve, token_ids

WARM_TOKENS = 8


class LlamaCpp:
    """One model and one context, F16 KV, all other settings llama.cpp's own."""

    def load(self, model: str, threads: int, context: int) -> dict[str, Any]:
        """Loads and says which instructions the build uses."""
        C.llama_backend_init()
        self.model = C.llama_model_load_from_file(os.fsencode(model), C.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"cannot load {model}")
        params = C.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = context
        params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        self.context = C.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("cannot make a context")
        self.memory = C.llama_get_memory(self.context)
        self.batch = C.llama_batch_init(context, 0, 1)
        self.vocab_size = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.model))
        self.filled = 0
        return {"version": llama_cpp.__version__, "system": C.llama_print_system_info().decode()}

    def prefill(self, tokens: int) -> dict[str, Any]:
        """One decode call of `tokens` tokens; logits for the last."""
        C.llama_memory_clear(self.memory, True)
        self.filled = 0
        start = time.perf_counter()
        self._decode(token_ids(tokens, self.vocab_size), 0)
        return {"seconds": time.perf_counter() - start, "tokens": tokens}

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """Single-token calls after `depth` tokens (a few where that is 0), which later repetitions keep."""
        depth = max(depth, WARM_TOKENS)
        ids = token_ids(depth + tokens, self.vocab_size)
        if self.filled != depth or not C.llama_memory_seq_rm(self.memory, 0, depth, -1):
            C.llama_memory_clear(self.memory, True)
            self._decode(ids[:depth], 0)
        self.filled = depth
        start = time.perf_counter()
        for i in range(depth, depth + tokens):
            self._decode(ids[i : i + 1], i)
        return {"seconds": time.perf_counter() - start, "tokens": tokens}

    def _decode(self, ids: list[int], position: int) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(ids) - 1
        if (code := C.llama_decode(self.context, batch)) != 0:
            raise RuntimeError(f"llama_decode answered {code}")
        C.llama_synchronize(self.context)


@C.llama_log_callback
def silent(level: int, text: bytes, user_data: object) -> None:
    """Drops the engine's log."""


if __name__ == "__main__":
    C.llama_log_set(silent, None)
    serve(LlamaCpp())
