"""The kinds of kernels, by patterns of their names."""

from __future__ import annotations

# The first kind whose pattern is in the kernel's name, in this order.
PRODUCT = "convolution and matrix product"
KINDS = (
    ("collectives", r"nccl|all[-_]?reduce|allgather|reduce[-_]?scatter"),
    ("optimizer", r"multi_tensor_apply|fusedsgd|fused_sgd|applymomentum|applygradientdescent|resourceapply"),
    ("pooling", r"pool|select_and_scatter|select-and-scatter|reduce_window|reduce-window"),
    # inductor's names say what is fused: _to_copy alone is a cast, convolution alone a layout
    ("copy and layout", r"^triton_poi_fused_(_to_copy_|clone_|copy_|convolution_|_unsafe_index_put_)*\d*$"),
    ("pointwise", r"^triton_poi_"),
    # BatchNorm's statistics, their backward, and bias gradients
    ("normalization and other reductions", r"^triton_(red|per)_"),
    (PRODUCT, r"gemm|fprop|dgrad|wgrad|xmma|cutlass|nvjet|winograd|implicit|splitk"),
    ("normalization and other reductions", r"batch_?norm|welford|(\b|_)bn_|reduce|norm_bw|norm_fw"),
    ("copy and layout", r"memcpy|memset|transpose|nchwtonhwc|nhwctonchw|converttensor|permute|^copy|_copy|concat|pad_"),
    ("pointwise", r"fusion|elementwise|eigenmetakernel|convert|^loop_|^input_|^wrapped_|relu|_add|softmax|sigmoid"),
    (PRODUCT, r"conv|cudnn|cublas|sm\d\d|^dot|::mm|addmm|matmul"),
)
