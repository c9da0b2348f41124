"""The virtual device: it claims to be a GPU, and its values are those of the CPU."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nosync.hostsync import HostSyncError, forbid_host_syncs, host_syncs, use_backend, value
from nosync.hostsync.backends import virtual_is_on


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with use_backend("virtual") as device:
        yield device


def test_it_claims_to_be_a_gpu(gpu: torch.device) -> None:
    x = torch.zeros(2, 3, device="cuda")
    assert x.device == gpu == torch.device("cuda:0")
    assert x.is_cuda
    assert x.to("cuda:0").device == gpu
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    with torch.device("cuda"):
        assert torch.ones(2).device == gpu
    assert x.cpu().device.type == "cpu"


def test_it_may_be_the_default_device(gpu: torch.device) -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.get_default_device() == gpu
        with host_syncs() as syncs:
            made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.asarray([1.0]), torch.zeros(2)]
        made.append(torch.distributions.Normal(0.0, 1.0).sample())
    finally:
        torch.set_default_device(None)
    assert {x.device for x in made} == {gpu}
    assert [event.kind for event in syncs.events] == ["h2d"] * 3
    assert torch.tensor([1.0]).device.type == "cpu"
    with torch.device("cuda"):
        assert torch.tensor([1.0]).device == gpu


def test_what_is_spoofed_is_put_back() -> None:
    names = ("is_available", "synchronize", "Stream", "Event", "current_stream")
    before = [getattr(torch.cuda, name) for name in names]
    start, compile_ = threading.Thread.start, torch.compile
    with use_backend("virtual"), host_syncs():
        assert virtual_is_on()
    assert [getattr(torch.cuda, name) for name in names] == before
    assert (threading.Thread.start, torch.compile) == (start, compile_)
    assert not virtual_is_on()
    assert torch.empty(1).device.type == "cpu"


def models() -> list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]]:
    return [
        ("mlp", lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1)), (5, 3)),
        ("conv", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)), (2, 3, 8, 8)),
        ("lstm", lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), (5, 2, 3)),
        ("lstm without bias", lambda: nn.LSTM(3, 4, bias=False), (5, 2, 3)),
        ("gru", lambda: nn.GRU(3, 4), (5, 2, 3)),
        ("gru without bias", lambda: nn.GRU(3, 4, bias=False), (5, 2, 3)),
        ("attention", lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 4, 8)),
    ]


@pytest.mark.parametrize(("make", "shape"), [m[1:] for m in models()], ids=[m[0] for m in models()])
def test_modules_give_the_cpus_values_and_gradients(
    gpu: torch.device, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    on_cpu = make()
    on_gpu = copy.deepcopy(on_cpu).to(gpu)
    x = torch.randn(shape)
    outs = [model(x.to(p.device)) for model in (on_cpu, on_gpu) for p in [next(model.parameters())]]
    outs = [out[0] if isinstance(out, tuple) else out for out in outs]
    for out in outs:
        (out * out).sum().backward()
    torch.testing.assert_close(value(outs[1]), value(outs[0]))
    for expected, seen in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
        assert seen.device == gpu
        torch.testing.assert_close(value(seen.grad), expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"capturable": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
    ],
    ids=str,
)
def test_optimizers_give_the_cpus_values(gpu: torch.device, optimizer: type, options: dict[str, object]) -> None:
    on_cpu = nn.Linear(3, 2)
    on_gpu = copy.deepcopy(on_cpu).to(gpu)
    x = torch.randn(4, 3)
    for model, inputs in ((on_cpu, x), (on_gpu, x.to(gpu))):
        cpu_options = {k: v for k, v in options.items() if k != "capturable"} if model is on_cpu else options
        opt = optimizer(model.parameters(), lr=0.1, **cpu_options)
        for _ in range(3):
            opt.zero_grad()
            model(inputs).square().sum().backward()
            opt.step()
    torch.testing.assert_close(value(on_gpu.weight), value(on_cpu.weight))


def test_moving_a_module_keeps_its_parameters(gpu: torch.device) -> None:
    model = nn.Linear(3, 3)
    tied = nn.Sequential(model, nn.Linear(3, 3))
    tied[1].weight = model.weight
    weight = model.weight
    opt = torch.optim.SGD(tied.parameters(), lr=0.1)
    tied.to(gpu)
    assert tied[0].weight is tied[1].weight is weight
    assert weight.device == gpu
    before = value(weight)
    tied(torch.ones(2, 3, device=gpu)).sum().backward()
    opt.step()
    assert not torch.equal(value(weight), before)


def test_views_share_memory(gpu: torch.device) -> None:
    x = torch.zeros(4, 3, device=gpu)
    x[1].fill_(2)
    x.view(-1)[0].add_(7)
    x.t()[2, 3] = torch.ones((), device=gpu)
    assert value(x).tolist() == [[7, 0, 0], [2, 2, 2], [0, 0, 0], [0, 0, 1]]


def test_in_place_changes_of_shape(gpu: torch.device) -> None:
    x = torch.arange(6.0, device=gpu).view(2, 3)
    x.t_()
    assert (x.shape, x.stride()) == ((3, 2), (1, 3))
    x.unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    y = torch.empty(2, device=gpu)
    assert y.resize_(9).shape == (9,)
    torch.arange(3.0, device=gpu, out=y)
    assert value(y).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: nn.functional.cross_entropy(x, torch.tensor([0, 1, 2])),
        lambda x, host: nn.functional.embedding(torch.tensor([0]), x),
        lambda x, host: nn.functional.linear(x, host),
        lambda x, host: nn.functional.layer_norm(x, (3,), host[0]),
        lambda x, host: host[x[0].long()],
        lambda x, host: host.index_put_((x[0].long(),), host),
        lambda x, host: x.masked_fill(host > 0, 0.0),
        lambda x, host: torch.bucketize(x, host[0]),
        lambda x, host: torch.where(host > 0, x, x),
        lambda x, host: x.index_select(0, torch.tensor([0])),
    ],
    ids=range(10),
)
def test_operators_that_take_one_device(gpu: torch.device, mix: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mix(torch.ones(3, 3, device=gpu), torch.ones(3, 3))


def test_what_a_gpu_takes_from_the_host(gpu: torch.device) -> None:
    x = torch.ones(3, 3, device=gpu)
    assert x[torch.tensor([0, 1])].shape == (2, 3)
    assert x[torch.tensor([True, False, False])].shape == (1, 3)
    x[torch.tensor([0])] = 2.0
    assert torch.where(x > 1, x, torch.tensor(0.0)).device == gpu
    assert nn.utils.rnn.pack_padded_sequence(x[None].expand(2, 3, 3), torch.tensor([3, 2]), batch_first=True)
    assert len(torch.tensor_split(x, torch.tensor([1, 2]))) == 3


def test_host_and_device_do_not_mix(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu)
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        x[torch.zeros(3, dtype=torch.long, device=gpu)] = torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert value(x * torch.tensor(2.0)).tolist() == [2, 2, 2]


def test_an_error_in_backward_is_an_error(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu, requires_grad=True)
    y = x * torch.ones(3, device=gpu)
    y.grad_fn._raw_saved_other.register_hooks(lambda saved: saved, lambda saved: torch.ones(3))  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="same device"):
        y.sum().backward()
    x.sum().backward()


def saved(what: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(gpu: torch.device, weights_only: bool) -> None:
    weight = nn.Parameter(torch.ones(2, device=gpu))
    file = saved({"x": torch.arange(3.0, device=gpu), "weight": weight})
    loaded = torch.load(file, weights_only=weights_only)
    assert {x.device for x in loaded.values()} == {gpu}
    assert value(loaded["x"]).tolist() == [0, 1, 2]
    assert isinstance(loaded["weight"], nn.Parameter)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"


def test_a_file_of_the_device_is_an_ordinary_one(tmp_path: Path) -> None:
    with use_backend("virtual") as device:
        torch.save(nn.Linear(3, 2, device=device).state_dict(), tmp_path / "file.pt")
    code = f"import torch; print(torch.load({str(tmp_path / 'file.pt')!r}, map_location='cpu')['weight'].shape)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([2, 3])", done.stderr


@pytest.mark.parametrize("where", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda"}], ids=str)
def test_a_file_of_the_host_is_loaded_onto_the_device(gpu: torch.device, where: object) -> None:
    host = torch.arange(6.0).view(2, 3)
    file = saved({"x": host, "row": host[1], "n": 3})
    with host_syncs() as syncs:
        loaded = torch.load(file, map_location=where)  # type: ignore[arg-type]
    assert [event.kind for event in syncs.events] == ["h2d"]
    assert loaded["x"].device == gpu
    loaded["row"].zero_()
    assert value(loaded["x"] @ torch.ones(3, device=gpu)).tolist() == [3, 0]


def test_the_device_is_a_class_and_a_context(gpu: torch.device) -> None:
    with torch.cuda.device(0):
        assert isinstance(torch.cuda.device(0), torch.cuda.device)
    assert torch.cuda.device("cuda").idx == 0
    assert not isinstance(gpu, torch.cuda.device)


@pytest.mark.parametrize(("enabled", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_autocast(gpu: torch.device, enabled: bool, dtype: torch.dtype) -> None:
    a = torch.ones(3, 3, device=gpu)
    with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
        assert torch.is_autocast_enabled("cuda") == enabled
        assert (a @ a).dtype == dtype
        assert nn.functional.linear(a, a).dtype == dtype
        assert (a @ a).softmax(-1).dtype == torch.float32
    assert (a @ a).dtype == torch.float32


# ------------------------------------------------------------------ copies, streams, events
def test_reading_a_buffer_before_its_event_is_a_race(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu)
    with host_syncs() as syncs:
        host = x.to("cpu", non_blocking=True)
        host.sum()
    assert [event.kind for event in syncs.events] == ["race"]
    with pytest.raises(HostSyncError, match="race"), forbid_host_syncs():
        x.to("cpu", non_blocking=True).sum()


def test_reading_it_after_its_event_is_none(gpu: torch.device) -> None:
    x, host, event = torch.ones(3, device=gpu), torch.empty(3).pin_memory(), torch.cuda.Event()
    with host_syncs() as syncs:
        host.copy_(x, non_blocking=True)
        event.record()
        event.synchronize()
        host.sum()
    assert [event.kind for event in syncs.events] == ["explicit"]


def test_other_slots_of_a_ring_may_be_read(gpu: torch.device) -> None:
    x, ring = torch.ones(3, device=gpu), torch.zeros(2, 3).pin_memory()
    with forbid_host_syncs():
        ring[0].copy_(x, non_blocking=True)
        torch.cuda.current_stream().record_event().query()
        ring[1].copy_(x, non_blocking=True)
        assert ring[0].sum().item() == 3.0
    for unfinished in (ring[1], ring, ring[:, 0], ring.view(-1)[2:4]):
        with pytest.raises(HostSyncError, match="race"), forbid_host_syncs():
            unfinished.sum()


def test_a_second_copy_does_not_finish_the_first(gpu: torch.device) -> None:
    x, side, host = torch.ones(3, device=gpu), torch.cuda.Stream(), torch.zeros(6).pin_memory()
    with host_syncs() as syncs:
        host[:3].copy_(x, non_blocking=True)
        with torch.cuda.stream(side):
            host[3:].copy_(x, non_blocking=True)
        side.query()
        host[3:].sum()
        host[:3].sum()
    assert [event.kind for event in syncs.events] == ["race"]


def test_an_event_recorded_before_the_copy_does_not_help(gpu: torch.device) -> None:
    x, host, event = torch.ones(3, device=gpu), torch.empty(3).pin_memory(), torch.cuda.Event()
    with host_syncs() as syncs:
        event.record()
        host.copy_(x, non_blocking=True)
        event.synchronize()
        host.sum()
    assert [event.kind for event in syncs.events] == ["explicit", "race"]


def test_a_query_that_says_done_is_enough(gpu: torch.device) -> None:
    x, event = torch.ones(3, device=gpu), torch.cuda.Event()
    with forbid_host_syncs():
        host = x.to("cpu", non_blocking=True)
        event.record()
        assert event.query()
        host.sum()


def test_a_wait_for_another_stream_does_not_help(gpu: torch.device) -> None:
    x, side = torch.ones(3, device=gpu), torch.cuda.Stream()
    with host_syncs() as syncs:
        with torch.cuda.stream(side):
            host = x.to("cpu", non_blocking=True)
        torch.cuda.current_stream().synchronize()
        host.sum()
    assert [event.kind for event in syncs.events] == ["explicit", "race"]


def test_a_copy_back_on_the_same_stream_is_no_race(gpu: torch.device) -> None:
    x, host = torch.ones(3, device=gpu), torch.empty(3).pin_memory()
    with forbid_host_syncs():
        host.copy_(x, non_blocking=True)
        x.copy_(host, non_blocking=True)
        host.copy_(x, non_blocking=True)
        assert host.to(gpu, non_blocking=True).device == gpu


@pytest.mark.parametrize("ordered", [True, False])
def test_a_copy_back_on_another_stream_must_wait_for_the_first(gpu: torch.device, ordered: bool) -> None:
    x, host, side = torch.ones(3, device=gpu), torch.empty(3).pin_memory(), torch.cuda.Stream()
    with host_syncs() as syncs:
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        if ordered:
            torch.cuda.current_stream().wait_stream(side)
        host.to(gpu, non_blocking=True)
    assert [event.kind for event in syncs.events] == ([] if ordered else ["race"])


def test_a_strided_copy_back_is_read_by_the_host(gpu: torch.device) -> None:
    x, host = torch.ones(3, 3, device=gpu), torch.empty(3, 3).pin_memory()
    with host_syncs() as syncs:
        host.copy_(x, non_blocking=True)
        x.copy_(host.t(), non_blocking=True)  # strided: the host makes it contiguous first
    assert [event.kind for event in syncs.events if not event.soft] == ["race"]


def test_offloaded_activations_are_no_race(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu, requires_grad=True)
    with host_syncs() as syncs:  # packing waits before torch 2.13
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            y = (x**3).sum()
        y.backward()
    assert "race" not in [event.kind for event in syncs.events]
    assert value(x.grad).tolist() == [3, 3, 3]


def test_a_stream_that_waited_for_it_does(gpu: torch.device) -> None:
    x, side = torch.ones(3, device=gpu), torch.cuda.Stream()
    with host_syncs() as syncs:
        with torch.cuda.stream(side):
            host = x.to("cpu", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.current_stream().synchronize()
        host.sum()
    assert [event.kind for event in syncs.events] == ["explicit"]


def test_any_blocking_read_on_the_stream_completes_earlier_copies(gpu: torch.device) -> None:
    x = torch.ones(3, device=gpu)
    with host_syncs() as syncs:
        host = x.to("cpu", non_blocking=True)
        x.sum().item()
        host.sum()
    assert [event.kind for event in syncs.events] == ["read"]


@pytest.mark.parametrize(
    ("wait", "operator"),
    [
        (lambda: torch.cuda.synchronize(), "torch.cuda.synchronize"),
        (lambda: torch.cuda.current_stream().synchronize(), "stream.synchronize"),
        (lambda: torch.cuda.current_stream().record_event().synchronize(), "event.synchronize"),
        (lambda: torch.accelerator.synchronize(), "torch.cuda.synchronize"),
    ],
)
def test_explicit_waits(gpu: torch.device, wait: Callable[[], None], operator: str) -> None:
    with host_syncs() as syncs:
        wait()
    assert [(event.operator, event.kind) for event in syncs.events] == [(operator, "explicit")]


def test_pinned_memory(gpu: torch.device) -> None:
    pinned, plain = torch.ones(3, 3).pin_memory(), torch.ones(3, 3)
    assert pinned.is_pinned()
    assert pinned[1].is_pinned()
    assert not plain.is_pinned()
    with host_syncs() as syncs:
        pinned.to(gpu, non_blocking=True)
        pinned[1].to(gpu, non_blocking=True)
    assert not syncs.events
    with host_syncs() as syncs:
        plain.to(gpu, non_blocking=True)
    assert syncs.count == 0
    assert [event.soft for event in syncs.events] == [True]


def test_the_data_loader_pins(gpu: torch.device) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for (batch,) in loader)
