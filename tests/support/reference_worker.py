"""The reference engine's side of `reference.py`: one model, driven by JSON lines.

Runs in the reference engine's own virtual environment, so it imports nothing of this project. It calls llama.cpp's C
API through `llama_cpp`'s thin bindings: no sampling, template or cache of the Python wrapper comes between. A request
is an object with `call` and that function's arguments; the reply is `{"ok": …}` or `{"error": text}`. Arrays travel as
`.npy` files, because a thousand rows of logits weigh a gigabyte.
"""

# mypy: ignore-errors
# (llama_cpp is not installed where the type checker runs.)

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback

import llama_cpp.llama_cpp as C
import numpy as np

KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


class Session:
    """One loaded model and one context."""

    def __init__(self, model: str, kv_type: str, threads: int, n_ctx: int, n_ubatch: int, vocab_only: bool) -> None:
        C.llama_backend_init()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        self.model = C.llama_model_load_from_file(os.fsencode(model), params)
        if not self.model:
            raise RuntimeError(f"the reference engine cannot load {model}")
        self.vocab = C.llama_model_get_vocab(self.model)
        self.n_vocab = C.llama_vocab_n_tokens(self.vocab)
        self.context = None
        if vocab_only:
            return
        context = C.llama_context_default_params()
        context.n_ctx = n_ctx
        context.n_batch = n_ctx
        context.n_ubatch = n_ubatch
        context.n_threads = context.n_threads_batch = threads
        context.type_k = context.type_v = KV_TYPES[kv_type]
        if kv_type == "f32":
            # Fused attention rounds Q to the type its kernel likes; the plain product keeps everything in f32.
            context.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = C.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError("the reference engine cannot make a context")
        self.batch = C.llama_batch_init(n_ctx, 0, 1)

    def info(self) -> dict:
        return {"n_vocab": self.n_vocab, "system": C.llama_print_system_info().decode()}

    def tokenize(self, texts: list[str], add_special: bool, parse_special: bool) -> list[list[int]]:
        return [self._tokenize(text.encode(), add_special, parse_special) for text in texts]

    def _tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(text) + 16
        while True:
            ids = (C.llama_token * room)()
            n = C.llama_tokenize(self.vocab, text, len(text), ids, room, add_special, parse_special)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def detokenize(self, ids: list[int], render_special: bool) -> str:
        tokens = (C.llama_token * len(ids))(*ids)
        room = 64 * len(ids) + 64
        text = ctypes.create_string_buffer(room)
        n = C.llama_detokenize(self.vocab, tokens, len(ids), text, room, False, render_special)
        return text.raw[:n].decode(errors="replace")

    def logits(self, ids: list[int], prompt: int, out: str) -> dict:
        """Rows for all positions; the first `prompt` ids in one batch, each of the others in a batch of its own."""
        rows = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=(len(ids), self.n_vocab))
        self._clear()
        self._decode(ids[:prompt], 0, all_rows=True)
        rows[:prompt] = self._rows(prompt)
        for i in range(prompt, len(ids)):
            self._decode(ids[i : i + 1], i, all_rows=True)
            rows[i] = self._rows(1)[0]
        rows.flush()
        return {"rows": len(ids)}

    def greedy(self, ids: list[int], max_tokens: int) -> dict:
        """Greedy continuation and, for each token, by how much it led the next best one."""
        self._clear()
        self._decode(ids, 0, all_rows=False)
        made: list[int] = []
        margins: list[float] = []
        while len(made) < max_tokens:
            row = self._rows(1)[0]
            second, best = np.partition(row, -2)[-2:]
            token = int(np.argmax(row))
            if C.llama_vocab_is_eog(self.vocab, token):
                break
            made.append(token)
            margins.append(float(best - second))
            self._decode([token], len(ids) + len(made) - 1, all_rows=False)
        return {"ids": made, "margins": margins}

    def rank(self, ids: list[int], threads: int) -> float:
        """The score of a reranker's head, computed in F32."""
        params = C.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES["f32"]
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.embeddings = True
        params.pooling_type = C.LLAMA_POOLING_TYPE_RANK
        usual, self.context = self.context, C.llama_init_from_model(self.model, params)
        try:
            self._decode(ids, 0, all_rows=True)
            return float(C.llama_get_embeddings_seq(self.context, 0)[0])
        finally:
            C.llama_free(self.context)
            self.context = usual

    def _clear(self) -> None:
        C.llama_memory_clear(C.llama_get_memory(self.context), True)

    def _decode(self, ids: list[int], start: int, all_rows: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_rows or i == len(ids) - 1
        code = C.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode answered {code}")

    def _rows(self, n: int) -> np.ndarray:
        return np.ctypeslib.as_array(C.llama_get_logits(self.context), shape=(n, self.n_vocab))


def main() -> None:
    # The protocol owns the real standard output; whatever the engine prints goes to standard error.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not os.environ.get("RSLLM_REFERENCE_LOG"):
        C.llama_log_set(silent, None)
    session = None
    for line in sys.stdin:
        request = json.loads(line)
        call = request.pop("call")
        try:
            if call == "load":
                session = Session(**request)
                answer = session.info()
            else:
                answer = getattr(session, call)(**request)
            reply = {"ok": answer}
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


@C.llama_log_callback
def silent(level, text, user_data):
    """Drops the engine's log."""


if __name__ == "__main__":
    main()
