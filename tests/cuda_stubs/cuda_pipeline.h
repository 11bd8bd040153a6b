#include "../cuda_on_cpu.hpp"
