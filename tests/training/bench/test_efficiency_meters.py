"""Clocks add up, memory is seen, and figures follow from times that are known."""

import pytest
import torch

from training.bench.efficiency.generating import EVERYTHING, NOTHING, answer, overheads, speed
from training.bench.efficiency.meters import MIB, Meter, ProcessMemory, Reading, UnknownMemory, summary, times

CPU = torch.device("cpu")


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def go(self, seconds: float) -> None:
        self.time += seconds


class Peaks(UnknownMemory):
    """Tells one prepared figure a call."""

    def __init__(self, *added: int) -> None:
        self.left = list(added)

    def added_bytes(self) -> int:
        return self.left.pop(0)


def test_parts_of_a_call_add_up_and_what_is_outside_of_them_counts_for_the_whole():
    clock = Clock()
    meter = Meter(CPU, clock=clock, memory=UnknownMemory())

    def call() -> None:
        with meter.part("encoder"):
            clock.go(0.2)
        with meter.part("compiler"):
            clock.go(0.1)
        with meter.part("encoder"):
            clock.go(0.3)
        clock.go(0.05)

    reading = meter.once(call)
    assert reading.parts == pytest.approx({"encoder": 0.5, "compiler": 0.1})
    assert reading.seconds == pytest.approx(0.65)
    call()  # a call that nobody measures, as one that warms up, adds nothing to what was measured before
    assert reading.parts == pytest.approx({"encoder": 0.5, "compiler": 0.1})
    assert meter.once(lambda: clock.go(1.0)).parts == {}


def test_calls_take_turns_after_a_warm_up_until_the_time_is_over():
    clock, called = Clock(), []
    meter = Meter(CPU, clock=clock, memory=UnknownMemory())

    def call(name: str, seconds: float):
        def act() -> None:
            called.append(name)
            clock.go(seconds)

        return act

    readings = meter.repeat([call("a", 1.0), call("b", 2.0)], budget_s=6.5, least=1)
    # One second warms up; then 1, 2, 1, 2 end at 7: the last began at 5, before 6.5.
    assert called == ["a", "a", "b", "a", "b"]
    assert [r.seconds for r in readings] == [1.0, 2.0, 1.0, 2.0]
    assert len(meter.repeat([call("c", 1.0)], budget_s=0.0, least=3, warm_up=0)) == 3
    assert len(meter.repeat([call("d", 0.0)], budget_s=1.0, most=7)) == 7


def test_calls_whose_first_time_takes_longer_are_told_apart_from_those_that_count():
    clock, seen = Clock(), set()
    meter = Meter(CPU, clock=clock, memory=UnknownMemory())

    def call(name: str):
        def act() -> None:
            clock.go(1.0 if name in seen else 10.0)
            seen.add(name)

        return act

    # Each takes 10 s, then 1 s: the second pair ends at 22, and one more call begins before 23.
    first, readings = meter.repeat_each([call("a"), call("b")], budget_s=22.5, least=1)
    assert [r.seconds for r in first] == [10.0, 10.0] and [r.seconds for r in readings] == [1.0, 1.0, 1.0]
    first, readings = meter.repeat_each([call("c"), call("d"), call("e")], budget_s=0.0, least=2)
    assert [r.seconds for r in first] == [10.0, 10.0] and [r.seconds for r in readings] == [1.0, 1.0]
    assert [len(found) for found in meter.repeat_each([call("f")], budget_s=99.0, most=5)] == [1, 5]


def test_a_summary_has_percentiles_and_the_largest_memory():
    meter = Meter(CPU, clock=Clock(), memory=Peaks(5 * MIB, 8 * MIB, 2 * MIB))
    readings = [meter.once(lambda: None) for _ in range(3)]
    assert summary(readings)["added_mib"] == 8.0
    assert summary([Reading(seconds=1.0)])["added_mib"] is None
    # 1, 2, 3, 4, 10 s: mean 4, median 3, and the 95th percentile 0.8 of the way from 4 to 10.
    assert times([1.0, 2.0, 3.0, 4.0, 10.0]) == {"n": 5, "mean_ms": 4000.0, "p50_ms": 3000.0, "p95_ms": 8800.0}


def test_memory_that_a_call_holds_for_a_moment_is_seen():
    try:
        memory = ProcessMemory()
        memory.start()
    except (OSError, ValueError):
        pytest.skip("only Linux lets a process reset its peak")
    held = torch.ones(64 * MIB // 4)
    del held
    assert 60 * MIB <= memory.added_bytes() <= 80 * MIB
    memory.start()
    assert memory.added_bytes() < 8 * MIB


def test_overhead_is_the_share_of_the_time_without_an_adapter():
    def readings(*seconds: float) -> list[Reading]:
        return [Reading(seconds=s, parts={"other tokens": 0.8 * s}) for s in seconds]

    by_kind = {NOTHING: readings(2.0, 4.0, 2.0), EVERYTHING: readings(2.1, 4.1, 2.2), "part": readings(2.02, 4.04)}
    found = overheads(by_kind, compose_s=0.3)
    # Turn by turn 5, 2.5 and 10 %: the slow second one changes nothing. Quartiles of three lie halfway to the median.
    # Composing adds 0.3 / 2.0 = 15 %.
    assert found["overhead"] == 0.05 and found["overhead_quartiles"] == [0.0375, 0.075]
    assert found["overhead_with_compose"] == 0.2
    assert found["overhead_of"] == {EVERYTHING: 0.05, "part": 0.01}
    # 16 tokens in 2 s; 15 of them, behind the first, in 1.6 s.
    assert speed(by_kind[NOTHING], 16) == {"tokens_per_s": 9.375, "tokens_per_s_whole": 8.0}


def test_an_answer_goes_on_at_the_pace_of_a_turn():
    turn = Reading(seconds=0.8, parts={"first token": 0.1, "other tokens": 0.7}, added_bytes=5)
    # 7 tokens in 0.7 s behind the first: 31 take 3.1 s.
    assert answer(turn, 8, 32).parts == pytest.approx({"first token": 0.1, "other tokens": 3.1})
    assert answer(turn, 8, 32).seconds == pytest.approx(3.2) and answer(turn, 8, 32).added_bytes == 5
    assert answer(Reading(parts={"first token": 0.1, "other tokens": 0.0}), 1, 1).seconds == pytest.approx(0.1)
