#include "text/tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/cut_long_text.h"
#include "text/nfc.h"
#include "text/tiktoken_file.h"
#include "text/token_trie.h"
#include "text/tokenizer_tables.h"
#include "text/utf8_stream.h"

namespace megalith {

namespace {

// Pieces of a text, cut by the first splitter, each cut again by the next.
void split(const TokenizerTables& tables, size_t splitter, std::string_view text, std::vector<int32_t>& ids) {
  if (splitter < tables.splitters.size()) {
    tables.splitters[splitter].split(text, [&](std::string_view piece) { split(tables, splitter + 1, piece, ids); });
    return;
  }
  if (tables.ignore_merges) {
    if (auto whole = tables.whole.find(text)) {
      ids.push_back(*whole);
      return;
    }
  }
  tables.bpe->encode(text, ids);
}

// A run of text between two added tokens. Needs UTF-8.
void encode_run(const TokenizerTables& tables, std::string_view text, std::vector<int32_t>& ids) {
  if (tables.normalise && !is_plainly_nfc(text)) {
    split(tables, 0, nfc(text), ids);
  } else {
    split(tables, 0, text, ids);
  }
}

void check_utf8(std::string_view text) {
  size_t at = invalid_utf8(text);
  if (at == std::string_view::npos) return;
  throw Error({.where = "text",
               .expected = "UTF-8",
               .found = fmt::format("byte {:#04x} at offset {}", static_cast<uint8_t>(text[at]), at),
               .next = "Convert the text to UTF-8 first."});
}

// A part with its added tokens recognised, or none of them. Needs UTF-8.
void encode_part(const TokenizerTables& tables, std::string_view text, bool control, std::vector<int32_t>& ids) {
  size_t done = 0;
  while (control) {
    auto match = tables.added.find(text, done);
    if (!match) break;
    encode_run(tables, text.substr(done, match->begin - done), ids);
    ids.push_back(match->id);
    done = match->end;
  }
  encode_run(tables, text.substr(done), ids);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

std::string joined(std::span<const Segment> segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

Tokenizer Tokenizer::from_file(const std::string& path, int32_t model_rows) {
  return from_json(text_of(MappedFile(path)), path, model_rows);
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name, int32_t model_rows) {
  return Tokenizer(std::make_shared<const TokenizerTables>(make_tokenizer_tables(json, name, model_rows)));
}

Tokenizer Tokenizer::from_tiktoken(const std::string& path, int32_t model_rows) {
  std::string config = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  return from_tiktoken(text_of(MappedFile(path)), path, text_of(MappedFile(config)), config, model_rows);
}

Tokenizer Tokenizer::from_tiktoken(std::string_view ranks, const std::string& ranks_name, std::string_view config,
                                   const std::string& config_name, int32_t model_rows) {
  return Tokenizer(std::make_shared<const TokenizerTables>(
      make_tiktoken_tables({ranks, ranks_name}, {config, config_name}, model_rows)));
}

std::optional<Tokenizer> Tokenizer::from_directory(const std::filesystem::path& directory, int32_t model_rows) {
  auto json = directory / "tokenizer.json";
  if (std::filesystem::exists(json)) return from_file(json.string(), model_rows);
  auto ranks = directory / "tiktoken.model";
  if (std::filesystem::exists(ranks)) return from_tiktoken(ranks.string(), model_rows);
  return std::nullopt;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  Segment segment{std::string(text), specials == Specials::recognised};
  return encode(std::span<const Segment>(&segment, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<int32_t> ids;
  if (tables_->segments_apart) {
    for (const Segment& segment : segments) {
      check_utf8(segment.text);
      cut_long_text(segment.text, [&](auto part) { encode_part(*tables_, part, segment.control, ids); });
    }
    return ids;
  }
  std::string run;
  auto end_run = [&] {
    encode_run(*tables_, run, ids);
    run.clear();
  };
  for (size_t i = 0; i < segments.size();) {
    // Control parts next to each other are one, so that a token may span their boundary.
    std::string text = segments[i].text;
    bool control = segments[i].control;
    for (++i; i < segments.size() && segments[i].control == control; ++i) text += segments[i].text;
    check_utf8(text);
    size_t done = 0;
    while (control) {
      auto match = tables_->added.find(text, done);
      if (!match) break;
      run.append(text, done, match->begin - done);
      end_run();
      ids.push_back(match->id);
      done = match->end;
    }
    run.append(text, done);
  }
  end_run();
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  TextStream stream(*this, skip_special);
  std::string text = stream.feed(ids);
  return text += stream.flush();
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= rows()) {
    throw Error({.where = "token id",
                 .expected = fmt::format("an id from 0 to {}", rows() - 1),
                 .found = std::to_string(id),
                 .next = "Use ids of this model's vocabulary."});
  }
  return id < size() ? tables_->token(id) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && tables_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::find_added(std::string_view text) const {
  return tables_->added.id(text);
}

const TokenTrie& Tokenizer::trie() const {
  std::call_once(tables_->trie->once, [&] { tables_->trie->made = std::make_unique<const TokenTrie>(*tables_); });
  return *tables_->trie->made;
}

int32_t Tokenizer::size() const {
  return tables_->size();
}

int32_t Tokenizer::rows() const {
  return tables_->rows;
}

}  // namespace megalith
