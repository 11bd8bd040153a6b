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
SPECIAL = {"expf", "__expf", "exp2f", "logf", "sqrtf", "rsqrtf"}
CALLS = {
    "__syncthreads": "barrier", "__syncwarp": "barrier", "__threadfence": "fence", "__pipeline_wait_prior": "async_wait",
    "__pipeline_commit": "async_wait", "fmaf": "fma", "min": "int_op", "max": "int_op", "fminf": "add", "fmaxf": "add",
}  # fmt: skip
