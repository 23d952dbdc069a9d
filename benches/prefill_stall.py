"""How long running streams wait for their next token while another sequence computes a long prompt.

python -m benches.prefill_stall                   4 streams, then 4,000 tokens of prompt beside them
python -m benches.prefill_stall --short           2 streams, 400 tokens
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median

import rsllm
from benches.streams import Stream, arguments, run_stream, text_ids


def main() -> int:
    """Prints the gaps between tokens without and with the prompt."""
    options = arguments("prefill_stall", __doc__)
    streams, tokens, prompt = (2, 60, 400) if options.short else (4, 400, 4000)
    with rsllm.load(options.model, threads=options.threads, context=8192) as model:
        run_stream(model, text_ids(model, 16, 900), 8)
        quiet = [gap for stream in run(model, streams, tokens, 0)[0] for gap in stream.gaps]
        disturbed, begin, end = run(model, streams, tokens, prompt)
    gaps = [
        after - before
        for stream in disturbed
        for before, after in zip(stream.times, stream.times[1:], strict=False)
        if after > begin and before < end
    ]
    usual = median(quiet)
    print(f"without a prompt  median gap {usual * 1e3:7.2f} ms, worst {max(quiet) * 1e3:7.2f} ms")
    print(f"beside a prompt   median gap {median(gaps) * 1e3:7.2f} ms, worst {max(gaps) * 1e3:7.2f} ms")
    print(f"the worst gap is {max(gaps) / usual:.2f} times the usual one; {prompt} tokens took {end - begin:.2f} s")
    return 0


def run(model: rsllm.Model, streams: int, tokens: int, prompt: int) -> tuple[list[Stream], float, float]:
    """Streams, and in their middle a prompt (none for 0 tokens) with the times of its beginning and of its token."""
    prompts = [text_ids(model, 16, 1000 * prompt + i) for i in range(streams)]
    # Before the clock runs: making up a text and tokenising it keeps a processor busy that a server's client would.
    long_ids = text_ids(model, prompt, 77)
    barrier = threading.Barrier(streams + 1)

    def start(ids: list[int]) -> Stream:
        barrier.wait()
        return run_stream(model, ids, tokens)

    with ThreadPoolExecutor(streams) as pool:
        running: list[Future[Stream]] = [pool.submit(start, ids) for ids in prompts]
        barrier.wait()
        time.sleep(0.2)
        begin = end = time.perf_counter()
        if prompt:
            long = run_stream(model, long_ids, 1)
            end = long.times[0]
        return [future.result() for future in running], begin, end


if __name__ == "__main__":
    raise SystemExit(main())
