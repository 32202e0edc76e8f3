// A checkpoint of random weights in the real format, for a configuration: what speed is measured on where the trained
// weights are not at hand. The same configuration gives the same bytes.
//
//   build/release/random_checkpoint CONFIG_JSON DIRECTORY [TARGET_CONFIG_JSON]
//
// With the configuration of a target, CONFIG_JSON is that of a draft for it, and so is the checkpoint.
//
// Matrices keep the scale of what passes through them; norms lie near one; decays are those of a trained delta net's
// beginning; experts are random codes. What the model says makes no sense.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/pending_file.h"
#include "models/draft.h"
#include "models/model.h"
#include "weights/files.h"
#include "weights/safetensors.h"
#include "weights/tape.h"

namespace megalith {
namespace {

struct Range {
  float least = -1, most = 1;
  bool logarithm = false;
  bool f32 = false;  // where real checkpoints keep the tensor in f32
};

// What the elements of a weight are, by its use.
Range range_of(const Op& op, size_t use, const Weight& weight) {
  switch (op.kind) {
    case OpKind::rms_norm:
      return op.get<RmsNorm>().zero_centred ? Range{-0.1f, 0.1f} : Range{0.9f, 1.1f};
    case OpKind::gated_norm:
      return {0.9f, 1.1f, false, true};
    case OpKind::gated_delta:
      return use == 0 ? Range{0.01f, 16, true, true} : Range{0.5f, 1.5f};
    case OpKind::kda:
      return use == 0 ? Range{0.5f, 2, true, true} : Range{-4, -1, false, true};
    case OpKind::short_conv:
    case OpKind::block_conv:
      return {-0.9f, 0.9f};
    case OpKind::residual_mix:
      return use == 0 ? Range{0.9f, 1.1f} : Range{-0.1f, 0.1f};
    case OpKind::route:
      return {-0.01f, 0.01f, false, true};
    default: {
      const float scale = std::sqrt(3.0f / static_cast<float>(weight.shape.back()));  // variance 1 / inputs
      return {-scale, scale};
    }
  }
}

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t seed_of(const std::string& name) {
  uint64_t seed = 0;
  for (const char c : name) seed = mixed(seed ^ static_cast<unsigned char>(c));
  return seed;
}

std::vector<std::byte> random_bytes(const Weight& weight, const Range& range) {
  int64_t elements = 1;
  for (const int64_t size : weight.shape) elements *= size;
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * (range.f32 ? 4 : 2));
  auto* half = reinterpret_cast<uint16_t*>(bytes.data());
  auto* full = reinterpret_cast<float*>(bytes.data());
  const uint64_t seed = seed_of(weight.name);
  for (int64_t i = 0; i < elements; ++i) {
    const float unit = static_cast<float>(mixed(seed + static_cast<uint64_t>(i)) >> 40) * 0x1p-24f;
    float value = range.least + (range.most - range.least) * unit;
    if (range.logarithm) value = std::log(value);
    if (range.f32) {
      full[i] = value;
    } else {
      half[i] = f32_to_bf16(value);
    }
  }
  return bytes;
}

// Codes at random; scales so that a matrix keeps the scale of what passes through it (a code's magnitude is 2.93 in the
// mean square).
std::vector<std::byte> random_packed(const StoredTensorName& tensor, int64_t inputs) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
  if (tensor.name.ends_with("_scale")) {
    const double scale = 1 / std::sqrt(static_cast<double>(inputs)) / 2.93;
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(127 + std::lround(std::log2(scale))));
    return bytes;
  }
  const uint64_t seed = seed_of(tensor.name);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mixed(seed + i) >> 56);
  return bytes;
}

// A target's program; or with a draft's configuration, the two together.
Program program_of(const std::filesystem::path& target, const std::filesystem::path* draft_config) {
  const auto model = make_model(read_json(target), target.string());
  if (!draft_config) return model->build({});
  const auto draft = make_draft(read_json(*draft_config), draft_config->string());
  draft->require_target(*model);
  BuildOptions build;
  build.block = std::min(draft->guesses() + 1, kMaxBlock);
  build.draft = [&](Builder& b, const DraftInputs& made) { draft->build(b, made); };
  return model->build(build);
}

// `target`: null, or the configuration of the target that `config`, a draft's, is for.
void write_checkpoint(const std::filesystem::path& config, const std::filesystem::path& directory,
                      const std::filesystem::path* target) {
  const Program program = target ? program_of(*target, &config) : program_of(config, nullptr);
  std::map<std::string, std::vector<std::byte>> bytes;
  std::vector<TensorToWrite> tensors;
  for (const Op& op : program.ops) {
    for (size_t use = 0; use < op.weights.size(); ++use) {
      const std::vector<Weight> own =
          weights_of({program.weights[static_cast<size_t>(op.weights[use])]}, target != nullptr);
      if (own.empty()) continue;  // the other one's
      const Weight& weight = own[0];
      const Range range = range_of(op, use, weight);
      for (const StoredTensorName& tensor : stored_tensors(weight)) {
        if (bytes.contains(tensor.name)) continue;
        bytes[tensor.name] = tensor.packed ? random_packed(tensor, weight.shape[1]) : random_bytes(weight, range);
        const char* dtype = tensor.packed ? "U8" : range.f32 ? "F32" : "BF16";
        tensors.push_back({tensor.name, dtype, tensor.shape, bytes[tensor.name]});
      }
    }
  }
  std::filesystem::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  write_file(directory / "config.json", read_text(config));
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fmt::print(stderr, "random_checkpoint CONFIG_JSON DIRECTORY [TARGET_CONFIG_JSON]\n");
    return 2;
  }
  try {
    const std::filesystem::path target = argc == 4 ? argv[3] : "";
    megalith::write_checkpoint(argv[1], argv[2], argc == 4 ? &target : nullptr);
  } catch (const std::exception& error) {
    fmt::print(stderr, "random_checkpoint: {}\n", error.what());
    return 1;
  }
}
