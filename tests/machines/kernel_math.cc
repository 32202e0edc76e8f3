#include "tests/machines/kernel_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/machines/kernel_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

void KernelFunctionOf(KernelFunction f, const float* x, float* y, size_t size) {
  for (size_t i = 0; i < size; i += static_cast<size_t>(kN)) {
    const V v = hn::LoadU(D(), x + i);
    switch (f) {
      case KernelFunction::exp:
        hn::StoreU(Exp(v), D(), y + i);
        break;
      case KernelFunction::log:
        hn::StoreU(Log(v), D(), y + i);
        break;
      case KernelFunction::sigmoid:
        hn::StoreU(Sigmoid(v), D(), y + i);
        break;
      case KernelFunction::softplus:
        hn::StoreU(Softplus(v), D(), y + i);
        break;
      case KernelFunction::tanh:
        hn::StoreU(Tanh(v), D(), y + i);
        break;
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(KernelFunctionOf);

void kernel_function(KernelFunction f, const float* x, float* y, size_t size) {
  HWY_DYNAMIC_DISPATCH(KernelFunctionOf)(f, x, y, size);
}

}  // namespace megalith
#endif
