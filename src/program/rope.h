#pragma once

#include <vector>

#include "program/program.h"

namespace megalith {

// Radians a position of each pair of a rotary embedding, [rotary / 2]: theta^(-2j/rotary), formed in f32 as the models' own
// code does. With YaRN (Peng, Quesnelle, Fan, Shippole: YaRN, 2023, section 3.2) slow pairs turn by the factor more slowly,
// fast ones as before, and those between by a mix.
std::vector<float> rope_frequencies(const Rope& how);

}  // namespace megalith
