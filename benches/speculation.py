"""Tokens a second with and without guesses, where texts repeat themselves and where they do not.

    python -m benches.speculation                              prompt lookup on the demo model
    python -m benches.speculation MODEL.gguf --draft SMALL     and a draft model
    python -m benches.speculation --short                      fewer tokens, for checking that it works

Three texts are continued greedily: code to be repeated with a change, a text to be summarised in its own sentences,
and a story, which nothing before it tells. Rounds with and without take turns; the figures are medians. The texts
must be the same, or the script fails.
"""

from __future__ import annotations

import argparse
from statistics import median

import rsllm
from rsllm.errors import TemplateError

CODE = """def read_config(path):
    with open(path) as handle:
        lines = handle.readlines()
    result = {}
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, value = line.split("=", 1)
        result[key.strip()] = value.strip()
    return result


def write_config(path, result):
    with open(path, "w") as handle:
        for key, value in sorted(result.items()):
            handle.write(f"{key} = {value}\\n")
"""
TEXT = """The river rises in the northern hills, where three springs meet below an old stone bridge. For the first ten
miles it runs between steep banks of clay, and few people live there. Below the mill at Harrow it widens, and
the land on both sides becomes flat and rich. Farmers there have grown barley for six hundred years. Every
spring the water covers the lower fields for a week or two, and what it leaves behind is the reason why the
barley grows so well. In the last century the town built a wall to keep the water out of its market. The wall
was finished in nine years and cost more than the town had earned in twenty. Since then the market has been
dry, but the fields below it are flooded for a month instead of a week. A second wall was planned and never
built. Today the mill is a museum, the bridge is closed to carts, and the three springs are a place where
people go for walks on Sundays. The river itself has changed little."""
PROMPTS = {
    "code": f"Repeat this code exactly, but rename `result` to `settings`:\n```python\n{CODE}```",
    "summary": f"Summarise this text by quoting its most important sentences:\n\n{TEXT}",
    "story": "Tell me a story about a fox who wanted to be a baker.",
}


def main() -> int:
    """Prints a line a prompt, and fails where a text differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.speculation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo", help="a path or a reference (default: demo)")
    parser.add_argument("--draft", help="a smaller model with the same vocabulary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--short", action="store_true", help="fewer tokens, for checking that it works")
    options = parser.parse_args()
    rounds, tokens = (1, 40) if options.short else (5, 240)
    same = True
    with rsllm.load(options.model, threads=options.threads, context=2048, draft=options.draft) as model:
        for name, prompt in PROMPTS.items():
            replies: dict[int, list[rsllm.Reply]] = {0: [], rsllm.options.MAX_DRAFT: []}
            for _ in range(rounds):
                for most in replies:
                    replies[most].append(answer(model, prompt, tokens, most, options.temperature))
            plain, drafted = (
                median(reply.stats.generated_tokens_per_second for reply in of_kind) for of_kind in replies.values()
            )
            last = replies[rsllm.options.MAX_DRAFT][-1].stats
            same = same and len({reply.text for of_kind in replies.values() for reply in of_kind}) == 1
            print(
                f"{name:8} {plain:7.1f} -> {drafted:7.1f} tokens/s, {drafted / plain:.2f} times; "
                f"{last.accepted_tokens} of {last.drafted_tokens} guesses came true in {last.generated_tokens} tokens"
            )
    if not same:
        print("the texts differ")
    return 0 if same else 1


def answer(model: rsllm.Model, prompt: str, tokens: int, most: int, temperature: float) -> rsllm.Reply:
    """The answer to a message, or to plain text where the file has no template."""
    try:
        return model.chat().generate(prompt, temperature=temperature, seed=1, max_tokens=tokens, max_draft=most)
    except TemplateError:
        return model.generate(prompt, temperature=temperature, seed=1, max_tokens=tokens, max_draft=most)


if __name__ == "__main__":
    raise SystemExit(main())
