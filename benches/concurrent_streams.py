"""Many streams at once on one model: tokens a second of all together, against one alone.

    python -m benches.concurrent_streams              16 streams of the demo model
    python -m benches.concurrent_streams --short      4 streams of few tokens

Where `build_peers.sh` has made an environment of llama.cpp, one stream of it is measured between the runs of ours; and
where it has made one of mistral.rs, as many streams of the same prompts and lengths, in batches of its own. The figures
are medians of three interleaved rounds; a peer that takes more than a minute is asked once.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import rsllm
from benches.engines import ENGINES, Worker
from benches.streams import Arguments, arguments, run_stream, text_ids

PEERS = ("llama-native", "llama-no-amx", "llama-avx2", "xllamacpp")
BATCHING_PEER = "mistralrs"
PROMPT_TOKENS = 16
CONTEXT = 4096
TIMEOUT_SECONDS = 600.0
LONG_SECONDS = 60.0


def main() -> int:
    """Prints the rates and how they stand to each other."""
    options = arguments("concurrent_streams", __doc__)
    streams, tokens, rounds = (4, 16, 1) if options.short else (16, 64, 3)
    peer = start_peer(options)
    batching = start_batching_peer(options, streams)
    together, alone, peers = [], [], []
    batches: list[dict[str, Any]] = []
    with rsllm.load(options.model, threads=options.threads, context=CONTEXT) as model:
        rate(model, 1, 4, 999)
        for turn in range(rounds):
            alone.append(rate(model, 1, tokens, 100 * turn))
            together.append(rate(model, streams, tokens, 100 * turn + 50))
            if peer is not None:
                answer = peer.call("decode", tokens=tokens, depth=PROMPT_TOKENS).answer
                peers.append(answer["tokens"] / answer["seconds"])
            if batching is not None and (not batches or batches[-1]["seconds"] < LONG_SECONDS):
                texts = [model.detokenize(ids) for ids in prompts(model, streams, 100 * turn + 50)]
                batches.append(batching.call("streams", prompts=texts, tokens=tokens).answer)
        sizes = {str(most): steps for most, steps in model.metrics()["batch_sizes"] if steps}
    print(f"one stream            {median(alone):8.1f} tokens/s")
    gain = median(together) / median(alone)
    print(f"{streams:2} streams            {median(together):8.1f} tokens/s, {gain:.2f} times one")
    if peer is not None:
        peer.close()
        print(f"one of {peer.spec.name:<14} {median(peers):8.1f} tokens/s; {streams} of ours are", end=" ")
        print(f"{median(together) / median(peers):.2f} times that")
    if batching is not None:
        batching.close()
        print_batching_peer(batching, batches, median(together))
    print(f"steps by sequences    {sizes}")
    return 0


def print_batching_peer(peer: Worker, answers: list[dict[str, Any]], ours: float) -> None:
    """Its rate for the same load, and what it made of the prompts."""
    theirs = median(answer["tokens"] / answer["seconds"] for answer in answers)
    last = answers[-1]
    print(f"the same of {peer.spec.name:<9} {theirs:8.1f} tokens/s; ours are {ours / theirs:.2f} times that")
    print(f"    {len(answers)} times; {last['tokens']} tokens behind prompts of {last['prompt_tokens']}; {last['how']}")


def prompts(model: rsllm.Model, streams: int, seed: int) -> list[list[int]]:
    """One for each stream, all different."""
    return [text_ids(model, PROMPT_TOKENS, seed + i) for i in range(streams)]


def rate(model: rsllm.Model, streams: int, tokens: int, seed: int) -> float:
    """Tokens a second of all streams, from the first start to the last end, prompts included."""
    asked = prompts(model, streams, seed)
    start = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        done = list(pool.map(lambda ids: run_stream(model, ids, tokens), asked))
    count = sum(len(stream.times) for stream in done)
    assert count == streams * tokens, "every stream runs to its end"
    return count / (time.perf_counter() - start)


def start_peer(options: Arguments) -> Worker | None:
    """The first llama.cpp that is there."""
    for name in PEERS:
        if ENGINES[name].python.exists():
            return Worker(ENGINES[name], options.model, options.threads, CONTEXT, TIMEOUT_SECONDS)
    print(f"no llama.cpp beside ours: none of {', '.join(PEERS)} is built (benches/build_peers.sh)")
    return None


def start_batching_peer(options: Arguments, streams: int) -> Worker | None:
    """mistral.rs, where it is there."""
    spec = ENGINES[BATCHING_PEER]
    if not spec.python.exists():
        print(f"no {spec.name} beside ours: it is not built (benches/build_peers.sh {spec.name})")
        return None
    return Worker(spec, options.model, options.threads, CONTEXT, TIMEOUT_SECONDS, sequences=streams)


if __name__ == "__main__":
    raise SystemExit(main())
