#include "text/json_grammar.h"

#include <fmt/format.h>

#include "json_documents.h"
#include "linear_time.h"
#include "tests/support/errors.h"
#include "text/json_schema.h"
#include "text/request_json.h"

namespace megalith {
namespace {

constexpr const char* kWhere = "response_format.json_schema.schema";

JsonGrammar grammar_of(const char* schema, bool strict = false) {
  return schema_grammar(Json::parse(schema), strict, kWhere);
}

void expect(const JsonGrammar& grammar, const std::vector<std::string>& accepted,
            const std::vector<std::string>& refused) {
  for (const auto& text : accepted) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const auto& text : refused) EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(JsonGrammar, AnyObjectIsAnObjectOfAnything) {
  expect(any_object_grammar(),
         {"{}", " \n {}\n", R"({"a":[1,-0.5e+3,"x",true,false,null,{}],"a":{"\u00e9":[]}})",
          "{\n  \"a\": 1,\n  \"b\": []\n}"},
         {"", "[]", "1", "{", "{}}", R"({"a"})", R"({"a":})", R"({a:1})", R"({"a":1,})", R"({,})", R"({"a":[1,]})",
          R"({"a":01})", R"({"a":1.})", R"({"a":.5})", R"({"a":+1})", R"({"a":1e})", R"({"a":tru})", R"({"a":nan})",
          R"({"a":--1})"});
}

TEST(JsonGrammar, StringsAreUtf8WithoutControlCharactersAndWithWholeSurrogatePairs) {
  expect(grammar_of(R"({"type":"string"})"),
         {"\"\"", "\"é国👍\x7f\"", R"("\"\\\/\b\f\n\r\t\u0000\uFFFF\uD83D\ude00")",
          "\"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\""},
         {"\"\n\"",
          std::string("\"\0\"", 3),
          "\"\x80\"",
          "\"\xc0\x80\"",
          "\"\xc1\xbf\"",
          "\"\xe0\x9f\xbf\"",
          "\"\xed\xa0\x80\"",
          "\"\xf0\x8f\xbf\xbf\"",
          "\"\xf4\x90\x80\x80\"",
          "\"\xf5\x80\x80\x80\"",
          "\"\xff\"",
          "\"\xe2\x82\"",
          R"("\x")",
          R"("\u12g4")",
          R"("\ud800")",
          R"("\ud800x")",
          R"("\ud800\n")",
          R"("\ud800\u0041")",
          R"("\udc00")",
          R"("\uDbff\uD800")"});
}

TEST(JsonGrammar, CharactersAreCountedWhateverTheirSpelling) {
  auto grammar = grammar_of(R"({"type":"string","minLength":2,"maxLength":3})");
  expect(grammar, {R"("ab")", R"("国👍é")", R"("\uD83D\ude00\n")", R"("\u00e9\u00e9\u00e9")"},
         {R"("")", R"("a")", R"("国")", R"("\uD83D\ude00")", R"("abcd")", R"("\u00e9\u00e9\u00e9\u00e9")"});
}

TEST(JsonGrammar, NumbersHaveTheirFormAndALimit) {
  const std::string twenty = "12345678901234567890";
  expect(grammar_of(R"({"type":"number"})"), {"0", "-0", "10", "-1.50", "1E5", "0e-07", twenty, "0." + twenty},
         {"00", "-", "01", "1.", "1.e5", "1e+", twenty + "1", "0." + twenty + "1", "1e100"});
  expect(grammar_of(R"({"type":"integer"})"), {"0", "-12", twenty}, {"1.0", "1e2", "-", ""});
}

TEST(JsonGrammar, PropertiesComeInTheOrderOfTheSchemaAndOthersBehindThem) {
  auto grammar = grammar_of(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"ab":true},
                                "required":["b"]})");
  expect(grammar,
         {R"({"a":1,"b":null})", R"({"b":null})", R"({"b":null,"ab":[1]})", R"({"b":null,"x":1,"y":{},"a ":""})",
          R"({"b":null,"abc":1})", R"({"b":null,"é":1})"},
         {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"a":1,"x":1,"b":null})", R"({"b":1})",
          R"({"b":null,"b":null})", R"({"b":null,"x":1,"ab":1})", R"({"b":null,"x":1,"a":2})"});
  // An escape might spell a declared name.
  expect(grammar, {}, {R"({"b":null,"\u0061":1})", R"({"\u0062":null})"});
}

TEST(JsonGrammar, OtherPropertiesFollowAdditionalProperties) {
  expect(grammar_of(R"({"properties":{"a":true},"additionalProperties":false})"), {"{}", R"({"a":0})"},
         {R"({"b":0})", "1"});
  expect(grammar_of(R"({"additionalProperties":{"type":"boolean"}})"), {"{}", R"({"a":true,"\n":false})"},
         {R"({"b":0})"});
  expect(grammar_of(R"({"type":"object","properties":{"a":true}})", true), {"{}", R"({"a":0})"}, {R"({"b":0})"});
  expect(grammar_of(R"({"type":"object","properties":{"a":false}})"), {"{}", R"({"b":0})"}, {R"({"a":0})"});
  expect(grammar_of(R"({"type":"object","properties":{"a":true},"required":["z","a"]})"),
         {R"({"a":0,"z":1})", R"({"a":0,"z":1,"c":1})"}, {"{}", R"({"a":0})", R"({"z":0})", R"({"z":0,"a":1})"});
}

TEST(JsonGrammar, NamesAreSpelledWithTheEscapesThatTheyNeed) {
  auto grammar = grammar_of(R"({"properties":{"q\"\\\n":true,"":true},"required":["q\"\\\n",""]})");
  expect(grammar, {R"({"q\"\\\n":0,"":0})", R"({"q\"\\\n":0,"":0,"q":1})"},
         {R"({"q\"\\\u000a":0,"":0})", R"({"q":0,"":0})"});
}

TEST(JsonGrammar, ArraysHaveTheirItemsAndNumbersOfThem) {
  expect(grammar_of(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"string"},
                        "minItems":1,"maxItems":3})"),
         {"[1]", "[1,null]", R"([ 1 , null , "x" ])"}, {"[]", "[null]", R"([1,"x"])", R"([1,null,"x","y"])", "[1,]"});
  expect(grammar_of(R"({"prefixItems":[{"type":"integer"}],"items":false})"), {"[]", "[1]"}, {"[1,1]", "[1,]"});
  expect(grammar_of(R"({"items":{"type":"integer"},"minItems":2})"), {"[1,2]", "[1,2,3]"}, {"[]", "[1]"});
}

TEST(JsonGrammar, ConstantsAreOneOfThoseGiven) {
  expect(grammar_of(R"({"enum":["a","ab","q\"",1,12,null,{"k":[1,2]}]})"),
         {R"("a")", R"("ab")", R"("q\"")", "1", "12", "null", R"({"k":[1,2]})", "12\n"},
         {R"("")", R"("abc")", "2", "121", "nul", R"({"k":[1,2)", "{}"});
  expect(grammar_of(R"({"type":"string","enum":["a",1]})"), {R"("a")"}, {"1"});
  expect(grammar_of(R"({"const":1,"enum":[1,2]})"), {"1"}, {"2"});
  expect(grammar_of(R"({"type":["integer","string"],"nullable":true})"), {"1", "null", "\"\""}, {"1.5", "true"});
}

TEST(JsonGrammar, AlternativesAreFollowedSideBySide) {
  auto grammar = grammar_of(R"({"anyOf":[{"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"integer"}},
                                          "required":["kind","x"],"additionalProperties":false},
                                         {"type":"object","properties":{"kind":{"const":"b"},"x":{"type":"string"}},
                                          "required":["kind","x"],"additionalProperties":false}]})");
  expect(grammar, {R"({"kind":"a","x":1})", R"({"kind":"b","x":"1"})"},
         {R"({"kind":"b","x":1})", R"({"kind":"a","x":"1"})"});
}

TEST(JsonGrammar, RecursionHasALimitThatLetsEveryTextEnd) {
  auto list = grammar_of(
      R"({"$defs":{"l":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/l"},{"type":"null"}]}},
                             "required":["next"],"additionalProperties":false}},"$ref":"#/$defs/l"})");
  auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += R"({"next":)";
    text += "null";
    return text + std::string(static_cast<size_t>(depth), '}');
  };
  expect(list, {nested(1), nested(20), nested(64)}, {nested(65)});
  const auto lists = [](size_t n) { return R"({"a":)" + std::string(n, '[') + std::string(n, ']') + "}"; };
  expect(any_object_grammar(), {lists(63)}, {lists(64)});
}

TEST(JsonGrammar, BlanksAreBounded) {
  auto grammar = any_object_grammar();
  const std::string wide(8, ' '), wider(12, ' ');
  expect(grammar, {"\n\n\n\n{}", "{  \n" + wide + "}", "{\"a\":{\n" + wider + "}}", "{\"a\"\n:\n1\n,\n\"b\":1}", "{}\n"},
         {"\n\n\n\n\n{}", "{   }", "{\n\n}", "{\n " + wide + "}", "{\r\n}", "{}   ", "{}\n\n", "{\"a\":{\n " + wider + "}}"});
}

TEST(JsonGrammar, DocumentsOfRandomSchemasAreAccepted) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const Json schema = SchemaWriter(random).write();
    const JsonGrammar grammar = schema_grammar(schema, false, kWhere);
    for (int i = 0; i < 5; ++i) {
      const std::string text = DocumentWriter(schema, random).write();
      ASSERT_TRUE(Validator(schema).valid(Json::parse(text))) << schema << "\n" << text;
      ASSERT_TRUE(accepts(grammar, text)) << schema << "\n" << text;
    }
  }
}

TEST(JsonGrammar, DamagedDocumentsAreAcceptedOnlyWhereTheyAreValid) {
  std::mt19937 random(2);
  const std::string bytes = "{}[]\",:\\ \n0159-.eEutrnflasbé\x80\xf0";
  int accepted = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const Json schema = SchemaWriter(random).write();
    const JsonGrammar grammar = schema_grammar(schema, false, kWhere);
    const std::string text = DocumentWriter(schema, random).write();
    for (int i = 0; i < 20; ++i) {
      std::string damaged = text;
      const size_t at = random() % damaged.size();
      const size_t n = random() % 3;
      damaged.replace(at, random() % 3, std::string(n, bytes[random() % bytes.size()]));
      if (!accepts(grammar, damaged)) {
        ++refused;
        continue;
      }
      ++accepted;
      ASSERT_TRUE(is_json(damaged)) << damaged;
      ASSERT_TRUE(Validator(schema).valid(Json::parse(damaged))) << schema << "\n" << damaged;
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedByItsPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"string","pattern":"a"})", ".pattern"},
      {R"({"properties":{"a":{"type":"integer","minimum":1}}})", ".properties.a.minimum"},
      {R"({"items":{"not":{}}})", ".items.not"},
      {R"({"uniqueItems":true})", ".uniqueItems"},
      {R"({"if":{}})", ".if"},
      {R"({"patternProperties":{}})", ".patternProperties"},
      {R"({"dependentRequired":{}})", ".dependentRequired"},
      {R"({"anyOf":[{"type":"null"},{"multipleOf":2}]})", ".anyOf[1].multipleOf"},
      {R"({"allOf":[{},{}]})", ".allOf"},
      {R"({"anyOf":[{}],"type":"object"})", ".type"},
      {R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{}}})", ".minLength"},
      {R"({"enum":["a"],"maxLength":3})", ".maxLength"},
      {R"({"type":"text"})", ".type"},
      {R"({"type":[]})", ".type"},
      {R"({"type":7})", ".type"},
      {R"({"properties":[]})", ".properties"},
      {R"({"properties":{"a":7}})", ".properties.a"},
      {R"({"required":[1]})", ".required"},
      {R"({"required":["a"],"additionalProperties":false})", ".required"},
      {R"({"minLength":-1})", ".minLength"},
      {R"({"maxItems":1.5})", ".maxItems"},
      {R"({"items":[{}]})", ".items"},
      {R"({"enum":{}})", ".enum"},
      {R"({"anyOf":[]})", ".anyOf"},
      {R"({"nullable":1})", ".nullable"},
      {R"({"$ref":"http://x"})", ".$ref"},
      {R"({"$ref":"#/$defs/b"})", ".$ref"},
      {R"({"$ref":"#/$defs/~2","$defs":{}})", ".$ref"},
      {R"({"$ref":"#/$defs/a/x","$defs":{"a":[1]}})", ".$ref"},
      {R"({"$ref":"#"})", ""},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}})",
       ".$defs.a"},
      {R"({"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"pattern":""}}})", ".$defs.a.pattern"},
  };
  for (const auto& [schema, path] : cases) {
    EXPECT_TRUE(cause_of([&schema = schema] { grammar_of(schema); }).starts_with(std::string(kWhere) + path + ":"))
        << schema << "\n"
        << cause_of([&schema = schema] { grammar_of(schema); });
  }
  EXPECT_TRUE(cause_of([&] {
                grammar_of(R"({"additionalProperties":true})", true);
              }).starts_with(std::string(kWhere) + ".additionalProperties:"));
}

TEST(JsonSchema, SchemasWithoutADocumentAreRefused) {
  for (const char* schema :
       {R"({"type":"string","enum":[1]})", R"({"enum":[]})", R"({"minLength":3,"maxLength":2})",
        R"({"minItems":1,"items":false})", R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"properties":{"a":false},"required":["a"]})",
        R"({"anyOf":[false,{"type":"array","items":{"$ref":"#"},"minItems":1}]})", R"({"minItems":3,"maxItems":2})"}) {
    EXPECT_TRUE(
        cause_of([&] { grammar_of(schema); }).starts_with(std::string(kWhere) + ": expected a schema that some"))
        << schema;
  }
}

TEST(JsonSchema, OneOfIsAllowedWhereNoValueSatisfiesTwo) {
  expect(
      grammar_of(R"({"oneOf":[{"type":"string"},{"type":"integer"},{"type":["null","boolean"]},{"enum":[1.5,{}]}]})"),
      {"\"\"", "1", "null", "1.5", "{}"}, {"2.5", "[]"});
  expect(grammar_of(R"({"oneOf":[{"properties":{"t":{"const":"a"},"x":{"type":"null"}},"required":["t"]},
                                 {"properties":{"t":{"const":"b"},"x":{"type":"integer"}},"required":["t"]}]})"),
         {R"({"t":"a","x":null})", R"({"t":"b","x":1})"}, {R"({"t":"a","x":1})", "{}"});
  for (const char* schema :
       {R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", R"({"oneOf":[{"const":1},{"enum":[2,1.0]}]})",
        R"({"oneOf":[{"type":"object"},{"type":"object","properties":{"a":true}}]})",
        R"({"oneOf":[true,{"type":"null"}]})",
        R"({"oneOf":[{"properties":{"t":{"const":"a"}}},{"properties":{"t":{"const":"b"}}}]})"}) {
    EXPECT_TRUE(cause_of([&] { grammar_of(schema); }).starts_with(std::string(kWhere) + ".oneOf:")) << schema;
  }
}

TEST(JsonSchema, AnnotationsChangeNothing) {
  expect(grammar_of(R"({"$schema":"x","$id":"y","title":"t","description":"d","default":1,"examples":[],"type":"string",
                        "format":"date-time","x-own":{"pattern":1},"readOnly":true,"deprecated":false,"$comment":""})"),
         {"\"any\""}, {"1"});
}

// Hostile schemas take neither long nor much memory, and leave states of a bounded size.
TEST(JsonSchema, HostileSchemasAreRefusedOrStaySmall) {
  std::string chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 900; ++i) chain += fmt::format(R"("a{}":{{"$ref":"#/$defs/a{}"}},)", i, i + 1);
  EXPECT_NE(cause_of([&] { grammar_of((chain + R"("a900":{}}})").c_str()); }).find("references and choices"),
            std::string::npos);

  std::string doubled = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 14; ++i) {
    doubled += fmt::format(R"("a{0}":{{"anyOf":[{{"$ref":"#/$defs/a{1}"}},{{"$ref":"#/$defs/a{1}"}}]}},)", i, i + 1);
  }
  expect(grammar_of((doubled + R"("a14":{"type":"null"}}})").c_str()), {"null"}, {"1"});

  Json wide;
  for (int i = 0; i < 300; ++i) wide["anyOf"].push_back({{"const", i}});
  EXPECT_NE(cause_of([&] { schema_grammar(wide, false, kWhere); }).find("at most 256 alternatives"), std::string::npos);
  EXPECT_NE(cause_of([&] {
              schema_grammar({{"enum", {std::string(300'000, 'x')}}}, false, kWhere);
            }).find("bytes"),
            std::string::npos);
}

TEST(JsonSchema, ChoicesInsideChoicesKeepTheReadingsFew) {
  auto grammar = grammar_of(R"({"$defs":{"t":{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#/$defs/t"}}},
                                {"type":"object","properties":{"a":{"$ref":"#/$defs/t"},"b":{"type":"null"}}},{"type":"null"}]}},
                                "$ref":"#/$defs/t"})");
  std::string text;
  double begin = thread_seconds();
  for (int depth = 0; depth < 60; ++depth) {
    text += R"({"a":)";
    EXPECT_LE(state_after(grammar, text).size(), 64U);
  }
  text += "null" + std::string(60, '}');
  EXPECT_TRUE(accepts(grammar, text));
  EXPECT_LT(thread_seconds() - begin, 5);
}

TEST(JsonState, EqualStatesAreEqualWhateverLedToThem) {
  auto grammar = grammar_of(R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}}}})");
  auto once = state_after(grammar, R"([{"a":"x)");
  auto twice = state_after(grammar, R"([{"a":"x"}, {"a":"yy)");
  auto later = state_after(grammar, R"([{}, {"a":"yy)");
  EXPECT_EQ(twice, later);
  EXPECT_EQ(hash_of(twice), hash_of(later));
  EXPECT_EQ(once, twice);
  EXPECT_FALSE(once == state_after(grammar, R"([{"a":[)"));
  EXPECT_FALSE(once == state_after(grammar, R"([{"b":"x)"));
}

}  // namespace
}  // namespace megalith
