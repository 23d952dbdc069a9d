"""One child process a model, and the pool that starts, shares and stops them.

A model that crashes, runs out of memory or reads a file that vanishes ends one child: its callers get an error that
names the exit status and the child's last lines, everybody else goes on, and memory is freed because a process ended.

`protocol` is what travels between the two sides, `worker` the child's main, `child` and `process` its parent's side,
`policy` the decisions as pure functions, `plan` what a model will need of memory, `scheduler` the state of all models
(events in, effects out), `effects` what it wants done, `pool` the asyncio face of it all, and `watch` whom that tells.
No HTTP here, and nothing but `worker` touches the core.
"""
