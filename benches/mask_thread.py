"""What a constrained stream costs the streams beside it, and how much of its masks the mask thread hides.

python -m benches.mask_thread                     3 free streams and a constrained one
python -m benches.mask_thread --short             the same, with few tokens
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import rsllm
from benches.streams import Stream, arguments, run_stream, text_ids

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 20},
        "when": {"type": "string", "format": "date-time"},
    },
    "required": ["name", "tags", "when"],
}


def main() -> int:
    """Prints the gaps of the free streams alone and beside a constrained one, and what its masks took."""
    options = arguments("mask_thread", __doc__)
    tokens = 30 if options.short else 300
    with rsllm.load(options.model, threads=options.threads, context=8192) as model:
        run_stream(model, text_ids(model, 16, 900), 8)
        model.generate(text_ids(model, 16, 901), schema=SCHEMA, max_tokens=8)
        free, _ = run(model, tokens, constrained=False)
        before = model.metrics()
        beside, written = run(model, tokens, constrained=True)
        after = model.metrics()
    masks, waited = (after[name] - before[name] for name in ("mask_ns", "mask_wait_ns"))
    alone, together = (median(gap for stream in streams for gap in stream.gaps) for streams in (free, beside))
    print(f"3 free streams alone            median gap {alone * 1e3:7.2f} ms")
    print(f"beside a constrained stream     median gap {together * 1e3:7.2f} ms")
    n = max(written, 1) * 1e6
    hidden = masks - waited
    print(f"masks took {masks / n:.2f} ms a token beside the model, of which it waited for {waited / n:.2f} ms")
    print(f"the thread hides {hidden / max(masks, 1):.0%}: without it a step would take {hidden / n:.2f} ms more")
    return 0


def run(model: rsllm.Model, tokens: int, *, constrained: bool) -> tuple[list[Stream], int]:
    """Three free streams, beside them a constrained one if asked for, and how many tokens that wrote."""
    barrier = threading.Barrier(3 + constrained)

    def free(seed: int) -> Stream:
        barrier.wait()
        return run_stream(model, text_ids(model, 16, 1000 + seed), tokens)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(free, seed) for seed in range(3)]
        written = 0
        if constrained:
            barrier.wait()
            time.sleep(0.05)
            reply = model.generate(text_ids(model, 16, 2000), schema=SCHEMA, max_tokens=tokens)
            written = len(reply.tokens)
        return [future.result() for future in running], written


if __name__ == "__main__":
    raise SystemExit(main())
