"""StepReadback on its own: every step once, in order, with the blocking readback's values, and no wait."""

from __future__ import annotations

import contextlib
import random
from types import ModuleType

import pytest
import torch
from landing import DTYPES, HeldCopy, blocking, random_step, same_bits
from tensordict import TensorDict

from nosync.hostsync import forbid_host_syncs, host_syncs

ERRORS = (RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit)


class Log(list):
    """What was logged, as (step, values)."""

    def __call__(self, values: dict, step: int) -> None:
        self.append((step, values))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self]


# ---- values and order ----------------------------------------


@pytest.mark.parametrize("bound", [1, 2, 8])
def test_every_step_once_in_order_whenever_its_copy_lands(
    readback: ModuleType, held: list[HeldCopy], seed: int, generator: torch.Generator, bound: int
) -> None:
    """Copies land late, early and out of order, at random; the values are the blocking readback's."""
    chance = random.Random(seed)
    log, expected = Log(), []
    with readback.StepReadback("cpu", log, max_in_flight=bound) as steps:
        for i in range(60):
            values = random_step(generator, DTYPES)
            expected.append((i, blocking(values)))
            steps.start(values, i)
            for copy in chance.sample(held, k=min(len(held), chance.randrange(3))):
                copy.land()
            steps.landed()
            assert len(steps._in_flight) <= bound
            assert log.steps == list(range(len(log)))
    assert same_bits(log, expected)
    assert all(copy.landed for copy in held)


def test_every_dtype_keeps_its_value(readback: ModuleType, device: torch.device) -> None:
    """Extremes of each dtype, which a copy through a common dtype would round."""
    values = TensorDict({
        "float64": torch.tensor(1 / 3, dtype=torch.float64),
        "float32": torch.tensor(16777217.0 / 3, dtype=torch.float32),
        "float16": torch.tensor(65504.0, dtype=torch.float16),
        "bfloat16": torch.tensor(-3.389e38, dtype=torch.bfloat16),
        "int64": torch.tensor(2**63 - 1),
        "int32": torch.tensor(-(2**31), dtype=torch.int32),
        "uint8": torch.tensor(255, dtype=torch.uint8),
        "bool": torch.tensor(True),
        "nan": torch.tensor(float("nan")),
        "inf": torch.tensor(float("-inf"), dtype=torch.float64),
        "negative zero": torch.tensor(-0.0),
        "subnormal": torch.tensor(5e-324, dtype=torch.float64),
    })  # fmt: skip
    log = Log()
    with readback.StepReadback(device, log) as steps:
        steps.start(values.apply(lambda leaf: leaf.to(device)), 0)
    assert same_bits(log, [(0, blocking(values))])


def test_keys_keep_their_nesting_and_order(readback: ModuleType) -> None:
    """Dtypes mixed within a level, an empty level, levels in levels, one-element leaves that are not 0-d."""
    log = Log()
    with readback.StepReadback("cpu", log) as steps:
        values = TensorDict(
            {
                "b": torch.tensor(1.0),
                "a": torch.tensor(2),
                "empty": TensorDict({}),
                "deep": TensorDict({"z": torch.tensor(3.0), "y": TensorDict({"x/w": torch.tensor([4])})}),
                "c": torch.tensor([[5.0]]),
            }
        )
        steps.start(values, 0)
    assert same_bits(log, [(0, {"b": 1.0, "a": 2, "empty": {}, "deep": {"z": 3.0, "y": {"x/w": 4}}, "c": 5.0})])


def test_the_values_of_the_step_are_taken(
    readback: ModuleType, device: torch.device, generator: torch.Generator
) -> None:
    """Tensors changed in place after `start`, as accumulators are, do not change what is logged."""
    log, values = Log(), random_step(generator)
    on_device = values.apply(lambda leaf: leaf.to(device).requires_grad_())
    with readback.StepReadback(device, log) as steps:
        steps.start(on_device, 0)
        with torch.no_grad():
            on_device.apply(lambda leaf: leaf.add_(1))
        assert not any(slots.requires_grad for slots in steps._slots.values()), "the step's graph is kept alive"
    assert same_bits(log, [(0, blocking(values))])


def test_on_the_cpu_each_step_is_logged_at_once(readback: ModuleType, generator: torch.Generator) -> None:
    log = Log()
    steps = readback.StepReadback("cpu", log)
    for i in range(20):
        steps.start(random_step(generator), i)
        steps.landed()
        assert log.steps == list(range(i + 1))


def test_a_step_that_has_landed_waits_for_those_before_it(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator
) -> None:
    log = Log()
    steps = readback.StepReadback("cpu", log)
    for i in range(4):
        steps.start(random_step(generator), i)
    seen = []
    for landing in (3, 1, 0, 2):
        held[landing].land()
        steps.landed()
        seen.append(log.steps.copy())
    assert seen == [[], [], [0, 1], [0, 1, 2, 3]]
    assert [copy.waits for copy in held] == [0, 0, 0, 0]


def test_other_keys_or_dtypes_wait_for_the_steps_in_flight(readback: ModuleType, held: list[HeldCopy]) -> None:
    """A field whose count appears later, or another dtype, is logged right; nothing of the old layout is lost."""
    layouts = [
        TensorDict({"loss": torch.tensor(1.0)}),
        TensorDict({"loss": torch.tensor(2.0), "finite": torch.tensor(3)}),
        TensorDict({"loss": torch.tensor(4.0, dtype=torch.float64), "finite": torch.tensor(5)}),
        TensorDict({"loss": torch.tensor(6.0)}),
    ]
    log = Log()
    with readback.StepReadback("cpu", log, max_in_flight=3) as steps:
        for i, values in enumerate(layouts):
            steps.start(values, i)
            assert log.steps == list(range(i))
    assert same_bits(log, [(i, blocking(values)) for i, values in enumerate(layouts)])


# ---- the bound ----------------------------------------


def test_at_the_bound_start_waits_for_the_oldest_step_only(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator
) -> None:
    log = Log()
    steps = readback.StepReadback("cpu", log, max_in_flight=3)
    for i in range(10):
        steps.start(random_step(generator), i)
        steps.landed()
        assert log.steps == list(range(i - 2))
    assert [copy.waits for copy in held] == [1] * 7 + [0] * 3


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_is_refused(readback: ModuleType, bound: int) -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        readback.StepReadback("cpu", print, max_in_flight=bound)


def test_ten_thousand_steps_leave_no_growth(
    readback: ModuleType, held: list[HeldCopy], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending steps and host memory after 10,000 steps are those after the first, though no copy lands by itself."""
    allocated = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: allocated.append(empty(*a, **k)) or allocated[-1])
    values = random_step(torch.Generator().manual_seed(seed), (torch.float32, torch.int64))
    logged = []
    steps = readback.StepReadback("cpu", lambda values, step: logged.append(step), max_in_flight=8)
    for i in range(10_000):
        steps.start(values, i)
        steps.landed()
        held[:-8] = []
    assert [(slots.shape, slots.dtype) for slots in allocated] == [((8, 5), torch.float32), ((8, 4), torch.int64)]
    assert len(steps._in_flight) == 8
    steps.drain()
    assert not steps._in_flight
    assert logged == list(range(10_000))


def test_the_host_memory_is_page_locked_and_allocated_once(
    readback: ModuleType, device: torch.device, generator: torch.Generator
) -> None:
    log = Log()
    with readback.StepReadback(device, log) as steps:
        steps.start(random_step(generator).apply(lambda leaf: leaf.to(device)), 0)
        first = dict(steps._slots)
        for i in range(1, 30):
            steps.start(random_step(generator).apply(lambda leaf: leaf.to(device)), i)
            steps.landed()
        assert all(slots.is_pinned() for slots in steps._slots.values())
        assert all(steps._slots[dtype] is slots for dtype, slots in first.items())
    assert log.steps == list(range(30))


# ---- errors ----------------------------------------


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_a_raising_step_logs_what_has_landed_without_waiting(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator, at: int, error: type[BaseException]
) -> None:
    """At the first, a middle and the last step; the copy of the step before it has not landed."""
    log, raised = Log(), error("here")
    with contextlib.suppress(error), readback.StepReadback("cpu", log) as steps:
        for i in range(10):
            if i == at:
                for copy in held[:-1]:
                    copy.land()
                raise raised
            steps.start(random_step(generator), i)
            steps.landed()
            if i > 3:
                held[i - 4].land()
    assert log.steps == list(range(at - 1))
    assert [copy.waits for copy in held] == [0] * at
    assert not hasattr(raised, "__notes__")


@pytest.mark.parametrize("error", ERRORS)
def test_steps_that_land_within_the_time_are_logged_before_the_error(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator, error: type[BaseException]
) -> None:
    """Step 1 lands as step 0 is logged, step 2 as step 1 is; step 3 never does, which keeps the error only so long."""
    raised, log, asked = error("the step"), Log(), []

    def lands_at_the_third_query() -> bool:
        asked.append(None)
        if len(asked) == 3:
            held[0].land()
        return held[0].landed

    def next_lands(values: dict, step: int) -> None:
        log(values, step)
        if step < 2:
            held[step + 1].land()

    with pytest.raises(error) as caught, readback.StepReadback("cpu", next_lands, grace_s=0.05) as steps:
        for i in range(4):
            steps.start(random_step(generator), i)
        held[0].query = lands_at_the_third_query
        raise raised
    assert caught.value is raised
    assert log.steps == [0, 1, 2]
    assert [copy.waits for copy in held] == [0] * 4


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", [0, 2, 3])
def test_an_error_while_draining_logs_what_has_landed(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator, at: int, error: type[BaseException]
) -> None:
    """The wait for step ``at`` raises: that step and later ones are logged only as far as they had landed."""
    log, raised = Log(), error("in the drain")

    def fail() -> None:
        for copy in held[at : at + 1]:
            copy.land()
        raise raised

    with pytest.raises(error) as caught, readback.StepReadback("cpu", log) as steps:
        for i in range(4):
            steps.start(random_step(generator), i)
        held[at].synchronize = fail
    assert caught.value is raised
    assert log.steps == list(range(at + 1))


@pytest.mark.parametrize("where", ["landed", "start", "drain"])
def test_a_step_whose_logging_fails_is_not_logged_twice(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator, where: str
) -> None:
    """The disk is full at step 1: it is given to the log once, and step 2, which has landed, not at all."""
    log = Log()

    def full(values: dict, step: int) -> None:
        log(values, step)
        if step == 1:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), readback.StepReadback("cpu", full, max_in_flight=4) as steps:
        for i in range(4):
            steps.start(random_step(generator), i)
        for copy in held[:3] if where == "landed" else held[2:3]:
            copy.land()
        if where == "landed":
            steps.landed()
        elif where == "start":
            steps.start(random_step(generator), 4)
            steps.start(random_step(generator), 5)
    assert log.steps == [0, 1]


def test_a_dead_device_does_not_hide_the_error(
    readback: ModuleType, held: list[HeldCopy], generator: torch.Generator
) -> None:
    """After a failed kernel even asking for an event raises; the step's own error is the one to see."""

    def dead() -> bool:
        raise RuntimeError("device-side assert triggered")

    raised = ValueError("the cause")
    with pytest.raises(ValueError, match="the cause") as caught, readback.StepReadback("cpu", print) as steps:
        steps.start(random_step(generator), 0)
        held[0].query = dead
        raise raised
    assert caught.value is raised
    assert "device-side assert triggered" in " ".join(raised.__notes__)


# ---- no wait ----------------------------------------


def test_a_steady_step_never_waits(readback: ModuleType, device: torch.device, generator: torch.Generator) -> None:
    """No host sync and no explicit wait from the first step on, with several dtypes."""
    steps_values = [random_step(generator, DTYPES) for _ in range(20)]
    on_device = [values.apply(lambda leaf: leaf.to(device)) for values in steps_values]
    log = Log()
    steps = readback.StepReadback(device, log, max_in_flight=len(on_device))
    with forbid_host_syncs():
        for i, values in enumerate(on_device):
            steps.start(values, i)
            steps.landed()
    steps.drain()
    assert same_bits(log, [(i, blocking(values)) for i, values in enumerate(steps_values)])


def test_the_bound_and_the_drain_are_the_only_waits(
    readback: ModuleType, device: torch.device, generator: torch.Generator
) -> None:
    """Without `landed`, `start` waits once per step past the bound and `drain` once per step in flight: event waits."""
    on_device = [random_step(generator).apply(lambda leaf: leaf.to(device)) for _ in range(5)]
    steps = readback.StepReadback(device, Log(), max_in_flight=2)
    with host_syncs() as started:
        for i, values in enumerate(on_device):
            steps.start(values, i)
    with host_syncs() as drained:
        steps.drain()
    waits = [sum(event.count for event in syncs.events if event.kind == "explicit") for syncs in (started, drained)]
    assert waits == [3, 2]


def test_the_blocking_readback_is_seen_to_wait(device: torch.device, generator: torch.Generator) -> None:
    """The control: the detector sees the event wait that `TensorDict.cpu` makes, which sync-debug does not."""
    values = random_step(generator).apply(lambda leaf: leaf.to(device))
    with host_syncs() as syncs:
        values.cpu()
    assert syncs.count >= 1
    assert "explicit" in {event.kind for event in syncs.events}
