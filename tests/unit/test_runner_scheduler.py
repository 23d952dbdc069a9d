"""The scheduler with fake effects: events in, effects out, no processes and no clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rsllm.errors import EngineClosedError, MemoryPlanError, ModelError, QueueFullError, RunnerCrashedError
from rsllm.runner.plan import MemoryPlan
from rsllm.runner.policy import FOREVER
from rsllm.runner.scheduler import RETURN_SECONDS, Phase, Ticket
from tests.support.scheduler_world import MB, World, spec


def test_a_request_plans_loads_and_is_granted() -> None:
    world = World()
    ticket = world.scheduler.submit(spec("a"))
    assert world.log == ["plan a"]
    world.plan_all()
    assert world.log == ["load a"]
    world.load_all()
    assert world.log == ["grant a"]
    world.scheduler.want_place(ticket, 100)
    assert world.log == ["place a"]
    assert world.scheduler.entries["a"].plan is not None


def test_a_second_request_finds_the_model_there() -> None:
    world = World()
    first = world.use("a")
    world.log  # noqa: B018
    world.scheduler.submit(spec("a"))
    assert world.log == ["grant a"]
    world.scheduler.release(first)
    assert world.log == []


# keep_alive.


def test_the_clock_starts_when_the_last_request_ends() -> None:
    world = World(keep_alive=300)
    first, second = world.use("a"), world.use("a")
    world.scheduler.release(first)
    world.pass_time(1000)
    assert "stop a: expired" not in world.log
    world.scheduler.release(second)
    world.pass_time(299)
    assert world.log == []
    world.pass_time(2)
    assert world.log == ["stop a: expired"]
    world.stop_all()
    assert world.scheduler.entries == {}
    assert world.scheduler.metrics.expirations == 1


def test_each_request_restarts_the_clock_with_its_own_duration() -> None:
    world = World(keep_alive=300)
    world.scheduler.release(world.use("a", 1000))
    world.scheduler.release(world.use("a", 10))
    assert world.scheduler.entries["a"].expires_at == 10
    world.scheduler.release(world.use("a"))
    assert world.scheduler.entries["a"].expires_at == 300
    world.pass_time(250)
    world.scheduler.release(world.use("a"))
    world.pass_time(250)
    assert "a" in world.scheduler.entries
    world.pass_time(51)
    assert world.log[-1] == "stop a: expired"


def test_zero_goes_at_once_and_negative_never() -> None:
    world = World()
    world.scheduler.release(world.use("a", 0))
    world.scheduler.release(world.use("b", FOREVER))
    assert "stop a: expired" in world.log
    world.pass_time(10**9)
    assert world.log == []
    assert world.scheduler.entries["b"].expires_at == FOREVER


def test_zero_waits_for_who_still_uses_it() -> None:
    world = World()
    long, short = world.use("a", 300), world.use("a", 0)
    world.scheduler.release(short)
    assert not any("stop" in line for line in world.log)
    world.scheduler.release(long)  # the latest wins
    world.pass_time(299)
    assert world.log == []


def test_unloading_waits_for_running_requests_and_then_goes() -> None:
    world = World(keep_alive=FOREVER)
    ticket = world.use("a")
    world.log  # noqa: B018
    assert world.scheduler.unload("a")
    assert not world.scheduler.unload("b")
    assert world.log == []
    world.scheduler.release(ticket)
    assert world.log == ["stop a: expired"]
    assert not world.scheduler.unload("a")


def test_a_request_that_comes_while_a_model_leaves_loads_it_again() -> None:
    world = World()
    world.scheduler.release(world.use("a", 0))
    world.log  # noqa: B018
    world.scheduler.submit(spec("a"))
    assert world.log == []
    world.stop_all()
    assert world.log == ["plan a"]
    world.settle()
    assert world.log == ["load a", "grant a"]


# Room.


def test_an_idle_model_goes_for_another_one() -> None:
    world = World(max_loaded=1)
    world.scheduler.release(world.use("a"))
    world.log  # noqa: B018
    world.scheduler.submit(spec("b"))
    world.plan_all()
    assert world.log == ["plan b", "stop a: evicted"]
    world.stop_all()
    world.load_all()
    assert world.log == ["load b", "grant b"]
    assert world.scheduler.metrics.evictions == 1


def test_a_busy_model_takes_nobody_new_and_goes_when_it_is_idle() -> None:
    world = World(max_loaded=1)
    busy = world.use("a")
    world.log  # noqa: B018
    world.scheduler.submit(spec("b"))
    world.plan_all()
    world.scheduler.submit(spec("a"))
    assert world.log == ["plan b"]
    world.scheduler.want_place(busy, 10)  # who is in may go on
    assert world.log == ["place a"]
    world.scheduler.release(busy)
    assert world.log == ["stop a: evicted"]
    world.settle()
    # b was first; it is busy now, and a waits for it.
    assert world.log == ["load b", "plan a", "grant b"]


def test_who_waits_for_room_blocks_loads_but_not_what_is_loaded() -> None:
    world = World(max_loaded=2)
    a, b = world.use("a", 300), world.use("b", 200)
    world.log  # noqa: B018
    world.scheduler.submit(spec("c"))
    world.scheduler.submit(spec("d"))
    world.plan_all()
    world.scheduler.submit(spec("a"))  # stays, since b goes first
    assert world.log == ["plan c", "grant a"]
    world.scheduler.release(b)
    assert world.log == ["stop b: evicted"]
    world.settle()
    assert world.log == ["load c", "plan d", "grant c"]
    world.scheduler.release(a)


def test_a_drained_model_is_taken_back_when_nobody_waits_for_its_room() -> None:
    world = World(max_loaded=1)
    world.use("a")
    waiting = world.scheduler.submit(spec("b"))
    world.plan_all()
    held_back = world.scheduler.submit(spec("a"))
    assert held_back not in world.effects.granted
    world.scheduler.release(waiting)
    assert held_back in world.effects.granted
    assert "stop b: unwanted" in world.log
    assert world.scheduler.metrics.abandoned == 1


def test_memory_makes_room_too() -> None:
    world = World(max_loaded=9)
    world.effects.available = 39 * MB
    world.scheduler.release(world.use("a"))
    world.scheduler.submit(spec("b"))
    world.plan_all()
    assert world.log[-1] == "stop a: evicted"
    world.settle()
    assert world.log[-1] == "grant b"


def test_what_cannot_fit_is_refused_with_both_figures() -> None:
    world = World()
    world.effects.available, world.own = 5 * MB, 6 * MB
    world.effects.time = 100.0
    ticket = world.scheduler.submit(spec("a"))
    world.plan_all()
    error = world.effects.refused[ticket]
    assert isinstance(error, MemoryPlanError)
    assert (error.needed_bytes, error.available_bytes) == (6 * MB, 5 * MB)
    world.stop_all()
    assert world.scheduler.entries == {}


def test_memory_has_time_to_come_back_before_a_refusal() -> None:
    world = World(max_loaded=1)
    world.scheduler.release(world.use("a"))
    ticket = world.scheduler.submit(spec("b"))
    world.plan_all()
    world.effects.available = 5 * MB  # what a had is not free yet
    world.stop_all()
    world.pass_time(1)
    assert ticket not in world.effects.refused
    world.effects.available = 100 * MB
    world.pass_time(0.2)
    world.settle()
    assert ticket in world.effects.granted
    world.scheduler.release(ticket)
    late = world.scheduler.submit(spec("c"))
    world.plan_all()
    world.effects.available = 5 * MB
    world.stop_all()
    world.pass_time(RETURN_SECONDS + 1)
    assert isinstance(world.effects.refused[late], MemoryPlanError)


def test_many_models_at_once_are_planned_one_after_the_other() -> None:
    world = World(max_loaded=3)
    for key in "abcdef":
        world.scheduler.submit(spec(key))
    assert world.log == ["plan a"]
    world.plan_all()
    assert world.log == ["load a", "plan b", "load b", "plan c", "load c", "plan d"]


# Other options.


def test_a_model_is_loaded_anew_for_what_it_cannot_change() -> None:
    world = World()
    first = world.use("a", context=2048)
    world.use("a", context=1024)  # large enough will do
    world.log  # noqa: B018
    world.scheduler.submit(spec("a", context=4096))
    after = world.scheduler.submit(spec("a", context=1024))
    assert world.log == []
    for ticket in list(world.scheduler.entries["a"].holders):
        world.scheduler.release(ticket)
    assert world.log == ["stop a: reload: context 4096 instead of 2048"]
    world.settle()
    assert world.log == ["plan a", "load a", "grant a", "grant a"]
    assert after in world.effects.granted
    assert world.scheduler.metrics.reloads == 1
    world.scheduler.release(first)


# Failures.


def test_a_failed_load_is_the_error_of_all_who_wait_for_it() -> None:
    world = World()
    tickets = [world.scheduler.submit(spec("a")) for _ in range(3)]
    other = world.scheduler.submit(spec("a", context=100))
    world.plan_all()
    error = ModelError("no")
    world.scheduler.failed(world.effects.loading.pop(), error)
    assert [world.effects.refused[ticket] for ticket in tickets] == [error] * 3
    world.settle()
    assert other in world.effects.granted
    assert world.scheduler.metrics.load_failures == 1


def test_after_a_crash_the_next_request_starts_another_runner() -> None:
    world = World(parallel=1)
    first, second = world.use("a"), world.use("a")
    world.scheduler.want_place(first, 1)
    world.scheduler.want_place(second, 1)
    entry = world.scheduler.entries["a"]
    error = RunnerCrashedError("dead")
    world.scheduler.gone(entry, error)
    assert world.effects.refused == {second: error}
    third = world.use("a")
    assert third.entry is not entry
    # Those of the dead one end without doing harm, and can no longer compute.
    world.scheduler.leave_place(second)
    world.scheduler.want_place(second, 1)
    assert isinstance(world.effects.refused[second], EngineClosedError)
    world.scheduler.release(first)
    world.scheduler.release(second)
    world.scheduler.gone(entry, error)  # said twice
    assert world.scheduler.entries["a"] is third.entry
    assert world.scheduler.metrics.crashes == 1


def test_loading_is_given_up_with_its_last_caller() -> None:
    for stage in range(2):
        world = World()
        tickets = [world.scheduler.submit(spec("a")) for _ in range(2)]
        if stage:
            world.plan_all()
        world.scheduler.release(tickets[0])
        assert not any("stop" in line for line in world.log)
        world.scheduler.release(tickets[1])
        assert world.log[-1] == "stop a: unwanted"
        world.stop_all()
        assert world.scheduler.entries == {}


def test_late_news_of_what_is_leaving_changes_nothing() -> None:
    world = World()
    ticket = world.scheduler.submit(spec("a"))
    entry = world.scheduler.entries["a"]
    world.scheduler.release(ticket)
    world.scheduler.planned(entry, None)
    world.scheduler.ready(entry, {})
    assert entry.phase is Phase.LEAVING
    world.scheduler.failed(entry, ModelError("late"))
    assert world.scheduler.metrics.load_failures == 0
    assert world.scheduler.entries == {}


def test_closing_refuses_who_waits_and_stops_all() -> None:
    world = World(max_loaded=1, parallel=1)
    busy, second = world.use("a"), world.use("a")
    world.scheduler.want_place(busy, 1)
    world.scheduler.want_place(second, 1)
    waiting = world.scheduler.submit(spec("b"))
    world.scheduler.close()
    assert {type(world.effects.refused[ticket]) for ticket in (second, waiting)} == {EngineClosedError}
    world.stop_all()
    for ticket in (busy, second, waiting):
        world.scheduler.release(ticket)
    assert [entry.spec.key for entry in world.effects.stopping] == []


# Places and queues.


def test_six_at_once_with_one_place_and_one_seat() -> None:
    """CON-02: one runs, one waits, four are refused; warm, and cold too."""
    for warm in (True, False):
        world = World(parallel=1, max_queue=1)
        if warm:
            world.scheduler.release(world.use("a"))
        tickets = [world.scheduler.submit(spec("a")) for _ in range(6)]
        world.settle()
        for ticket in tickets:
            if ticket in world.effects.granted:
                world.scheduler.want_place(ticket, 10)
        assert len(world.effects.placed) == 1
        assert len(world.effects.refused) == 4
        assert all(isinstance(error, QueueFullError) for error in world.effects.refused.values())
        assert world.scheduler.waiting == 1
        assert world.scheduler.metrics.refused == 4
        waiting = next(iter(world.scheduler.entries["a"].queue))
        for ticket in tickets:
            world.scheduler.release(ticket) if ticket is not waiting else None
        assert waiting.placed


def test_a_burst_while_a_model_loads_is_served_whole() -> None:
    """CON-01: 300 at once during a load, all served."""
    world = World(max_queue=512)
    tickets = [world.scheduler.submit(spec("a")) for _ in range(300)]
    world.settle()
    assert world.effects.granted == tickets
    assert world.effects.refused == {}


def test_pages_decide_where_no_number_is_set() -> None:
    world = World()
    tickets = [world.use("a") for _ in range(4)]
    for ticket, tokens in zip(tickets, (2048, 1984, 64, 64), strict=True):
        world.scheduler.want_place(ticket, tokens)
    assert [ticket.placed for ticket in tickets] == [True, True, True, False]
    world.scheduler.leave_place(tickets[2])
    assert tickets[3].placed
    world.scheduler.want_place(tickets[2], 10**6)  # longer than the context: alone, and the engine says so
    assert not tickets[2].placed
    for ticket in (tickets[0], tickets[1], tickets[3]):
        world.scheduler.release(ticket)
    assert tickets[2].placed


def test_giving_up_in_the_queue_lets_the_next_one_in() -> None:
    """CON-03 (c): who left while queued never starts."""
    world = World(parallel=1)
    first, second, third = (world.use("a") for _ in range(3))
    for ticket in (first, second, third):
        world.scheduler.want_place(ticket, 1)
    world.scheduler.release(second)
    world.scheduler.release(second)
    world.scheduler.leave_place(first)
    assert world.effects.placed == [first, third]
    assert world.scheduler.metrics.abandoned == 1


def test_the_queue_is_measured() -> None:
    world = World()
    ticket = world.scheduler.submit(spec("a"))
    world.plan_all()
    world.effects.time += 0.5
    world.load_all()
    world.scheduler.want_place(ticket, 1)
    metrics = world.scheduler.metrics
    assert (metrics.queued, metrics.queue_seconds, metrics.requests, metrics.loads) == (2, 0.5, 1, 1)
    assert metrics.queue_histogram == [1, 0, 0, 1, 0, 0, 0]


# Anything in any order.


class Chaos(RuleBasedStateMachine):
    """Random events. The invariants hold at every moment, and in the end everybody has had an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(max_loaded=2, parallel=2, max_queue=3, keep_alive=5)
        self.tickets: list[Ticket] = []

    @rule(
        key=st.sampled_from("abc"),
        keep=st.sampled_from([None, 0.0, 3.0, FOREVER]),
        context=st.sampled_from([None, 64, 4096]),
    )
    def submit(self, key: str, keep: float | None, context: int | None) -> None:
        self.tickets.append(self.world.scheduler.submit(spec(key, context=context), keep))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        scheduler = self.world.scheduler
        act: Callable[[], object] = lambda: scheduler.release(ticket)  # noqa: E731
        if ticket.entry is not None and not ticket.over and data.draw(st.booleans()):
            act = lambda: scheduler.leave_place(ticket)  # noqa: E731
            if ticket.tokens is None:
                act = lambda: scheduler.want_place(ticket, 100)  # noqa: E731
        act()

    @rule(data=st.data())
    def news(self, data: st.DataObject) -> None:
        effects, scheduler = self.world.effects, self.world.scheduler
        entries = [*effects.planning, *effects.loading, *effects.stopping]
        if not entries:
            return
        entry = data.draw(st.sampled_from(entries))
        fails = data.draw(st.integers(0, 3)) == 0
        if entry in effects.stopping:
            effects.stopping.remove(entry)
            scheduler.gone(entry)
        elif fails:
            (effects.planning if entry in effects.planning else effects.loading).remove(entry)
            scheduler.failed(entry, ModelError("no"))
        elif entry in effects.planning:
            effects.planning.remove(entry)
            scheduler.planned(entry, MemoryPlan(entry.spec.options.context or 4096, "r", 4096, 10 * MB, 10 * MB, 0))
        else:
            effects.loading.remove(entry)
            assert entry.plan is not None
            scheduler.ready(entry, {"context": entry.plan.context, "training_context": 4096})

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        ready = [entry for entry in self.world.scheduler.entries.values() if entry.phase is Phase.READY]
        if ready:
            self.world.scheduler.gone(data.draw(st.sampled_from(ready)), RunnerCrashedError("dead"))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(available=st.sampled_from([5 * MB, 30 * MB, 60 * MB, 10**9]))
    def memory(self, available: int) -> None:
        self.world.effects.available = available

    @rule(key=st.sampled_from("abc"))
    def unload(self, key: str) -> None:
        self.world.scheduler.unload(key)

    @invariant()
    def rules_hold(self) -> None:
        self.world.scheduler.check()
        assert self.world.scheduler.waiting <= 3

    def teardown(self) -> None:
        """Everybody finishes what they do; then nobody waits, and nothing but idle models is left."""
        self.world.effects.available = 10**12
        for _ in range(len(self.tickets) + 1):
            self.world.settle()
            self.world.pass_time(RETURN_SECONDS + 1)
            for ticket in self.tickets:
                if ticket.entry is not None:
                    self.world.scheduler.release(ticket)
        self.world.settle()
        for ticket in self.tickets:
            answered = ticket in self.world.effects.granted or ticket in self.world.effects.refused
            assert answered or ticket.over
        assert self.world.scheduler.waiting == 0
        assert all(entry.idle for entry in self.world.scheduler.entries.values())


Chaos.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestChaos = pytest.mark.timeout(120)(Chaos.TestCase)
