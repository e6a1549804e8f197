"""Locality of sliding windows: convolution (any rank, groups, dilation, transposed) and pooling.

At a border of the network the slice gets the padding that the whole tensor would get there; inside it gets none,
because the halo rows are the real ones.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from edge_offload.split.footprints.registry import (
    EMPTY,
    Local,
    Locality,
    Range,
    RowReader,
    Site,
    per_axis,
    register_rule,
    window_rows,
)


def _spatial_axis(site: Site, number: int, rank: int) -> Optional[int]:
    """Return the spatial axis (0 = first after channels) along which the value is split, or ``None``."""
    axis = site.axis_of(number)
    if axis is None:
        return None
    place = axis - (len(site.shape_of(number)) - rank)
    return place if place >= 0 else None


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> Tuple[Tuple[int, int], ...]:
    totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return tuple((total // 2, total - total // 2) for total in totals)


@register_rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
def convolution_rule(site: Site) -> Optional[Local]:
    """Split direct and transposed convolution with whole weights."""
    name = "input" if site.number_of("input") >= 0 else "self"
    source, weight = site.number_of(name), site.number_of("weight")
    if site.axis_of(weight) is not None or site.axis_of(site.number_of("bias")) is not None:
        return None
    if site.argument("transposed", False):
        return transposed_rule(site)
    rank = len(site.shape_of(weight)) - 2
    place = _spatial_axis(site, source, rank)
    if place is None:
        return None
    kernel = site.shape_of(weight)[2:]
    stride = per_axis(site.argument("stride"), rank, 1)
    dilation = per_axis(site.argument("dilation"), rank, 1)
    mode = site.argument("padding", 0)
    if mode == "same":
        sides = _same_padding(kernel, dilation)
    elif mode == "valid":
        sides = ((0, 0),) * rank
    else:
        sides = tuple((pad, pad) for pad in per_axis(mode, rank, 0))
    axis = site.axis_of(source)
    assert axis is not None
    size = site.shape_of(source)[axis]
    before = sides[place][0]

    def source_rows(low: int, high: int) -> Range:
        return window_rows(low, high, size, kernel[place], stride[place], before, dilation[place])

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        rows = reader.rows(source, first, last)
        sides_here = list(sides)
        sides_here[place] = _missing_rows(low, high, first, last, kernel[place], stride[place], before, dilation[place])
        padded, rest = _pad_rows(rows, sides_here, 0.0)
        replaced = {name: padded, "padding": rest}
        return site.call_overload(reader, **replaced) if mode not in ("same", "valid") else [
            _convolve_rows(site, reader, padded, rest, stride, dilation)
        ]  # fmt: skip

    return Local(Locality.BLOCK, site.one_axis(axis), site.output_shape[axis], {source: source_rows}, run)


def _convolve_rows(
    site: Site, reader: RowReader, rows: torch.Tensor, padding: Any, stride: Any, dilation: Any
) -> torch.Tensor:
    bias = site.number_of("bias")
    return torch.convolution(
        rows, reader.whole(site.number_of("weight")), reader.whole(bias) if bias >= 0 else None,
        stride, padding, dilation, False, (0,) * len(stride), int(site.argument("groups", 1)),
    )  # fmt: skip


@register_rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def transposed_rule(site: Site) -> Optional[Local]:
    """Map an output row j to input rows i with j = i * stride - padding + dilation * k."""
    name = "input" if site.number_of("input") >= 0 else "self"
    source, weight, bias = site.number_of(name), site.number_of("weight"), site.number_of("bias")
    rank = len(site.shape_of(weight)) - 2
    place = _spatial_axis(site, source, rank)
    batched = len(site.shape_of(source)) == rank + 2
    if place is None or not batched or site.axis_of(weight) is not None or site.axis_of(bias) is not None:
        return None
    axis = site.axis_of(source)
    assert axis is not None
    kernel = site.shape_of(weight)[2:]
    stride = per_axis(site.argument("stride"), rank, 1)
    padding = per_axis(site.argument("padding"), rank, 0)
    dilation = per_axis(site.argument("dilation"), rank, 1)
    extra = per_axis(site.argument("output_padding"), rank, 0)
    size, reach = site.shape_of(source)[axis], dilation[place] * (kernel[place] - 1)
    step, pad = stride[place], padding[place]

    def source_rows(low: int, high: int) -> Range:
        first = -((reach - low - pad) // step)
        last = (high - 1 + pad) // step + 1
        first, last = max(first, 0), min(last, size)
        return (first, last) if first < last else EMPTY

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        if first >= last:  # a stride longer than the kernel leaves rows that no input reaches
            sizes = list(site.output_shape)
            sizes[axis] = high - low
            return [_add_bias(site, reader, reader.whole(weight).new_zeros(sizes), rank)]
        slice_padding, slice_extra = list(padding), list(extra)
        slice_padding[place] = slice_extra[place] = 0
        full = torch.convolution(
            reader.rows(source, first, last), reader.whole(weight), None, stride, slice_padding, dilation, True,
            slice_extra, int(site.argument("groups", 1)),
        )  # fmt: skip
        start = first * step - pad  # output row of the whole tensor that row 0 of ``full`` is
        above, below = max(start - low, 0), max(high - (start + full.shape[axis]), 0)
        sides = [(0, 0)] * rank
        sides[place] = (above, below)
        full = functional.pad(full, _flatten_sides(sides))
        return [_add_bias(site, reader, full.narrow(axis, low - start + above, high - low), rank)]

    return Local(Locality.BLOCK, site.one_axis(axis), site.output_shape[axis], {source: source_rows}, run)


def _add_bias(site: Site, reader: RowReader, rows: torch.Tensor, rank: int) -> torch.Tensor:
    bias = site.number_of("bias")
    return rows if bias < 0 else rows + reader.whole(bias).reshape([-1] + [1] * rank)


@register_rule("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d",
      "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")  # fmt: skip
def max_pool_rule(site: Site) -> Optional[Local]:
    """Split with padding of minus infinity. Indices point into the whole tensor, so reading them makes it global."""
    rank = _spatial_rank(site)
    if any(position != 0 for position in site.used):
        return None
    return _local_pool(site, rank, per_axis(site.argument("dilation"), rank, 1), site.call_overload)


@register_rule("aten.avg_pool2d", "aten.avg_pool3d")
def average_pool_rule(site: Site) -> Optional[Local]:
    """Divide sums of windows by the counts that torch uses for each (padding, overhang, override)."""
    rank = _spatial_rank(site)
    pool = functional.avg_pool2d if rank == 2 else functional.avg_pool3d
    source = site.number_of("self")
    count_padding, fixed = site.argument("count_include_pad", True), site.argument("divisor_override")
    padding = per_axis(site.argument("padding"), rank, 0)
    shape = site.shape_of(source)[-rank:]

    def pool_mean(reader: RowReader, /, **arguments: Any) -> List[Any]:
        del reader
        rows, kernel, stride = arguments["self"], arguments["kernel_size"], arguments["stride"]
        sums = pool(rows, kernel, stride, divisor_override=1)
        if fixed is not None:
            return [sums / fixed]
        counted = torch.ones((1, 1, *rows.shape[-rank:]), dtype=rows.dtype, device=rows.device)
        for k, origin in enumerate(arguments["origins"]):
            pad = padding[k] if count_padding else 0
            place = torch.arange(rows.shape[k - rank], device=rows.device) + origin
            inside = (place >= -pad) & (place < shape[k] + pad)
            counted = counted * inside.to(rows.dtype).reshape([-1 if j == k else 1 for j in range(rank)])
        counts = pool(counted, kernel, stride, divisor_override=1)
        return [sums / counts.reshape((1,) * (sums.dim() - rank) + tuple(counts.shape[-rank:]))]

    return _local_pool(site, rank, (1,) * rank, pool_mean)


def _local_pool(site: Site, rank: int, dilation: Sequence[int], call: Any) -> Optional[Local]:
    source = site.number_of("self")
    place = _spatial_axis(site, source, rank)
    if place is None or not _is_floating(site, source):
        return None
    axis = site.axis_of(source)
    assert axis is not None
    kernel = per_axis(site.argument("kernel_size"), rank, 1)
    stride = per_axis(site.argument("stride"), rank, 1) if site.argument("stride") else kernel
    padding = per_axis(site.argument("padding"), rank, 0)
    shape, result = site.shape_of(source)[-rank:], site.output_shape[-rank:]
    is_max = "max_pool" in site.operator.name
    size = shape[place]

    def source_rows(low: int, high: int) -> Range:
        return window_rows(low, high, size, kernel[place], stride[place], padding[place], dilation[place])

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        sides: List[Tuple[int, int]] = []
        for k in range(rank):
            start, stop = (low, high) if k == place else (0, result[k])
            first, last = source_rows(low, high) if k == place else (0, shape[k])
            sides.append(_missing_rows(start, stop, first, last, kernel[k], stride[k], padding[k], dilation[k]))
        first, last = source_rows(low, high)
        rows = _fit_sides(reader.rows(source, first, last), sides, float("-inf") if is_max else 0.0)
        arguments = {"self": rows, "kernel_size": kernel, "stride": stride, "padding": (0,) * rank}
        if is_max:
            return list(call(reader, **arguments, ceil_mode=False))
        origins = [(first if k == place else 0) - sides[k][0] for k in range(rank)]
        return list(call(reader, **arguments, origins=origins))

    return Local(Locality.BLOCK, site.one_axis(axis), result[place], {source: source_rows}, run)


@register_rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d",
      "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")  # fmt: skip
def adaptive_pool_rule(site: Site) -> Optional[Local]:
    """Output row i averages input rows floor(i*H/h) to ceil((i+1)*H/h). One output row is a global mean."""
    source = site.number_of("self")
    shape = site.output_shape
    rank = _spatial_rank(site)
    place = _spatial_axis(site, source, rank)
    if place is None:
        return None
    axis = site.axis_of(source)
    assert axis is not None
    size, length = site.shape_of(source)[axis], shape[axis]

    def source_rows(low: int, high: int) -> Range:
        return low * size // length, -(-high * size // length)

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        sizes = list(shape[-rank:])
        sizes[place] = 1
        pieces = [
            site.call_overload(reader, self=reader.rows(source, *source_rows(row, row + 1)), output_size=sizes)[0]
            for row in range(low, high)
        ]
        return [torch.cat(pieces, dim=axis)]

    return Local(Locality.BLOCK, site.one_axis(axis), length, {source: source_rows}, run)


@register_rule("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d",
               "aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d", "aten.upsample_linear1d",
               "aten.upsample_bilinear2d", "aten.upsample_trilinear3d", "aten.upsample_bicubic2d")  # fmt: skip
def interpolation_rule(site: Site) -> Optional[Local]:
    """Interpolation is linear in each axis: its weights along the axis are read off the operator itself.

    The operator is run once, over the whole axis, on the columns of an identity matrix. The band of non-zeros is the
    footprint, and the weights are what the kernel uses, whatever the mode, scale and corner alignment.
    """
    name = "input" if site.number_of("input") >= 0 else "self"
    source = site.number_of(name)
    rank = len(site.output_shape) - 2
    place = _spatial_axis(site, source, rank)
    if place is None or not _is_floating(site, source):
        return None
    axis = site.axis_of(source)
    assert axis is not None
    size, length = site.shape_of(source)[axis], site.output_shape[axis]
    dtype = getattr(torch, site.sequence.values[source].dtype)
    weights = _axis_weights(site, name, place, rank, size, dtype)
    if weights is None or weights.shape != (length, size):
        return None
    others: Dict[int, torch.Tensor] = {}
    for k in range(rank):
        if k != place:
            matrix = _axis_weights(site, name, k, rank, site.shape_of(source)[2 + k], dtype)
            if matrix is None:
                return None
            others[2 + k] = matrix
    used = weights != 0
    first = used.to(torch.int8).argmax(dim=1).tolist()
    last = (size - used.flip(1).to(torch.int8).argmax(dim=1)).tolist()

    def source_rows(low: int, high: int) -> Range:
        return min(first[low:high]), max(last[low:high])

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        start, stop = source_rows(low, high)
        rows = reader.rows(source, start, stop)
        band = weights[low:high, start:stop].to(rows.dtype)
        mixed = _weight_rows(rows, band, axis)
        for other, matrix in others.items():
            mixed = _weight_rows(mixed, matrix, other)
        return [mixed]

    return Local(Locality.BLOCK, site.one_axis(axis), length, {source: source_rows}, run)


def _axis_weights(site: Site, name: str, place: int, rank: int, size: int, dtype: Any) -> Optional[torch.Tensor]:
    """Return the [output rows, input rows] matrix of the interpolation along one spatial axis."""
    shape = [1, size] + [1] * rank
    shape[2 + place] = size
    probe = torch.eye(size, dtype=dtype).reshape(shape)
    others = [1 if k != place else site.output_shape[2 + k] for k in range(rank)]
    result = _run_resize(site, name, probe, others, place)
    return None if result is None else torch.t(result.reshape(size, -1)).contiguous()


def _run_resize(
    site: Site, name: str, value: torch.Tensor, sizes: List[int], scaled_axis: int
) -> Optional[torch.Tensor]:
    """Run the operator on ``value`` with output ``sizes``, without the scales of axes other than ``scaled_axis``."""

    class Nothing:
        def rows(self, number: int, low: int, high: int) -> torch.Tensor:
            raise AssertionError("no other tensor takes part in interpolation")

        def whole(self, number: int) -> torch.Tensor:
            raise AssertionError("no other tensor takes part in interpolation")

    rank = value.dim() - 2
    replaced: Any = {name: value}
    if site.operator.name.endswith(".vec"):
        factors = site.argument("scale_factors")
        if factors is None:
            replaced["output_size"] = sizes
        else:
            replaced["output_size"] = None
            replaced["scale_factors"] = [factors[k] if k == scaled_axis else 1.0 for k in range(rank)]
    else:
        replaced["output_size"] = sizes
        for k, axis_name in enumerate(_SCALE_NAMES[rank]):
            if k != scaled_axis:
                replaced[axis_name] = None
    result: torch.Tensor = site.call_overload(Nothing(), **replaced)[0]
    return result if list(result.shape[2:]) == sizes else None


_SCALE_NAMES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def _to_device(rows: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Copy a small tensor of the host to the device of the rows."""
    return small.to(rows.device, non_blocking=True)


def _weight_rows(rows: torch.Tensor, band: torch.Tensor, axis: int) -> torch.Tensor:
    """Weight input rows by ``band``; plain selection if every weight is one."""
    if bool(((band == 1).sum(dim=1) == 1).all()) and bool(((band != 0).sum(dim=1) == 1).all()):
        return rows.index_select(axis, _to_device(rows, (band == 1).to(torch.int8).argmax(dim=1)))
    mixed: torch.Tensor = torch.tensordot(rows, _to_device(rows, band), dims=([axis], [1])).movedim(-1, axis)
    return mixed


def _spatial_rank(site: Site) -> int:
    """Return the number of spatial axes, from the operator's name: ``avg_pool2d`` has 2."""
    return int(site.operator.base_name.split("pool")[1][0])


def _is_floating(site: Site, number: int) -> bool:
    return bool(getattr(torch, site.sequence.values[number].dtype).is_floating_point)


def _missing_rows(low: int, high: int, first: int, last: int, kernel: int, stride: int, padding: int,
             dilation: int) -> Tuple[int, int]:  # fmt: skip
    """Rows of padding that the window over output [low, high) still needs around input rows [first, last).

    Negative where the rows reach further than the windows do.
    """
    return first - (low * stride - padding), (high - 1) * stride - padding + dilation * (kernel - 1) + 1 - last


def _flatten_sides(sides: Sequence[Tuple[int, int]]) -> List[int]:
    """Return padding per axis for ``functional.pad``: last axis first."""
    return [amount for pair in reversed(list(sides)) for amount in pair]


def _pad_rows(rows: torch.Tensor, sides: Sequence[Tuple[int, int]], value: float) -> Tuple[torch.Tensor, List[int]]:
    """Pad asymmetric or negative sides explicitly; the kernel pads symmetric ones."""
    explicit = [(0, 0) if low == high and low >= 0 else (low, high) for low, high in sides]
    rest = [low if low == high and low >= 0 else 0 for low, high in sides]
    if any(pair != (0, 0) for pair in explicit):
        rows = _fit_sides(rows, explicit, value)
    return rows, rest


def _fit_sides(rows: torch.Tensor, sides: Sequence[Tuple[int, int]], value: float) -> torch.Tensor:
    """Pad with ``value`` or crop the last axes; windows that lie in padding alone read only ``value``."""
    sizes = list(rows.shape)
    outside = False
    for k, (before, after) in enumerate(sides):
        axis = rows.dim() - len(sides) + k
        outside = outside or -before >= sizes[axis] or -after >= sizes[axis]
        sizes[axis] += before + after
    return rows.new_full(sizes, value) if outside else functional.pad(rows, _flatten_sides(sides), value=value)
