"""Other services' protocols as translations of the native one: JSON in, JSON out, and events for streams.

Each module turns a request of its dialect into the body of a native route, and what that route answers into replies,
events and errors of the dialect. Nothing here calls anything, and nothing here decides anything that the native routes
decide. A field that is accepted and has no effect is named in the `warnings` of the reply.
"""
