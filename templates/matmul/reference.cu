// C = A B in float64, with the scale its rounding errors grow with: sum over k of |a||b|. One thread per element of C.
extern "C" __global__ void reference(const float *A, const float *B, double *C, double *magnitude, int M, int N, int K)
{
    const long long element = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (element >= (long long)M * N)
        return;
    const long long row = element / N, column = element % N;
    double sum = 0.0, scale = 0.0;
    for (int k = 0; k < K; ++k) {
        const double product = (double)A[row * K + k] * (double)B[(long long)k * N + column];
        sum += product;
        scale += fabs(product);
    }
    C[element] = sum;
    magnitude[element] = scale;
}
