#pragma once

#include <string>

namespace megalith {

enum class InstructionSet { best, avx2, avx512 };

// The kernels' instruction set from now on, in this process; results are the same for all. Returns false, and changes
// nothing, where the processor lacks it.
bool use_instruction_set(InstructionSet set);

// "AVX-512"; throws Error where the processor has none that the kernels are built for.
std::string instruction_set_name();

}  // namespace megalith
