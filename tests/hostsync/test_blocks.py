"""The blocks: what they count, what they forbid, whose work they see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nosync.hostsync import HostSyncError, allow_host_syncs, forbid_host_syncs, host_syncs, value


@pytest.fixture
def v(device: torch.device) -> torch.Tensor:
    return torch.arange(6.0, device=device)


def test_counts_by_site(v: torch.Tensor) -> None:
    with host_syncs() as syncs:
        v.sum().item()
        v[v > 2]
        v * 2
    assert syncs.count == 2
    assert sorted(key[2:] for key in syncs.by_site()) == [
        ("aten::_local_scalar_dense", "read"),
        ("aten::index.Tensor", "shape"),
    ]
    assert {key[0] for key in syncs.by_site()} == {"test_blocks.py"}
    assert "2 host syncs" in syncs.table()
    assert json.loads(syncs.json())["count"] == 2


def test_outside_a_block_nothing_is_counted(v: torch.Tensor) -> None:
    with host_syncs() as syncs:
        pass
    v.sum().item()
    assert syncs.count == 0


def test_forbid_says_where_why_and_what_instead(v: torch.Tensor) -> None:
    mask = v > 2
    with pytest.raises(HostSyncError) as caught, forbid_host_syncs():
        v[mask] = v[mask] * 2  # the line that waits
    message = str(caught.value)
    assert "test_blocks.py" in message
    assert "# the line that waits" in message
    assert "aten::index.Tensor" in message
    assert "nonzero" in message
    assert "torch.where" in message


def test_forbid_stops_at_the_first(v: torch.Tensor) -> None:
    reached = []
    with pytest.raises(HostSyncError), forbid_host_syncs():
        v.sum().item()
        reached.append(1)
    assert not reached


@pytest.mark.parametrize("swallowed", [RuntimeError, Exception])
def test_except_in_the_code_does_not_hide_it(v: torch.Tensor, swallowed: type[Exception]) -> None:
    with pytest.raises(HostSyncError), forbid_host_syncs(), contextlib.suppress(swallowed):
        v.sum().item()


def test_the_end_of_the_block_checks_again(v: torch.Tensor) -> None:
    def code() -> None:
        with contextlib.suppress(BaseException):
            v.sum().item()

    with pytest.raises(HostSyncError, match="at the end of the block"), forbid_host_syncs():
        code()


def test_another_error_does_not_hide_it(v: torch.Tensor) -> None:
    def code() -> None:
        try:
            v.sum().item()
        except BaseException:
            raise KeyError("other") from None

    with pytest.raises(HostSyncError), forbid_host_syncs():
        code()


def test_an_unrelated_error_passes(v: torch.Tensor) -> None:
    with pytest.raises(KeyError), forbid_host_syncs():
        raise KeyError("other")


def test_allowed_is_recorded_with_its_reason_and_not_counted(v: torch.Tensor) -> None:
    with host_syncs() as syncs:
        with allow_host_syncs("the log line"):
            v.sum().item()
        v * 2
    assert syncs.count == 0
    assert [event.allowed for event in syncs.allowed] == ["the log line"]
    assert "the log line" in syncs.table()


def test_allowed_in_forbid(v: torch.Tensor) -> None:
    with forbid_host_syncs(), allow_host_syncs("why not"):
        v.sum().item()
    with pytest.raises(HostSyncError), forbid_host_syncs():
        with allow_host_syncs("why not"):
            v.sum().item()
        v.sum().item()


def test_a_reason_must_be_given() -> None:
    with pytest.raises(ValueError, match="why"):
        allow_host_syncs("")


def test_an_inner_block_does_not_disarm_the_outer(v: torch.Tensor) -> None:
    with pytest.raises(HostSyncError), forbid_host_syncs(), host_syncs():
        v.sum().item()


def test_backward_is_the_callers(v: torch.Tensor) -> None:
    w = v.clone().requires_grad_()
    with host_syncs() as forward:
        loss = (w[v > 2] * 2).sum()
    with host_syncs() as backward:
        loss.backward()
    assert (forward.count, backward.count) == (1, 1)
    assert backward.events[0].phase == "backward"


def test_forbid_in_backward(v: torch.Tensor) -> None:
    w = v.clone().requires_grad_()
    loss = (w[v > 2] * 2).sum()
    with pytest.raises(HostSyncError), forbid_host_syncs():
        loss.backward()


def in_a_thread(work: Callable[[], object]) -> None:
    """Run in a background thread, to the end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_background_thread_does_not_trip(v: torch.Tensor) -> None:
    done = []
    with forbid_host_syncs():
        in_a_thread(lambda: done.append(v.sum().item()))
    assert done == [15.0]


def test_a_background_thread_does_not_disarm(v: torch.Tensor) -> None:
    def other() -> None:
        with host_syncs(), allow_host_syncs("transfer"):
            v.sum().item()

    with pytest.raises(HostSyncError), forbid_host_syncs():
        in_a_thread(other)
        v.sum().item()


def test_a_background_thread_can_have_its_own_block(v: torch.Tensor) -> None:
    counts = []

    def other() -> None:
        with host_syncs() as syncs:
            v.sum().item()
        counts.append(syncs.count)

    with host_syncs() as mine:
        in_a_thread(other)
    assert (counts, mine.count) == ([1], 0)


def test_a_background_thread_uses_the_device(device: torch.device) -> None:
    shown = []
    with forbid_host_syncs():
        in_a_thread(lambda: shown.append(torch.ones(3).to(device).device))
    assert shown == [device]


def test_a_pool_that_inherits_the_context(v: torch.Tensor) -> None:
    async def main() -> float:
        return await asyncio.to_thread(lambda: v.sum().item())

    with forbid_host_syncs():
        assert asyncio.run(main()) == 15.0


def test_a_thread_pool(v: torch.Tensor) -> None:
    with ThreadPoolExecutor(1) as pool, forbid_host_syncs():
        assert pool.submit(lambda: v.sum().item()).result() == 15.0


def test_asyncio_tasks_have_their_own_scope(v: torch.Tensor) -> None:
    async def transfers(armed: asyncio.Event) -> float:
        await armed.wait()
        return v.sum().item()

    async def checked(armed: asyncio.Event) -> int:
        with host_syncs() as syncs:
            armed.set()
            await asyncio.sleep(0.01)
        return syncs.count

    async def main() -> tuple[float, int]:
        armed = asyncio.Event()
        return tuple(await asyncio.gather(transfers(armed), checked(armed)))

    assert asyncio.run(main()) == (15.0, 0)


def test_asyncio_blocks_may_interleave(v: torch.Tensor) -> None:
    async def task(enter: float, stay: float) -> int:
        await asyncio.sleep(enter)
        with host_syncs() as syncs:
            await asyncio.sleep(stay)
            v.sum().item()
        return syncs.count

    async def main() -> list[int]:
        return list(await asyncio.gather(task(0, 0.02), task(0.01, 0.03)))

    assert asyncio.run(main()) == [1, 1]


def test_a_task_of_the_block_is_the_blocks(v: torch.Tensor) -> None:
    async def child() -> None:
        v.sum().item()

    async def main() -> int:
        with host_syncs() as syncs:
            await asyncio.create_task(child())
        return syncs.count

    assert asyncio.run(main()) == 1


def test_inside_warning_capture(v: torch.Tensor) -> None:
    with pytest.warns(UserWarning, match="mine"), host_syncs() as syncs:
        warnings.warn("mine", stacklevel=1)
        v.sum().item()
    with warnings.catch_warnings(record=True) as caught, host_syncs() as again:
        warnings.simplefilter("always")
        v.sum().item()
    assert (syncs.count, again.count) == (1, 1)
    assert not caught


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_under_any_warning_filter(v: torch.Tensor, action: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)  # type: ignore[arg-type]
        with host_syncs() as syncs:
            for _ in range(3):
                v.sum().item()
    assert syncs.count == 3


def test_a_compiled_function_may_hold_the_blocks() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        with forbid_host_syncs(), host_syncs(), allow_host_syncs("compiled"):
            return a * 2

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_a_compiled_function_in_a_block(v: torch.Tensor) -> None:
    compiled = torch.compile(lambda a: a * 2, backend="eager", fullgraph=True)
    with forbid_host_syncs():
        out = compiled(v)
    assert torch.equal(value(out), torch.arange(6.0) * 2)


def test_what_is_not_covered_is_said(v: torch.Tensor) -> None:
    compiled = torch.compile(lambda a: a * 2, backend="eager")
    with host_syncs() as syncs:
        compiled(v)
    if syncs.backend == "virtual":
        assert [event.kind for event in syncs.events] == ["not-covered"]
        assert "eagerly" in syncs.events[0].why


def test_value_is_a_detached_copy_and_not_counted(v: torch.Tensor) -> None:
    with forbid_host_syncs():
        before = value({"v": v, "n": 3})
        v.add_(1)
    assert before["v"].device.type == "cpu"
    assert before["v"].tolist() == [0, 1, 2, 3, 4, 5]
    assert before["n"] == 3


def test_an_unknown_backend() -> None:
    with pytest.raises(ValueError, match="unknown backend 'gpu'"), host_syncs("gpu"):
        pass
