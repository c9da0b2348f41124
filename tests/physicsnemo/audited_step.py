"""For ``make audit-physicsnemo``: five steps of the recipe's epoch loop and the epoch's end."""

import importlib
import tempfile
from pathlib import Path

import torch

importlib.import_module("physicsnemo.datapipes")
import train  # noqa: E402 - the recipe's, from the tree; the datapipes register its transforms first
from epochs import Epoch  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    epoch = Epoch(train, Path(folder, "epoch"), 0, device="cuda")
    with torch.profiler.record_function("step"):
        epoch.run()
