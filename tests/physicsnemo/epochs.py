"""One epoch of the recipe's step loop, on random data, and everything it logged.

Both trees' ``train`` modules run in one process. The other modules of the recipe are the same in both (see
`test_only_the_loop_differs`), so they are loaded once.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict

TARGETS = {"pressure": "scalar", "wss": "vector"}
EPOCH = 3


class Loader(list):
    """A list of batches; calls ``before_step(i)`` as the loop asks for batch ``i``, and once more at the end."""

    before_step: Callable[[int], None] = staticmethod(lambda i: None)

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(super().__iter__()):
            self.before_step(i)
            yield batch
        self.before_step(len(self))


class Epoch:
    """Args:
    train: A tree's ``train`` module.
    folder: Where the JSONL and TensorBoard files go.
    seed: Of the weights and the batches.
    rank: Chooses the batches; only rank 0 writes.
    """

    def __init__(
        self, train: ModuleType, folder: Path, seed: int, *, mode: str = "train", device: torch.device | str = "cpu",
        n_steps: int = 5, rank: int = 0, world_size: int = 1, profile: bool = False, metrics: list[str] | None = None,
        update_mode: str = "step",
    ) -> None:  # fmt: skip
        from omegaconf import OmegaConf
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True)
        self.train, self.folder, self.mode, self.device = train, folder, mode, torch.device(device)
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(3, 4).to(self.device)
        torch.manual_seed(seed + 1 + rank)
        self.loader = Loader(self._batch() for _ in range(n_steps))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.losses, self.metrics = train.LossCalculator(TARGETS), train.MetricCalculator(TARGETS, metrics=metrics)
        self.cfg = OmegaConf.create(
            {"precision": "float32", "profile": profile, "training": {"scheduler_update_mode": update_mode}}
        )
        self.ranks = SimpleNamespace(rank=rank, world_size=world_size, device=self.device)
        self.lines: list[str] = []
        self.writer = SummaryWriter(folder / "tb")
        self.write_jsonl = train.make_jsonl_logger(folder / "metrics.jsonl")

    def _batch(self) -> dict[str, Any]:
        targets = {"pressure": torch.randn(1, 20), "wss": torch.randn(1, 20, 3)}
        on_device = {name: leaf.to(self.device) for name, leaf in targets.items()}
        return {
            "forward_kwargs": {"input": torch.randn(1, 20, 3).to(self.device)},
            "targets": TensorDict(on_device, batch_size=[1, 20]),
        }

    def run(self) -> tuple[float, dict[str, float]]:
        return self.train._run_epoch(
            self.loader, self.model, self.losses, self.metrics, SimpleNamespace(info=self.lines.append), EPOCH,
            self.cfg, self.ranks, mode=self.mode, output_type="tensors", target_config=TARGETS,
            optimizer=self.optimizer, scheduler=self.scheduler, writer=self.writer, log_jsonl=self.write_jsonl,
        )  # fmt: skip

    def jsonl(self) -> list[dict[str, Any]]:
        """The records without the clock's values, their keys in order."""
        file = self.folder / "metrics.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [{key: value for key, value in record.items() if key not in ("ts", "step_time_s")} for record in records]

    def logged_steps(self) -> list[int]:
        """The steps that have a record, in the order of the records."""
        key, first = ("global_step", EPOCH * len(self.loader)) if self.mode == "train" else ("val_step", 0)
        return [record[key] - first for record in self.jsonl() if record["phase"] == f"{self.mode}_step"]

    def console(self) -> list[str]:
        """The lines without the clock's values."""
        return [re.sub(r"\d+\.\d+s", "<time>", line) for line in self.lines]

    def tensorboard(self) -> list[tuple[str, list[tuple[int, float]]]]:
        """Each tag's (step, value) pairs as the file has them, without the clock's values."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.writer.flush()
        file = EventAccumulator(str(self.folder / "tb"), {"scalars": 0}).Reload()
        tags = [tag for tag in sorted(file.Tags()["scalars"]) if not tag.endswith("step_time_s")]
        return [(tag, [(event.step, event.value) for event in file.Scalars(tag)]) for tag in tags]

    def learning_rates(self) -> list[float]:
        return [value for _, value in dict(self.tensorboard()).get("iteration/lr", [])]

    def everything(self) -> str:
        """All that was logged, as text: equal texts are equal bits."""
        return repr((self.console(), self.jsonl(), self.tensorboard()))


def on(copy: Any) -> AbstractContextManager[ModuleType]:
    """Enter a tree's copy of ``train``. The datapipes register what the recipe's configs name: before it."""
    importlib.import_module("physicsnemo.datapipes")
    return copy.active()
