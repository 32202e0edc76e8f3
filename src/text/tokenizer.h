#pragma once

// Byte-level BPE from a checkpoint's files, tokenizer.json or tiktoken.model: bytes to token ids and back.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct TokenizerTables;
class TokenTrie;

// Whether added tokens (<|im_start|>, <think>, ...) spelled in a text become their single ids.
enum class Specials { recognised, plain_text };

// A part of a rendered prompt. Added tokens are looked for in control parts only; a plain part that spells one stays
// ordinary text. With a tokenizer.json, text between two added tokens is split as one run, whatever parts it came from,
// so harmless prompts get the ids of their joined text; with a tiktoken.model each part is encoded by itself.
struct Segment {
  std::string text;
  bool control = false;
  bool operator==(const Segment&) const = default;
};

// The text of all segments, joined.
std::string joined(std::span<const Segment> segments);

// Immutable after loading; copies share their tables; every method may be called from several threads at once.
class Tokenizer {
 public:
  // `model_rows` is the number of rows of the model's embedding; 0: the vocabulary has no padding.
  // Error when the file cannot be read, is damaged, or asks for something not supported; it names the JSON field.
  static Tokenizer from_file(const std::string& path, int32_t model_rows = 0);
  // The same for the text of a tokenizer.json; `name` stands for the file in errors.
  static Tokenizer from_json(std::string_view json, const std::string& name, int32_t model_rows = 0);
  // A tiktoken.model, with the tokenizer_config.json beside it. Error as from_file(); it names the line.
  static Tokenizer from_tiktoken(const std::string& path, int32_t model_rows = 0);
  // The same for the texts of the two files; `ranks_name` and `config_name` stand for them in errors.
  static Tokenizer from_tiktoken(std::string_view ranks, const std::string& ranks_name, std::string_view config,
                                 const std::string& config_name, int32_t model_rows = 0);
  // What a checkpoint's directory has: tokenizer.json, else tiktoken.model, else nothing.
  static std::optional<Tokenizer> from_directory(const std::filesystem::path& directory, int32_t model_rows = 0);

  // Linear in the text but for a logarithm. Error when the text is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, Specials specials) const;
  std::vector<int32_t> encode(std::span<const Segment> segments) const;

  // Bytes that are not UTF-8 become U+FFFD, one for each maximal ill-formed part. With `skip_special`, added tokens
  // marked special in the file are left out; <think>, <tool_call> and the like are not marked and stay.
  // Rows without a token (padding, gaps) give nothing. Error when an id is outside [0, rows()).
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;
  // The bytes of one token, valid as long as a copy of this tokenizer lives. Error as decode().
  std::string_view token_bytes(int32_t id) const;

  // Added and marked special in the file. False for ids without a token.
  bool is_special(int32_t id) const;
  // The id of an added token, marked special or not, by its exact text.
  std::optional<int32_t> find_added(std::string_view text) const;

  // The bytes of all tokens but the added ones; made at the first call, and shared by all copies.
  const TokenTrie& trie() const;

  // One more than the highest token id.
  int32_t size() const;
  // size(), or the rows of the model where those are more.
  int32_t rows() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const TokenizerTables> tables_;
};

}  // namespace megalith
