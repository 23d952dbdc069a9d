"""Go's template language as published models use it: text to tokens, to nodes, to output. No input or output here."""
