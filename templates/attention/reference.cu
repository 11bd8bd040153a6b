// O = softmax(Q K' / sqrt(dim)) V in float64, with the scale its rounding errors grow with: sum over the keys of p |v|.
// 256 threads per row of O: each takes every 256th key for the scores, and a column for the sums. Online softmax, too.
extern "C" __global__ void reference(const float *Q, const float *K, const float *V, double *O, double *magnitude, int heads,
                                     int kv_heads, int queries, int keys, int dim, int causal)
{
    __shared__ double q[256], weight[256], most[256];
    const int thread = threadIdx.x;
    const long long row = blockIdx.x;  // of all batches and heads
    const int query = row % queries;
    const long long kv_head = row / queries / (heads / kv_heads);
    const float *const head_k = K + kv_head * keys * dim, *const head_v = V + kv_head * keys * dim;
    const int seen = causal ? min(keys, query + 1) : keys;
    if (thread < dim)
        q[thread] = Q[row * dim + thread] / sqrt((double)dim);
    double top = -1e300, total = 0.0, sum = 0.0, scale = 0.0;
    for (int begin = 0; begin < seen; begin += 256) {
        const int count = min(256, seen - begin);
        __syncthreads();
        double score = 0.0;
        if (thread < count)
            for (int d = 0; d < dim; ++d)
                score += q[d] * head_k[(long long)(begin + thread) * dim + d];
        most[thread] = thread < count ? score : -1e300;
        for (int half = 128; half > 0; half /= 2) {
            __syncthreads();
            if (thread < half)
                most[thread] = fmax(most[thread], most[thread + half]);
        }
        __syncthreads();
        const double larger = fmax(top, most[0]), shrink = exp(top - larger);
        weight[thread] = thread < count ? exp(score - larger) : 0.0;
        __syncthreads();
        total *= shrink;
        sum *= shrink;
        scale *= shrink;
        top = larger;
        if (thread < dim)
            for (int k = 0; k < count; ++k) {
                const double p = weight[k], v = head_v[(long long)(begin + k) * dim + thread];
                total += p;
                sum += p * v;
                scale += p * fabs(v);
            }
    }
    if (thread < dim) {
        O[row * dim + thread] = sum / total;
        magnitude[row * dim + thread] = scale / total;
    }
}
