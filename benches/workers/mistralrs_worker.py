"""mistral.rs through its wheel. It takes text only, so prompts are repeated words and the true counts are reported."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import mistralrs
from protocol import serve


class MistralRs:
    """One runner with one sequence. Threads follow `RAYON_NUM_THREADS`, which `compare.py` sets."""

    def load(self, model: str, threads: int, context: int) -> dict[str, Any]:
        """Loads the GGUF from its folder."""
        path = Path(model)
        which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        self.runner = mistralrs.Runner(which=which, max_seqs=1, prefix_cache_n=0, token_source="none")
        self.calls = 0
        return {"version": version("mistralrs"), "system": ""}

    def prefill(self, tokens: int) -> dict[str, Any]:
        """A prompt and one token of answer."""
        usage = self._complete(tokens, 1)
        return {"seconds": usage.total_prompt_time_sec, "tokens": usage.prompt_tokens}

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """Generation after a prompt of `depth` words; the first token belongs to the prompt."""
        usage = self._complete(max(depth, 8), tokens + 1)
        return {"seconds": usage.total_completion_time_sec, "tokens": usage.completion_tokens - 1}

    def _complete(self, prompt: int, predict: int) -> Any:
        # Another first word each time, so that no cached prefix helps.
        self.calls += 1
        words = ("one two three four five six seven eight nine ten").split()
        text = " ".join([words[self.calls % len(words)], *(["the"] * (prompt - 1))])
        request = mistralrs.CompletionRequest(
            prompt=text, model="default", max_tokens=predict, temperature=0.0, ignore_eos=True
        )
        return self.runner.send_completion_request(request).usage


if __name__ == "__main__":
    serve(MistralRs())
