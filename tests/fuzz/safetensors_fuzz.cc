// A .safetensors file: what opens has tensors that fill it, side by side, and whose bytes can be read.

#include <cstring>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_directory.h"
#include "weights/safetensors.h"

namespace megalith {
namespace {

unsigned sum(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
  return sum;
}

uint64_t header_bytes(std::string_view input) {
  uint64_t length = 0;
  std::memcpy(&length, input.data(), sizeof(length));
  return sizeof(length) + length;
}

// Elements have 4 to 64 bits.
void check_size(const StoredTensor& tensor, size_t bytes) {
  long double elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<long double>(size);
  const auto bits = 8 * static_cast<long double>(bytes);
  CHECK(4 * elements <= bits && bits <= 64 * elements, "{} bytes of {}", bytes, tensor.dtype);
}

void read(const SafetensorsFile& file, std::string_view input) {
  uint64_t bytes = header_bytes(input);
  unsigned sums = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto data = file.data(tensor);
    check_size(tensor, data.size());
    bytes += data.size();
    sums += sum(data);
    file.release(file.data(tensor));
    sums -= sum(data);
    CHECK(sums == 0, "{} is another after its release", name);
  }
  CHECK(bytes == input.size(), "{} bytes of header and tensors in a file of {}", bytes, input.size());
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  static const InputDirectory directory;
  const std::string_view input = text_of(data, size);
  refuse_with_error_only([&] { read(SafetensorsFile(directory.write("model.safetensors", input)), input); });
  return 0;
}
