"""What a generated token costs beside the model: sampling, text, channels, Python.

python -m benches.token_overhead [MODEL]          64 tokens, 9 rounds
python -m benches.token_overhead [MODEL] --short  8 tokens, 3 rounds

Each round decodes without all of that (`Model.bench`), greedily, and with the default sampling, one after the other.
"""

from __future__ import annotations

from statistics import median

import rsllm
from benches.streams import arguments, text_ids


def main() -> int:
    """Prints milliseconds a token and the share of them that is not the model's."""
    options = arguments("token_overhead", __doc__)
    tokens, rounds = (8, 3) if options.short else (64, 9)
    kinds = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1}}
    times: dict[str, list[float]] = {"model alone": [], **{kind: [] for kind in kinds}}
    with rsllm.load(options.model, threads=options.threads, context=2048) as model:
        ids = text_ids(model, 32)
        for _ in range(rounds):
            times["model alone"].append(1 / model.bench(generate=tokens, depth=32).generate_tokens_per_second)
            for kind, sampling in kinds.items():
                reply = model.generate(ids, max_tokens=tokens + 1, ignore_eos=True, max_draft=0, **sampling)
                times[kind].append(reply.stats.decode_ns / 1e9 / tokens)
        print(f"{options.model.name}, {model.info()['vocab_size']} tokens in the vocabulary")
    alone = median(times["model alone"])
    for kind, seconds in times.items():
        own = median(here - bare for here, bare in zip(seconds, times["model alone"], strict=True))
        share = own / alone
        print(f"{kind:<12} {median(seconds) * 1e3:8.3f} ms a token, beside the model {own * 1e3:7.3f} ms, {share:6.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
