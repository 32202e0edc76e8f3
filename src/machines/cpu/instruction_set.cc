#include "machines/cpu/instruction_set.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include "base/error.h"

namespace megalith {

namespace {

int64_t mask_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx2: return HWY_AVX2;
    case InstructionSet::avx512: return HWY_AVX3;
    default: return HWY_TARGETS;
  }
}

}  // namespace

bool use_instruction_set(InstructionSet set) {
  hwy::DisableTargets(0);
  if ((hwy::SupportedTargets() & HWY_TARGETS & mask_of(set)) == 0) return false;
  if (set != InstructionSet::best) hwy::DisableTargets(~mask_of(set));
  return true;
}

std::string instruction_set_name() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  if (usable & HWY_AVX3) return "AVX-512";
  if (usable & HWY_AVX2) return "AVX2";
  if (usable != 0) return hwy::TargetName(usable & ~(usable - 1));
  throw Error({.where = "processor",
               .expected = "AVX2 with FMA, or a later instruction set",
               .found = "a processor without it",
               .next = "Run on an x86-64 processor made since 2013 (Haswell, Zen, or later)."});
}

}  // namespace megalith
