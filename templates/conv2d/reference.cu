// The convolution in float64, with the scale its rounding errors grow with: the sum of |x||w|. One thread per element of y.
extern "C" __global__ void reference(const float *x, const float *w, double *y, double *magnitude, int N, int C, int H, int W,
                                     int K, int R, int S, int stride, int pad, int dilation, int groups, int nhwc)
{
    const int out_h = (H + 2 * pad - dilation * (R - 1) - 1) / stride + 1;
    const int out_w = (W + 2 * pad - dilation * (S - 1) - 1) / stride + 1;
    const long long element = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (element >= (long long)N * K * out_h * out_w)
        return;
    const long long inner = nhwc ? K : out_w, middle = nhwc ? out_w : out_h, outer = nhwc ? out_h : K;
    const int a = element % inner, b = element / inner % middle, c = element / (inner * middle) % outer;
    const long long image = element / (inner * middle * outer);
    const int filter = nhwc ? a : c, out_row = nhwc ? c : b, out_column = nhwc ? b : a;
    const int channels = C / groups, first_channel = filter / (K / groups) * channels;
    double sum = 0.0, scale = 0.0;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s) {
            const int in_row = out_row * stride - pad + r * dilation, in_column = out_column * stride - pad + s * dilation;
            if (in_row < 0 || in_row >= H || in_column < 0 || in_column >= W)
                continue;
            for (int channel = 0; channel < channels; ++channel) {
                const long long at_x = nhwc ? ((image * H + in_row) * W + in_column) * C + first_channel + channel
                                            : ((image * C + first_channel + channel) * H + in_row) * W + in_column;
                const long long at_w = nhwc ? (((long long)filter * R + r) * S + s) * channels + channel
                                            : (((long long)filter * channels + channel) * R + r) * S + s;
                const double product = (double)x[at_x] * (double)w[at_w];
                sum += product;
                scale += fabs(product);
            }
        }
    y[element] = sum;
    magnitude[element] = scale;
}
