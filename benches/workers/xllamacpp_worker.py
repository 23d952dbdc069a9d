"""llama.cpp as shipped in the `xllamacpp` wheel, through its in-process server: timings are the server's own."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import xllamacpp
from protocol import serve, token_ids

# The server does not tell the size of the vocabulary; every model compared has more tokens than this.
SAFE_VOCAB_SIZE = 32000
WARM_TOKENS = 8


class XLlamaCpp:
    """One server with one slot, F16 KV."""

    def load(self, model: str, threads: int, context: int) -> dict[str, Any]:
        """Starts the server; it returns when the model is ready."""
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx = context
        params.n_batch = context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = False
        params.cache_ram_mib = 0
        self.server = xllamacpp.Server(params)
        return {"version": version("xllamacpp"), "system": xllamacpp.get_system_info()}

    def prefill(self, tokens: int) -> dict[str, Any]:
        """A prompt of `tokens` ids and one token of answer, which its time leaves out."""
        timings = self._complete(tokens, 1, cache=False)
        return {"seconds": timings["prompt_ms"] / 1000, "tokens": timings["prompt_n"]}

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """The first token comes from the prompt, so one more is asked for."""
        timings = self._complete(max(depth, WARM_TOKENS), tokens + 1, cache=True)
        return {"seconds": timings["predicted_ms"] / 1000, "tokens": timings["predicted_n"] - 1}

    def _complete(self, prompt: int, predict: int, *, cache: bool) -> dict[str, Any]:
        answer = self.server.handle_completions(
            {
                "prompt": token_ids(prompt, SAFE_VOCAB_SIZE),
                "n_predict": predict,
                "cache_prompt": cache,
                "temperature": 0,
                "ignore_eos": True,
            }
        )
        if "timings" not in answer:
            raise RuntimeError(f"the server answered {answer}")
        timings: dict[str, Any] = answer["timings"]
        return timings


if __name__ == "__main__":
    serve(XLlamaCpp())
