#include "weights/files.h"

#include <gmock/gmock.h>

#include "tests/weights/tensor_files.h"

namespace megalith {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ReadText, ReadsAllBytesAndAnEmptyFile) {
  const Scratch scratch;
  const std::string text = std::string("a\0b", 3) + "\r\n\xff";
  EXPECT_EQ(read_text(scratch.write("x", text)), text);
  EXPECT_EQ(read_text(scratch.write("empty", "")), "");
}

TEST(ReadText, NamesAFileThatIsMissingOrADirectory) {
  const Scratch scratch;
  EXPECT_THAT(cause_of([&] { read_text(scratch / "gone"); }), HasSubstr((scratch / "gone").string()));
  EXPECT_THAT(cause_of([&] { read_text(scratch.path()); }), HasSubstr("a directory"));
}

TEST(ReadJson, SaysWhereTheSyntaxBreaks) {
  const Scratch scratch;
  const auto path = scratch.write("x.json", R"({"a": 1,, "b": 2})");
  EXPECT_EQ(cause_of([&] { read_json(path); }),
            path.string() + ": expected JSON, found a syntax error at byte 9 of 17");
}

TEST(ReadJson, RefusesWhatIsNoJson) {
  const Scratch scratch;
  for (const char* text : {"", "{", "nan", "{\"a\":\"\xff\"}", "<html></html>", "1e999"}) {
    EXPECT_THAT(cause_of([&] { read_json(scratch.write("x", text)); }), HasSubstr("expected JSON")) << text;
  }
}

GenerationConfig generation(const char* file, const json& config) {
  const Scratch scratch;
  if (file) scratch.write("generation_config.json", file);
  return load_generation_config(scratch.path(), config);
}

std::string generation_complaint(const char* file, const json& config = json::object()) {
  return cause_of([&] { generation(file, config); });
}

TEST(GenerationConfig, EndTokensAreANumberOrAList) {
  EXPECT_THAT(generation(R"({"eos_token_id": 7})", {}).end_tokens, ElementsAre(7));
  EXPECT_THAT(generation(R"({"eos_token_id": [7, 9, 7]})", {}).end_tokens, ElementsAre(7, 9));
}

TEST(GenerationConfig, EndTokensFallBackToTextConfigThenRoot) {
  const json both = json::parse(R"({"eos_token_id": 1, "text_config": {"eos_token_id": [2, 3]}})");
  EXPECT_THAT(generation(R"({"eos_token_id": 7})", both).end_tokens, ElementsAre(7));
  EXPECT_THAT(generation(nullptr, both).end_tokens, ElementsAre(2, 3));
  EXPECT_THAT(generation("{}", both).end_tokens, ElementsAre(2, 3));
  EXPECT_THAT(generation(R"({"eos_token_id": null})", both).end_tokens, ElementsAre(2, 3));
  EXPECT_THAT(generation(nullptr, json::parse(R"({"eos_token_id": 1, "text_config": {}})")).end_tokens, ElementsAre(1));
  EXPECT_THAT(
      generation(nullptr, json::parse(R"({"eos_token_id": 1, "text_config": {"eos_token_id": null}})")).end_tokens,
      ElementsAre(1));
  EXPECT_THAT(generation(nullptr, json::object()).end_tokens, IsEmpty());
  EXPECT_THAT(generation(nullptr, json()).end_tokens, IsEmpty());
}

TEST(GenerationConfig, SamplingIsReadAndMayBeAbsent) {
  const GenerationConfig full =
      generation(R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.1,"other":[1]})", {});
  EXPECT_TRUE(full.do_sample);
  EXPECT_FLOAT_EQ(full.temperature.value(), 0.6f);
  EXPECT_FLOAT_EQ(full.top_p.value(), 0.95f);
  EXPECT_FLOAT_EQ(full.min_p.value(), 0.1f);
  EXPECT_EQ(full.top_k.value(), 20);
  for (const char* file :
       {static_cast<const char*>(nullptr), "{}", R"({"top_k":null,"top_p":null,"do_sample":null})"}) {
    const GenerationConfig none = generation(file, json::object());
    EXPECT_FALSE(none.do_sample);
    EXPECT_FALSE(none.temperature || none.top_p || none.min_p || none.top_k);
  }
}

TEST(GenerationConfig, TopKOfMinusOneIsOff) {
  EXPECT_EQ(generation(R"({"top_k":-1})", {}).top_k.value(), 0);
}

TEST(GenerationConfig, WrongTypesAreRefusedByField) {
  for (const char* field : {"temperature", "top_p", "min_p", "top_k", "do_sample", "eos_token_id"}) {
    for (const char* value : {R"("x")", "{}", "-5", "[[1]]"}) {
      const std::string file = "{\"" + std::string(field) + "\":" + value + "}";
      EXPECT_THAT(generation_complaint(file.c_str()), AllOf(HasSubstr("generation_config.json"), HasSubstr(field)))
          << file;
    }
  }
  EXPECT_THAT(generation_complaint(R"({"eos_token_id": 1.5})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(generation_complaint(R"({"eos_token_id": [1, 99999999999]})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(generation_complaint(R"({"top_k": 99999999999})"), HasSubstr("top_k"));
  EXPECT_THAT(generation_complaint("[]"), HasSubstr("a JSON object"));
  EXPECT_THAT(generation_complaint(nullptr, {{"eos_token_id", "x"}}), HasSubstr("config.json: eos_token_id"));
}

TEST(ChatTemplate, FileOfItsOwnComesFirst) {
  const Scratch scratch;
  scratch.write("chat_template.jinja", "{{ own }}\n");
  scratch.write("tokenizer_config.json", R"({"chat_template":"other"})");
  EXPECT_EQ(load_chat_template(scratch.path()), "{{ own }}\n");
}

std::optional<std::string> template_of(const std::string& tokenizer_config) {
  const Scratch scratch;
  scratch.write("tokenizer_config.json", tokenizer_config);
  return load_chat_template(scratch.path());
}

TEST(ChatTemplate, IsATextOrTheDefaultOfAList) {
  EXPECT_EQ(template_of(R"({"chat_template":"text"})"), "text");
  EXPECT_EQ(template_of(R"({"chat_template":[{"name":"tool_use","template":"a"},{"name":"default","template":"b"}]})"),
            "b");
}

TEST(ChatTemplate, MayBeAbsent) {
  const Scratch scratch;
  EXPECT_EQ(load_chat_template(scratch.path()), std::nullopt);
  EXPECT_EQ(template_of("{}"), std::nullopt);
  EXPECT_EQ(template_of(R"({"chat_template":null})"), std::nullopt);
}

TEST(ChatTemplate, OtherFormsAreRefused) {
  for (const char* value : {"5", "{}", "[]", R"(["x"])", R"([{"name":"tool_use","template":"a"}])",
                            R"([{"name":"default","template":5}])", R"([{"name":"default"}])"}) {
    EXPECT_THAT(cause_of([&] { template_of(R"({"chat_template":)" + std::string(value) + "}"); }),
                HasSubstr("tokenizer_config.json: chat_template"))
        << value;
  }
  EXPECT_THAT(cause_of([&] { template_of("{"); }), HasSubstr("expected JSON"));
}

}  // namespace
}  // namespace megalith
