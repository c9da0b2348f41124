"""The usual form that does not wait, for the message of `HostSyncError`."""

from __future__ import annotations

_BY_OPERATOR: dict[str, str] = {
    "aten::_local_scalar_dense": "keep the value on the device: torch.where / clamp / lerp instead of `if`, and read "
    "it once, later, for the log (a non-blocking copy to a pinned buffer and an event)",
    "aten::equal": "torch.eq(a, b).all() stays on the device; read it once at the end",
    "aten::allclose": "torch.isclose(a, b).all() stays on the device; read it once at the end",
    "aten::nonzero": "nonzero_static(size=n) where a bound is known, or compute on all elements with a mask",
    "aten::masked_select": "compute on all elements and weigh by the mask: (x * mask).sum() / mask.sum().clamp(min=1)",
    "aten::index.Tensor": "x[mask] → keep all elements: torch.where(mask, x, 0); an index list → an index tensor made "
    "once on the device",
    "aten::index_put_": "x[mask] = v → torch.where(mask, v, x); a host value or index → made once on the device",
    "aten::masked_fill_": "masked_fill with a device scalar reads it → torch.where(mask, value, x)",
    "aten::index_fill_": "index_fill with a device scalar reads it → index_copy / torch.where",
    "aten::repeat_interleave.Tensor": "pass output_size=, which the host usually knows from a shape",
    "aten::bincount": "torch.zeros(n, device=…).scatter_add_(0, index, ones) with a known n",
    "aten::histc": "pass min= and max=, or bucketize and scatter_add_ with fixed edges",
    "aten::_unique2": "a fixed number of bins and scatter, or unique ids computed once on the host",
    "aten::unique_dim": "a fixed number of bins and scatter, or unique ids computed once on the host",
    "aten::unique_consecutive": "(x[1:] != x[:-1]).cumsum(0) gives the group of each element without its count",
    "aten::segment_reduce": "scatter_reduce with an index; or unsafe=True where the lengths are known to be valid",
    "aten::_linalg_check_errors": "the _ex variant (inv_ex, solve_ex, cholesky_ex) with check_errors=False; look at "
    "info later, or not at all",
    "aten::_linalg_eigh": "no variant without the check; for 3×3 a closed form, or cache the result",
    "aten::_linalg_svd": "no variant without the check; for 3×3 a closed form, or cache the result",
    "aten::linalg_matrix_exp": "a Taylor or Padé form of fixed degree for the norms that occur",
    "torch.cuda.synchronize": "leave it out, or wait for one event of the stream that produced the data",
    "event.synchronize": "wait later: after the next step's work is queued, or only when the value is needed",
    "stream.synchronize": "stream.wait_stream(other) orders the device without stopping the host",
}

_BY_KIND: dict[str, str] = {
    "library": "no variant without the wait; cache the result, or do it off the hot path",
    "explicit": "wait for one event of the stream that produced the data, later",
    "read": "keep the value on the device and read it once, later",
    "shape": "work on a fixed size with a mask, or pass the size that the host already knows",
    "h2d": "torch.tensor/as_tensor(float, device=…) each step → make it once, torch.full((), value, device=…), or pass "
    "the Python scalar; data → pin_memory() and non_blocking=True",
    "d2h": "copy with non_blocking=True into pinned memory and wait for its event when the value is needed",
    "check": "the variant without the check, or the check once per many steps",
    "race": "synchronize (or query) the event recorded after the copy before the buffer is read",
}


def sync_free_form(operator: str, kind: str) -> str:
    """The hint for an operator (``aten::index.Tensor``), else for its base name, else for the kind; may be empty."""
    base = operator.partition(".")[0] if operator.startswith(("aten::", "prims::")) else operator
    inplace = base.rstrip("_") + "_"
    for name in (operator, base, inplace):
        if name in _BY_OPERATOR:
            return _BY_OPERATOR[name]
    return _BY_KIND.get(kind, "")
