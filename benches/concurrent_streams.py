"""Many streams at once on one model: tokens a second of all together, against one alone.

    python -m benches.concurrent_streams              16 streams of the demo model
    python -m benches.concurrent_streams --short      4 streams of few tokens

Where `build_peers.sh` has made an environment of llama.cpp, one stream of it is measured between the runs of ours.
The figures are medians of three interleaved rounds.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import rsllm
from benches.engines import ENGINES, Worker
from benches.streams import Arguments, arguments, run_stream, text_ids

PEERS = ("llama-native", "llama-no-amx", "llama-avx2", "xllamacpp")
PROMPT_TOKENS = 16


def main() -> int:
    """Prints the rates and how they stand to each other."""
    options = arguments("concurrent_streams", __doc__)
    streams, tokens, rounds = (4, 16, 1) if options.short else (16, 64, 3)
    peer = start_peer(options)
    together, alone, peers = [], [], []
    with rsllm.load(options.model, threads=options.threads, context=4096) as model:
        rate(model, 1, 4, 999)
        for turn in range(rounds):
            alone.append(rate(model, 1, tokens, 100 * turn))
            together.append(rate(model, streams, tokens, 100 * turn + 50))
            if peer is not None:
                answer = peer.call("decode", tokens=tokens, depth=PROMPT_TOKENS).answer
                peers.append(answer["tokens"] / answer["seconds"])
        sizes = {str(most): steps for most, steps in model.metrics()["batch_sizes"] if steps}
    print(f"one stream            {median(alone):8.1f} tokens/s")
    gain = median(together) / median(alone)
    print(f"{streams:2} streams            {median(together):8.1f} tokens/s, {gain:.2f} times one")
    if peer is not None:
        peer.close()
        print(f"one of {peer.spec.name:<14} {median(peers):8.1f} tokens/s; {streams} of ours are", end=" ")
        print(f"{median(together) / median(peers):.2f} times that")
    print(f"steps by sequences    {sizes}")
    return 0


def rate(model: rsllm.Model, streams: int, tokens: int, seed: int) -> float:
    """Tokens a second of all streams, from the first start to the last end, prompts included."""
    prompts = [text_ids(model, PROMPT_TOKENS, seed + i) for i in range(streams)]
    start = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        done = list(pool.map(lambda ids: run_stream(model, ids, tokens), prompts))
    count = sum(len(stream.times) for stream in done)
    assert count == streams * tokens, "every stream runs to its end"
    return count / (time.perf_counter() - start)


def start_peer(options: Arguments) -> Worker | None:
    """The first llama.cpp that is there."""
    for name in PEERS:
        if ENGINES[name].python.exists():
            return Worker(ENGINES[name], options.model, options.threads, 4096, 600.0)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
