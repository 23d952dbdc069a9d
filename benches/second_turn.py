"""The second turn of a long conversation: what is computed again, and how long the first token takes.

python -m benches.second_turn                     3,000 tokens, then 100 of answer, then a short question
python -m benches.second_turn --short             300 tokens
"""

from __future__ import annotations

from typing import Any

import rsllm
from benches.streams import arguments, text_ids


def main() -> int:
    """Prints tokens and times of both turns, and fails where the second computes too much."""
    options = arguments("second_turn", __doc__)
    history, answer = (300, 20) if options.short else (3000, 100)
    settings: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    with rsllm.load(options.model, threads=options.threads, context=4096) as model:
        model.generate([1, 2, 3], max_tokens=2, **settings)
        conversation = text_ids(model, history)
        first = model.generate(conversation, max_tokens=answer, **settings)
        question = model.tokenize(" And what does all of that mean for the river?")
        second = model.generate([*conversation, *first.tokens, *question], max_tokens=8, **settings)
        page = model.metrics()["page_len"]
    computed = second.stats.prompt_tokens - second.stats.cached_tokens
    waits = [turn.stats.first_token_ns / 1e6 for turn in (first, second)]
    print(f"first turn   {first.stats.prompt_tokens:5} tokens computed, first token after {waits[0]:8.1f} ms")
    print(f"second turn  {computed:5} tokens computed, first token after {waits[1]:8.1f} ms")
    print(f"new tokens   {len(question):5}; the second wait is {waits[1] / waits[0]:.3f} of the first")
    if computed > len(question) + page:
        print(f"more than the new tokens and a page of {page} were computed")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
