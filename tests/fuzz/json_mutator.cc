// Changes values of a JSON text, where libFuzzer's own mutators change bytes: numbers that must fit each other are met
// this way, and texts stay JSON. An input may have several such texts, with lines of "---" between them.

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::minstd_rand;

constexpr int kDeepest = 100;

Json number(Random& random) {
  const uint64_t power = uint64_t{1} << (random() % (random() % 2 == 0 ? 64 : 12));
  switch (random() % 4) {
    case 0:
      return static_cast<int64_t>(random() % 20) - 1;
    case 1:
      return power + random() % 3 - 1;
    case 2:
      return random() % 100 * power;
    default:
      return std::array{0.25, 0.5, 1.0, 1.5, -1e300, 1e300, 1e-300, 1e19}[random() % 8];
  }
}

Json scalar(Random& random) {
  switch (random() % 4) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return "";
    default:
      return number(random);
  }
}

void mutate_text(std::string& text) {
  const size_t size = text.size();
  text.resize(size + 16);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
}

void erase_one(Json& list, Random& random) {
  if (!list.empty()) list.erase(std::next(list.begin(), static_cast<long>(random() % list.size())));
}

void change(Json& value, const Json& other, Random& random) {
  if (value.is_string() && random() % 2 == 0) return mutate_text(value.get_ref<std::string&>());
  if (value.is_number() && random() % 2 == 0) return void(value = number(random));
  switch (random() % 4) {
    case 0:
      return void(value = scalar(random));
    case 1:
      return void(value = Json(other));
    case 2:
      return value.is_structured() ? erase_one(value, random) : void(value = Json::array({value}));
    default:
      if (value.is_array()) value.insert(value.begin(), Json(other));
      if (value.is_object()) value[other.is_string() ? other.get<std::string>() : "content"] = Json(other);
  }
}

// Documents are copied and written by recursion, so deep ones are left to libFuzzer. Brackets in strings count, too.
bool is_deep(std::string_view text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return deepest > kDeepest;
}

std::vector<Json*> values_of(Json& document) {
  std::vector<Json*> values = {&document};
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i]->is_structured()) continue;
    for (Json& part : *values[i]) values.push_back(&part);
  }
  return values;
}

// The bytes of one of the texts that an input has.
std::string_view choose_text(std::string_view input, Random& random) {
  constexpr std::string_view kBetween = "\n---\n";
  while (random() % 2 == 0) {
    const size_t end = input.find(kBetween);
    if (end == input.npos) break;
    input.remove_prefix(end + kBetween.size());
  }
  return input.substr(0, input.find(kBetween));
}

// The input with one value changed; nothing where it has no JSON text.
std::string with_change(std::string_view input, Random& random) {
  const std::string_view text = choose_text(input, random);
  Json document = is_deep(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (document.is_discarded()) return "";
  const std::vector<Json*> values = values_of(document);
  const Json other = *values[random() % values.size()];
  change(*values[random() % values.size()], other, random);
  std::string changed(input);
  const auto begin = static_cast<size_t>(text.data() - input.data());
  return changed.replace(begin, text.size(), document.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace
}  // namespace megalith

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using namespace megalith;
  Random random(seed);
  const std::string changed = random() % 4 == 0 ? "" : with_change(text_of(data, size), random);
  if (changed.empty() || changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
