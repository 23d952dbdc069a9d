"""A real Ollama beside rsllm: on one store, on one registry, and each one's commands at the other's server."""
