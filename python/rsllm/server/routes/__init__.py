"""The handlers, by topic. Each reads a request, calls one function, and says what came of it."""
