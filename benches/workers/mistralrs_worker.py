"""mistral.rs through its wheel. It takes text only, so prompts are repeated words and the true counts are reported."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any

import mistralrs
from protocol import serve

# A chat of one message is that message, so that streams, which chats alone can be, have the prompts they are given.
TEMPLATE = "{{ messages[0]['content'] }}"


class MistralRs:
    """One runner. Threads follow `RAYON_NUM_THREADS`, which `compare.py` sets."""

    def load(self, model: str, threads: int, context: int, sequences: int = 1) -> dict[str, Any]:
        """Loads the GGUF from its folder, for so many sequences at once."""
        path = Path(model)
        which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(TEMPLATE)
            template.flush()
            self.runner = mistralrs.Runner(
                which=which, max_seqs=sequences, prefix_cache_n=0, token_source="none", jinja_explicit=template.name
            )
        self.calls = 0
        self.how = "all sent at once"
        return {"version": version("mistralrs"), "system": ""}

    def prefill(self, tokens: int) -> dict[str, Any]:
        """A prompt and one token of answer."""
        usage = self._complete(tokens, 1)
        return {"seconds": usage.total_prompt_time_sec, "tokens": usage.prompt_tokens}

    def decode(self, tokens: int, depth: int) -> dict[str, Any]:
        """Generation after a prompt of `depth` words; the first token belongs to the prompt."""
        usage = self._complete(max(depth, 8), tokens + 1)
        return {"seconds": usage.total_completion_time_sec, "tokens": usage.completion_tokens - 1}

    def streams(self, prompts: list[str], tokens: int) -> dict[str, Any]:
        """A stream of `tokens` for each prompt, all at once: from the first sent to the last end.

        0.9.5 cannot compute prompts of one length together on a CPU. Where they fail, each is sent when the one before
        has its first token, and they generate together from then on; `how` says so.
        """
        if self.how == "all sent at once":
            try:
                return self._streams(prompts, tokens, one_by_one=False)
            except ValueError as error:
                reason = str(error).splitlines()[0].partition(" Layout")[0]
                self.how = f"each sent at the first token of the one before, since together they fail: {reason}"
        return self._streams(prompts, tokens, one_by_one=True)

    def _streams(self, prompts: list[str], tokens: int, *, one_by_one: bool) -> dict[str, Any]:
        start = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            running = []
            for prompt in prompts:
                # From one thread: two calls of the runner at once are an error.
                began = Event()
                running.append(pool.submit(drain, self._stream(prompt, tokens), began))
                if one_by_one:
                    began.wait()
            usages = [stream.result() for stream in running]
        return {
            "seconds": time.perf_counter() - start,
            "tokens": sum(usage.completion_tokens for usage in usages),
            "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
            "how": self.how,
        }

    def _stream(self, prompt: str, tokens: int) -> Iterator[Any]:
        request = mistralrs.ChatCompletionRequest(
            messages=prompt, model="default", max_tokens=tokens, temperature=0.0, ignore_eos=True, stream=True
        )
        chunks: Iterator[Any] = self.runner.send_chat_completion_request(request)
        return chunks

    def _complete(self, prompt: int, predict: int) -> Any:
        # Another first word each time, so that no cached prefix helps.
        self.calls += 1
        words = ("one two three four five six seven eight nine ten").split()
        text = " ".join([words[self.calls % len(words)], *(["the"] * (prompt - 1))])
        request = mistralrs.CompletionRequest(
            prompt=text, model="default", max_tokens=predict, temperature=0.0, ignore_eos=True
        )
        return self.runner.send_completion_request(request).usage


def drain(chunks: Iterator[Any], began: Event) -> Any:
    """Reads a stream to its end: its usage. `began` is set at its first piece, or when it fails."""
    usage = None
    try:
        for chunk in chunks:
            began.set()
            usage = chunk.usage
    finally:
        began.set()
    return usage


if __name__ == "__main__":
    serve(MistralRs())
