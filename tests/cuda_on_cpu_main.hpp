// The program around the kernels of one test binary: reads launches from a file, runs them, writes the outputs to another.
//
// Input, per launch, int64 each: kernel, grid x y z, block x y z, dynamic shared bytes, workspace bytes, seed, repeats, buffers,
// scalars; per buffer its bytes and whether it is an output; the scalars; then the bytes of the inputs. Output: the bytes of the
// outputs, in order. The workspace is zeroed once and kept over the repeats; outputs are NaN before each.
#include <unistd.h>

namespace cuda_on_cpu {

// Converts to whatever pointer the kernel wants.
struct Pointer {
    void *address;
    template <class T> operator T *() const { return static_cast<T *>(address); }
};

inline int64_t read_int(FILE *file)
{
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) fail("the launch file is cut off", 0);
    return value;
}

inline dim3 read_dim3(FILE *file)
{
    dim3 result;
    result.x = read_int(file);
    result.y = read_int(file);
    result.z = read_int(file);
    return result;
}

inline void run_one(const Kernel &kernel, FILE *in, FILE *out)
{
    grid = read_dim3(in);
    block = read_dim3(in);
    const size_t dynamic_bytes = read_int(in), workspace_bytes = read_int(in);
    const uint64_t seed = read_int(in);
    const int64_t repeats = read_int(in), buffers = read_int(in), scalar_count = read_int(in);
    std::vector<size_t> bytes(buffers);
    std::vector<bool> is_output(buffers);
    for (int64_t i = 0; i < buffers; ++i) {
        bytes[i] = read_int(in);
        is_output[i] = read_int(in);
    }
    std::vector<int> scalars(scalar_count);
    for (int &scalar : scalars) scalar = read_int(in);
    std::vector<void *> pointers;
    for (int64_t i = 0; i < buffers; ++i) {
        pointers.push_back(allocate(bytes[i]));
        if (!is_output[i] && fread(pointers[i], 1, bytes[i], in) != bytes[i]) fail("the launch file is cut off", 0);
    }
    pointers.push_back(workspace_bytes ? allocate(workspace_bytes) : nullptr);
    if (workspace_bytes) memset(pointers.back(), 0, workspace_bytes);
    dynamic_shared = dynamic_bytes ? allocate(dynamic_bytes) : nullptr;
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
        for (int64_t i = 0; i < buffers; ++i)
            if (is_output[i]) memset(pointers[i], 0xFF, bytes[i]);
        run_grid({&kernel, pointers.data(), scalars.data(), dynamic_bytes, seed + repeat});
    }
    for (int64_t i = 0; i < buffers; ++i)
        if (is_output[i]) fwrite(pointers[i], 1, bytes[i], out);
    for (void *pointer : pointers) free(pointer);
    free(dynamic_shared);
}

inline int run_file(const std::vector<Kernel> &kernels, const char *in_path, const char *out_path)
{
    FILE *in = fopen(in_path, "rb"), *out = fopen(out_path, "wb");
    if (!in || !out) fail("cannot open the launch files", 0);
    const int64_t launches = read_int(in);
    for (int64_t i = 0; i < launches; ++i) {
        run_one(kernels.at(read_int(in)), in, out);
        fflush(out);
        printf("%ld\n", static_cast<long>(i + 1));
        fflush(stdout);
    }
    fclose(in);
    return fclose(out);
}

}  // namespace cuda_on_cpu
