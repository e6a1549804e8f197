"""Operators that a server runs: torch's public ones, less those that are unsafe with unchecked arguments.

Schema-valid arguments alone crash some internal overloads, and a few public ones reach files, processes or raw memory.
The list is by rule (namespace, leading underscore) with two tables of exceptions.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from edge_offload.errors import Unsupported
from edge_offload.ir.trace.keys import DTYPES

NAMESPACES = ("aten", "torchvision")
#: Numbers of :data:`~edge_offload.ir.schemas.ENUMERATIONS` that are used here.
#: Tensors are dense; :mod:`.composed` knows others.
SUPPORTED_NUMBERS = {"ScalarType": frozenset(DTYPES), "Layout": frozenset((0,)), "MemoryFormat": frozenset(range(4))}

#: Internal operators that public ones reach on the device; each checks its arguments.
_INTERNAL = """
    _softmax _log_softmax _safe_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training
    _adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag _embedding_bag_forward_only _cdist_forward _unique2
    _convolution
    _fused_sdp_choice _fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _transformer_encoder_layer_fwd _native_multi_head_attention _fft_c2c _fft_c2r _fft_r2c _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _linalg_det _linalg_slogdet _linalg_solve_ex _linalg_svd _linalg_eigh _linalg_eigvals _linalg_check_errors
    _weight_norm_interface _addmm_activation _add_relu _add_relu_ _amp_foreach_non_finite_check_and_unscale_
    _cummax_helper _cummin_helper _logcumsumexp _conj_physical _conj_copy _neg_view_copy _index_put_impl_ _unsafe_index
    _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate _masked_scale _masked_softmax
    _prelu_kernel _ctc_loss
    _dirichlet_grad _sample_dirichlet _standard_gamma _standard_gamma_grad _trilinear _euclidean_dist _pdist_forward
    _local_scalar_dense _aminmax _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
    _make_per_tensor_quantized_tensor _reshape_copy _to_copy _fused_rms_norm
    _int_mm _compute_linear_combination _chunk_cat _batch_norm_no_update _batch_norm_with_update _lu_with_info
    _assert_async _functional_assert_async _dim_arange _nnpack_spatial_convolution _assert_scalar _spdiags
    _amp_update_scale _amp_update_scale_ _amp_foreach_non_finite_check_and_unscale _functional_assert_scalar
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper
    _fused_moving_avg_obs_fq_helper_functional _grid_sampler_2d_cpu_fallback _grouped_mm _index_put_impl
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward _native_batch_norm_legit_functional
    _scaled_mm _scaled_mm_v2 _unique _upsample_lanczos2d_aa _weight_int8pack_mm _nested_tensor_from_mask_left_aligned
    _validate_compressed_sparse_indices _is_all_true _is_any_true
    _softmax_backward_data _masked_softmax_backward _prelu_kernel_backward _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward
    _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d_backward _scaled_dot_product_flash_attention_for_cpu_backward
    """
#: Those that take or make a tensor of parts (:mod:`.composed`); the parts are checked when they are put together.
_COMPOSED = """
    _coalesce _to_dense _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _sparse_addmm _sparse_sum
    _sparse_softmax _sparse_log_softmax _sparse_sparse_matmul _sparse_mm_reduce_impl _sparse_broadcast_to_copy
    _sparse_csr_sum _sparse_csr_prod _sparse_mask_projection _nested_tensor_from_mask _nested_from_padded
    _nested_from_padded_and_nested_example _nested_tensor_softmax_with_shape
    _log_softmax_backward_data _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    """

#: Operators that are not run: files, shared memory, raw storages, other processes, debugging; and fused attention of
#: GPUs, some of whose results are memory as it was.
_REFUSED = """
    from_file set_ set set_data data_ptr pin_memory share_memory_ record_stream is_pinned storage_offset
    quantized_lstm to_mkldnn _scaled_dot_product_flash_attention
    """
INTERNAL_ALLOWED = frozenset(_INTERNAL.split())
COMPOSED = frozenset(_COMPOSED.split())
REFUSED = frozenset(_REFUSED.split())


@functools.lru_cache(maxsize=1)
def _register_torchvision() -> None:
    """Imports torchvision, whose operators exist only then; without it, they are refused by name."""
    from edge_offload.ir.torchvision_package import torchvision_package

    with contextlib.suppress(Unsupported):
        torchvision_package()


def resolve_operator(name: str, composed: bool = False) -> Any:
    """Resolves ``namespace::operator[.overload]``; with ``composed`` also operators on tensors of parts.

    Raises:
        Unsupported: it is not on the list, or this torch does not have it; the message names it.
    """
    namespace, separator, rest = name.partition("::")
    operator, _, overload_name = rest.partition(".")
    if not separator or namespace not in NAMESPACES or not operator.isidentifier():
        raise Unsupported(f"operator {name!r} is not one that the server runs")
    internal = operator.startswith("_") and not operator.startswith("__")
    if operator in REFUSED or (
        internal
        and operator not in INTERNAL_ALLOWED
        and not (composed and operator in COMPOSED)
        and not operator.startswith("_foreach_")
        and namespace == "aten"
    ):
        raise Unsupported(f"operator {name!r} is not one that the server runs")
    if namespace == "torchvision":
        _register_torchvision()
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    overload = getattr(packet, overload_name or "default", None) if packet is not None else None
    if not isinstance(overload, torch._ops.OpOverload):
        raise Unsupported(f"operator {name!r} does not exist in torch {torch.__version__}")
    return overload
