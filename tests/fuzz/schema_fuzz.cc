// A schema, and a text that a model might write under it: {"schema": ..., "strict": ..., "walk": [...]}, where each
// number chooses one of the tokens that are allowed. Behind them the text takes the shortest way to its end that is
// easily found.

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vocabulary.h"
#include "text/json_constraint.h"
#include "text/json_schema.h"
#include "text/request_json.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostSteps = 300;

std::vector<int32_t> ids_in(const TokenSet& set) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < qwen_vocabulary().tokenizer.rows(); ++id) {
    if (set.has(id)) ids.push_back(id);
  }
  return ids;
}

// The first of these that is allowed, else any.
int32_t nearest_to_the_end(const TokenSet& set, const std::vector<int32_t>& ids) {
  for (char byte : {'}', ']', '"', '0', ':'}) {
    const int32_t id = qwen_vocabulary().of_byte[static_cast<uint8_t>(byte)];
    if (set.has(id)) return id;
  }
  return ids.front();
}

void walk(JsonConstraint constraint, int32_t end, const Json& choices) {
  std::string text;
  for (size_t step = 0; step < kMostSteps; ++step) {
    const auto set = constraint.allowed();
    const auto ids = ids_in(*set);
    CHECK(!ids.empty(), "no way on from {}", text);
    CHECK(constraint.complete() == set->has(end), "{}", text);
    const bool chosen = step < choices.size() && choices[step].is_number_unsigned();
    const int32_t id = chosen                  ? ids[choices[step].get<uint64_t>() % ids.size()]
                       : constraint.complete() ? end
                                               : nearest_to_the_end(*set, ids);
    auto clone = constraint.clone();
    CHECK(constraint.take(id), "an allowed token was refused after {}", text);
    CHECK(clone->allowed() == set, "a clone went along");
    if (constraint.ended()) break;
    text += qwen_vocabulary().tokenizer.token_bytes(id);
  }
  if (constraint.complete()) CHECK(is_json(text), "{}", text);
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  refuse_with_error_only([&] {
    const Json input = parse_request_json(text_of(data, size), "input");
    if (!input.is_object() || !input.contains("schema")) return;
    const Json choices = input.contains("walk") && input["walk"].is_array() ? input["walk"] : Json::array();
    const int32_t end = qwen_vocabulary().added.at("<|im_end|>");
    const bool strict = input.contains("strict") && input["strict"] == true;
    JsonGrammar grammar = schema_grammar(input["schema"], strict, "schema");
    walk(JsonConstraint(std::move(grammar), qwen_vocabulary().tokenizer, {&end, 1}), end, choices);
  });
  return 0;
}
