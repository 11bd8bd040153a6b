"""What is counted in a source, by name."""

COUNTS = (
    "fma", "mul", "add", "special", "int_op", "int_div", "compare", "select",
    "load_global_1", "load_global_2", "load_global_4", "load_read_only", "store_global_1", "store_global_2", "store_global_4",
    "load_shared_1", "load_shared_2", "load_shared_4", "store_shared_1", "store_shared_2", "store_shared_4",
    "local_access", "async_copy", "async_copy_bytes", "async_wait", "barrier", "fence", "atomic", "shuffle", "branch", "assign",
)  # fmt: skip
"""Counted statically and weighted. The number behind a load or store is its width in 4-byte words; loads through the
read-only path are among the global ones; `local_access` is to a thread's own arrays, which live in registers when unrolled."""

WHOLES = (
    "code_size", "loops", "loops_runtime", "loop_nesting", "loop_body_nodes", "loop_body_operations", "unroll_pragmas",
    "unroll_limit", "depth", "w_depth", "index_strides", "shared_bytes", "local_bytes", "block_threads", "min_blocks", "nodes",
)  # fmt: skip
"""code_size: operations after unrolling as asked. loop_body_*: of the largest innermost loop. unroll_limit: summed log2 of the
factors given. depth: the longest chain of dependent operations; w_depth: of steps in the longest chain that loops carry.
index_strides: summed log2 of the constants that run-time indices are multiplied with or divided by."""

NOT_OPERATIONS = ("async_copy_bytes", "load_read_only", "local_access")
LOADS = ("__ldg", "__ldca", "__ldcg", "__ldcs", "__ldlu", "__ldcv")
STORES = ("__stwb", "__stcg", "__stcs", "__stwt")
_BY_COUNT = {
    "barrier": ("__syncthreads", "__syncwarp"),
    "fence": ("__threadfence", "__threadfence_block"),
    "async_wait": ("__pipeline_wait_prior", "__pipeline_commit"),
    "shuffle": ("__ballot_sync", "__any_sync", "__all_sync"),
    "fma": ("fmaf", "__fmaf_rn"),
    "mul": ("__fmul_rn", "__hmul", "__hmul2", "operator*", "operator*="),
    "add": ("fminf", "fmaxf", "__fadd_rn", "__fsub_rn", "__saturatef", "__hadd", "__hsub", "__hmax", "__hmin", "__hadd2",
            "__hmax2", "operator+", "operator-", "operator+=", "operator-=", "floorf", "ceilf", "operator float",
            "__half2float", "__float2half", "__float2half_rn", "__half22float2", "__float22half2_rn", "__floats2half2_rn",
            "__float2half2_rn", "__low2float", "__high2float", "__bfloat162float", "__float2bfloat16",
            "__float2bfloat16_rn", "__bfloat1622float2", "__float22bfloat162_rn", "__floats2bfloat162_rn",
            "__float2bfloat162_rn", "__float2int_rn", "__float2int_rz", "__int2float_rn"),
    "int_op": ("min", "max", "abs", "__mulhi", "__umulhi", "__mul24", "__umul24", "__popc", "__clz", "__ffs"),
    "compare": ("isnan", "isinf", "isfinite", "operator<", "operator>", "operator=="),
    "special": ("expf", "exp2f", "expm1f", "logf", "log2f", "log1pf", "powf", "tanhf", "erff", "sqrtf", "rsqrtf", "__expf",
                "__exp10f", "__logf", "__log2f", "__log10f", "__powf", "__fdividef", "__fdiv_rn", "__frcp_rn", "__fsqrt_rn",
                "__frsqrt_rn", "operator/"),
}  # fmt: skip
CALLS = {name: count for count, names in _BY_COUNT.items() for name in names}
"""What a call of CUDA's own functions counts as: votes as shuffles, conversions as additions. Operators: those of 16-bit floats.
Loads, stores, copies, atomics and shuffles are told apart where they are counted; what is named nowhere is free."""
