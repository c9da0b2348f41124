"""Operators that torch implements for devices alone, on the CPU values: the fused cells of LSTM and GRU.

For a CUDA tensor torch calls cuDNN's RNN, for other devices these cells. The workspace that a forward hands to its
backward is private to the pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


def _plus(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gates (B, 4H), state (B, H) → hidden (B, H), state (B, H), workspace (B, 4H)."""
    gates = _plus(input_gates, input_bias) + _plus(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the gates (B, 4H), of the state (B, H) and of the bias (4H)."""
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_hy * o * (1 - tanh**2) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        [
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g**2),
            grad_hy * tanh * o * (1 - o),
        ],
        1,
    )
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gates (B, 3H), hidden (B, H) → hidden (B, H), workspace (B, 5H)."""
    i_r, i_z, i_n = _plus(input_gates, input_bias).chunk(3, 1)
    h_r, h_z, h_n = _plus(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (i_r + h_r).sigmoid(), (i_z + h_z).sigmoid()
    n = (i_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, h_n], 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of input gates, hidden gates (B, 3H), hidden (B, H) and the two biases (3H)."""
    r, z, n, hx, h_n = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n**2)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * h_n * r * (1 - r)
    from_input = torch.cat([grad_r, grad_z, grad_n], 1)
    from_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (from_input.sum(0), from_hidden.sum(0)) if has_bias else (None, None)
    return from_input, from_hidden, grad_hy * z, *biases


IMPLEMENTATIONS: dict[OpOverload, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
    aten._efficientzerotensor.default: aten.zeros.default,  # it has no memory to wrap
}
"""What to run instead of an operator that the CPU lacks."""

HOST_OUTPUTS: dict[OpOverload, tuple[int, ...]] = {
    aten._pack_padded_sequence.default: (1,),
    aten._pad_packed_sequence.default: (1,),
}
"""Outputs that stay on the host although the inputs are on the device."""
