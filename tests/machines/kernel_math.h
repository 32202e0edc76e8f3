#pragma once

#include <cstddef>

namespace megalith {

enum class KernelFunction { exp, log, sigmoid, softplus, tanh };

// y[i] = f(x[i]) by the kernels' vector functions, on the instruction set in use. `size` is a multiple of sixteen.
void kernel_function(KernelFunction f, const float* x, float* y, size_t size);

}  // namespace megalith
