"""Locality of element-wise operators, with broadcasting: an output row needs the same row of every operand."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from edge_offload.ir import Ref
from edge_offload.ir.evaluate import mentions_tensor
from edge_offload.ir.operators import Arg
from edge_offload.split.footprints.registry import Footprint, Local, Locality, RowReader, Site, register_rule, same_rows

UNARY = tuple(
    """
abs acos acosh asin asinh atan atanh bitwise_not ceil celu clamp clamp_max clamp_min clip clone contiguous cos cosh
detach dropout elu erf erfc exp exp2 expm1 fix floor frac gelu hardshrink hardsigmoid hardswish hardtanh isfinite isinf
isnan leaky_relu lift_fresh_copy log log10 log1p log2 log_sigmoid logical_not logit mish nan_to_num neg negative
ones_like positive reciprocal relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinh softplus softshrink
sqrt square tan tanh threshold to trunc type_as zero zeros_like full_like _to_copy alias
""".split()  # noqa: SIM905 - a table reads better than a list of literals
)

POINTWISE = tuple(
    """
add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power maximum minimum
fmax fmin atan2 hypot logaddexp nextafter eq ne lt le gt ge greater less greater_equal less_equal not_equal logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ where addcmul addcdiv lerp masked_fill
xlogy _prelu_kernel
""".split()  # noqa: SIM905 - a table reads better than a list of literals
)

BATCH_NORMS = tuple(
    f"aten.{name}"
    for name in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "_batch_norm_no_update")
)


@register_rule(*(f"aten.{name}" for name in UNARY), *(f"aten.{name}" for name in POINTWISE))
def pointwise_rule(site: Site) -> Optional[Local]:
    """Broadcast all tensors among the arguments to the output's shape."""
    if any(position != 0 for position in site.used) or site.argument("train"):
        return None  # dropout while training is random
    return broadcast_rule(site, site.operator.input_ids())


@register_rule("aten.prelu")
def prelu_rule(site: Site) -> Optional[Local]:
    """Slope: one number, or one per channel along axis 1 whatever the rank; programs record ``_prelu_kernel``."""
    source, weight = site.number_of("self"), site.number_of("weight")
    if site.axis_of(weight) is not None:
        return None
    local = broadcast_rule(site, (source,))
    if local is None or local.axes[0] != 1 or site.shape_of(weight) in ((), (1,)):
        return local

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        slopes = reader.whole(weight).narrow(0, low, high - low)
        return site.call_overload(reader, self=reader.rows(source, low, high), weight=slopes)

    return Local(local.kind, local.axes, local.length, local.needs, run)


@register_rule(*BATCH_NORMS)
def batch_norm_rule(site: Site) -> Optional[Local]:
    """Scale and shift per channel, with fixed statistics. While training the statistics need every row."""
    name = "input" if site.number_of("input") >= 0 else "self"
    axis = site.axis_of(site.number_of(name))
    training = site.argument("training") or site.argument("train")
    if axis in (None, 1) or training or any(position != 0 for position in site.used):
        return None
    return broadcast_rule(site, (site.number_of(name),))


@register_rule("aten.expand")
def expand_rule(site: Site) -> Optional[Local]:
    """Broadcast, with the output's rows written into the size argument."""
    local = broadcast_rule(site, (site.number_of("self"),))
    if local is None:
        return None
    axis = local.axes[0]
    assert axis is not None

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        sizes = list(site.output_shape)
        sizes[axis] = high - low
        return site.call_overload(reader, self=reader.rows(site.number_of("self"), low, high), size=sizes)

    return Local(local.kind, local.axes, local.length, local.needs, run)


def broadcast_rule(site: Site, operands: Any) -> Optional[Local]:
    """The rule for operands that broadcast to the output. Operands outside ``operands`` are passed whole.

    An operand with full size at the output's axis but no axis of its own (a position embedding, a gate that was
    computed in one piece) is there whole and is cut on the spot.
    """
    shape = site.output_shape
    axis: Optional[int] = None
    for number in operands:
        operand_axis = site.axis_of(number)
        if operand_axis is None:
            continue
        output_axis = operand_axis + len(shape) - len(site.shape_of(number))
        if (axis is not None and output_axis != axis) or site.shape_of(number)[operand_axis] != shape[output_axis]:
            return None
        axis = output_axis
    if axis is None or any(number not in operands for number in site.carried):
        return None
    needs: Dict[int, Footprint] = {number: same_rows for number in operands if site.axis_of(number) is not None}
    sliced_axes: Dict[int, int] = {}
    for number in operands:
        operand_axis = axis - len(shape) + len(site.shape_of(number))
        if number not in needs and operand_axis >= 0 and site.shape_of(number)[operand_axis] == shape[axis]:
            sliced_axes[number] = operand_axis
    names = {name: arg for name, arg in site.bound.items() if mentions_tensor(arg)}

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        def slice_arg(arg: Arg) -> Any:
            if isinstance(arg, tuple):
                return [slice_arg(item) for item in arg]
            if not isinstance(arg, Ref):
                return arg
            if arg.id in needs:
                return reader.rows(arg.id, low, high)
            tensor = reader.whole(arg.id)
            return tensor.narrow(sliced_axes[arg.id], low, high - low) if arg.id in sliced_axes else tensor

        return site.call_overload(reader, **{name: slice_arg(arg) for name, arg in names.items()})

    return Local(Locality.ELEMENT, site.one_axis(axis), shape[axis], needs, run)
