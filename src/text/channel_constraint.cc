#include "text/channel_constraint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "text/byte_trie.h"
#include "text/json_constraint.h"
#include "text/token_trie.h"

namespace megalith {

namespace {

using Ids = std::vector<int32_t>;
using Set = std::shared_ptr<const TokenSet>;

bool has(const Ids& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Set set_of(const Ids& ids, const Tokenizer& tokenizer) {
  TokenSet set(tokenizer.rows());
  for (int32_t id : ids) set.add(id);
  return std::make_shared<const TokenSet>(std::move(set));
}

Set all_but(const Ids& ids, const Tokenizer& tokenizer) {
  TokenSet set(tokenizer.rows());
  for (int32_t id = 0; id < tokenizer.rows(); ++id) {
    if (!has(ids, id)) set.add(id);
  }
  return std::make_shared<const TokenSet>(std::move(set));
}

// One part of an answer after another.
class Part {
 public:
  virtual ~Part() = default;
  virtual Set allowed() = 0;
  virtual bool take(int32_t token) = 0;
  // Whether the next token is the next part's.
  virtual bool done() const = 0;
  // Parts behind this one that are left out.
  virtual size_t skipped() const { return 0; }
  virtual std::unique_ptr<Part> clone() const = 0;
};

using Parts = std::vector<std::unique_ptr<const Part>>;

// Thoughts, to the first token of what leads out of them.
class Thoughts : public Part {
 public:
  struct Rule {
    int32_t end = 0;
    Ids others = {};  // that may end them too
    int64_t budget = 0;
    size_t skipped = 0;     // parts, unless the end was forced
    Set allowed = nullptr;  // within the budget
    Set only_end = nullptr;
  };
  explicit Thoughts(Rule rule) : rule_(std::make_shared<const Rule>(std::move(rule))) {}

  Set allowed() override { return forced() ? rule_->only_end : rule_->allowed; }
  bool take(int32_t token) override {
    if (auto set = allowed(); set && !set->has(token)) return false;
    ended_by_force_ = forced();
    done_ = token == rule_->end || has(rule_->others, token);
    ++count_;
    return true;
  }
  bool done() const override { return done_; }
  size_t skipped() const override { return ended_by_force_ ? 0 : rule_->skipped; }
  std::unique_ptr<Part> clone() const override { return std::make_unique<Thoughts>(*this); }

 private:
  bool forced() const { return count_ >= rule_->budget; }

  std::shared_ptr<const Rule> rule_;
  int64_t count_ = 0;
  bool ended_by_force_ = false;
  bool done_ = false;
};

// These tokens.
class Fixed : public Part {
 public:
  Fixed(Ids ids, const Tokenizer& tokenizer)
      : ids_(std::make_shared<const Ids>(std::move(ids))), tokenizer_(tokenizer) {}

  Set allowed() override { return set_of({(*ids_)[at_]}, tokenizer_); }
  bool take(int32_t token) override {
    if (token != (*ids_)[at_]) return false;
    ++at_;
    return true;
  }
  bool done() const override { return at_ == ids_->size(); }
  std::unique_ptr<Part> clone() const override { return std::make_unique<Fixed>(*this); }

 private:
  std::shared_ptr<const Ids> ids_;
  size_t at_ = 0;
  Tokenizer tokenizer_;
};

// One of these texts, in tokens of any length.
class OneOf : public Part {
 public:
  OneOf(ByteTrie texts, const Tokenizer& tokenizer)
      : texts_(std::make_shared<const ByteTrie>(std::move(texts))), tokenizer_(tokenizer) {}

  Set allowed() override {
    const TokenTrie& trie = tokenizer_.trie();
    TokenSet set(trie.rows());
    std::vector<std::pair<uint32_t, uint32_t>> path = {
        {trie.end(0), node_}};  // the end of a node, and where it is in a text
    for (uint32_t node = 1; node < trie.end(0);) {
      while (path.back().first <= node) path.pop_back();
      const uint32_t next = texts_->child(path.back().second, trie.byte(node));
      if (next == ByteTrie::kNone) {
        node = trie.end(node);
        continue;
      }
      for (int32_t id : trie.tokens(node)) set.add(id);
      path.emplace_back(trie.end(node), next);
      ++node;
    }
    return std::make_shared<const TokenSet>(std::move(set));
  }

  bool take(int32_t token) override {
    if (!tokenizer_.trie().has_token(token)) return false;
    uint32_t node = node_;
    for (char byte : tokenizer_.token_bytes(token)) {
      node = texts_->child(node, static_cast<uint8_t>(byte));
      if (node == ByteTrie::kNone) return false;
    }
    node_ = node;
    return true;
  }
  bool done() const override { return texts_->text(node_) != ByteTrie::kNone; }
  std::unique_ptr<Part> clone() const override { return std::make_unique<OneOf>(*this); }

 private:
  std::shared_ptr<const ByteTrie> texts_;
  uint32_t node_ = 0;
  Tokenizer tokenizer_;
};

// One JSON document and the token that ends it.
class Document : public Part {
 public:
  explicit Document(JsonConstraint json) : json_(std::move(json)) {}

  Set allowed() override { return json_.allowed(); }
  bool take(int32_t token) override { return json_.take(token); }
  bool done() const override { return json_.ended(); }
  std::unique_ptr<Part> clone() const override { return std::make_unique<Document>(*this); }

 private:
  JsonConstraint json_;
};

// Anything, up to these tokens in a row.
class UpTo : public Part {
 public:
  UpTo(Ids ids, Set allowed) : ids_(std::make_shared<const Ids>(std::move(ids))), allowed_(std::move(allowed)) {}

  Set allowed() override { return allowed_; }
  bool take(int32_t token) override {
    if (allowed_ && !allowed_->has(token)) return false;
    // The first token is a mark that the rest has not, so there is nothing to go back to.
    at_ = token == (*ids_)[at_] ? at_ + 1 : token == ids_->front() ? 1 : 0;
    return true;
  }
  bool done() const override { return at_ == ids_->size(); }
  std::unique_ptr<Part> clone() const override { return std::make_unique<UpTo>(*this); }

 private:
  std::shared_ptr<const Ids> ids_;
  Set allowed_;
  size_t at_ = 0;
};

// An end token.
class End : public Part {
 public:
  explicit End(Set ends) : ends_(std::move(ends)) {}

  Set allowed() override { return ends_; }
  bool take(int32_t token) override {
    done_ = ends_->has(token);
    return done_;
  }
  bool done() const override { return done_; }
  std::unique_ptr<Part> clone() const override { return std::make_unique<End>(*this); }

 private:
  Set ends_;
  bool done_ = false;
};

class ChannelConstraint : public Constraint {
 public:
  explicit ChannelConstraint(Parts parts) : parts_(std::make_shared<const Parts>(std::move(parts))) { begin(0); }
  ChannelConstraint(const ChannelConstraint& other)
      : parts_(other.parts_), at_(other.at_), part_(other.part_ ? other.part_->clone() : nullptr) {}

  Set allowed() override { return part_ ? part_->allowed() : nullptr; }
  bool take(int32_t token) override {
    if (!part_) return true;
    if (!part_->take(token)) return false;
    if (part_->done()) begin(at_ + 1 + part_->skipped());
    return true;
  }
  std::unique_ptr<Constraint> clone() const override { return std::make_unique<ChannelConstraint>(*this); }

 private:
  void begin(size_t at) {
    for (at_ = at; at_ < parts_->size(); ++at_) {
      part_ = (*parts_)[at_]->clone();
      if (!part_->done()) return;
    }
    part_ = nullptr;
  }

  std::shared_ptr<const Parts> parts_;
  size_t at_ = 0;
  std::unique_ptr<Part> part_;  // null behind the last
};

class Maker {
 public:
  Maker(const ChatFormat& format, const Tokenizer& tokenizer, const ChatRequest& request,
        std::span<const int32_t> end_tokens)
      : format_(format),
        tokenizer_(tokenizer),
        request_(request),
        marks_(format.marks(tokenizer)),
        ends_(end_tokens.begin(), end_tokens.end()) {}

  // `constrained`: something is asked of what follows.
  void add_thoughts(std::optional<int64_t> budget, bool constrained) {
    if (!format_.thinks(request_)) return;
    if (!constrained && !budget) return;
    Ids leaving = marks_.leaves_thoughts;
    leaving.insert(leaving.end(), ends_.begin(), ends_.end());
    Thoughts::Rule rule{.end = marks_.thoughts_end.front(), .budget = budget.value_or(INT64_MAX)};
    rule.only_end = set_of({rule.end}, tokenizer_);
    rule.allowed = constrained ? all_but(leaving, tokenizer_) : nullptr;
    if (!constrained) rule.others = leaving;
    rule.skipped = constrained ? 0 : 1;
    add<Thoughts>(std::move(rule));
    add<Fixed>(Ids(marks_.thoughts_end.begin() + 1, marks_.thoughts_end.end()), tokenizer_);
    if (constrained) add<Fixed>(marks_.content_begin, tokenizer_);
  }

  void add_json() {
    check_beginning("response_format");
    const Ids& end = marks_.content_end;
    JsonConstraint json(json_grammar(request_.response_format), tokenizer_, end.empty() ? ends_ : Ids{end.front()});
    if (request_.continue_final_message && !json.take_text(request_.messages.back().content)) {
      throw Error({.where = fmt::format("messages[{}].content", request_.messages.size() - 1),
                   .expected = "the beginning of a document in the response_format",
                   .found = "another text",
                   .next = "Leave out response_format, or continue_final_message."});
    }
    add<Document>(std::move(json));
    if (end.empty()) return;
    add<Fixed>(Ids(end.begin() + 1, end.end()), tokenizer_);
    add_end();
  }

  void add_call() {
    check_beginning("tool_choice");
    add<Fixed>(marks_.calls_begin, tokenizer_);
    ByteTrie openings;
    for (const std::string& name : functions()) openings.add(format_.call_opening(name));
    if (openings.empty()) {
      throw Error({.where = "tool_choice",
                   .expected = "tools next to \"required\"",
                   .found = "none",
                   .next = "Declare the functions in tools."});
    }
    add<OneOf>(std::move(openings), tokenizer_);
    add<Fixed>(marks_.call_opening_end, tokenizer_);
    add<UpTo>(marks_.call_end, all_but(ends_, tokenizer_));
  }

  void add_any_call() { add<UpTo>(marks_.call_end, nullptr); }

  // After a call.
  void add_end_of_calls() {
    add<Fixed>(marks_.calls_end, tokenizer_);
    add_end();
  }

  std::shared_ptr<const Constraint> made() { return std::make_shared<const ChannelConstraint>(std::move(parts_)); }

 private:
  template <typename Made, typename... Arguments>
  void add(Arguments&&... arguments) {
    parts_.push_back(std::make_unique<const Made>(std::forward<Arguments>(arguments)...));
  }

  void add_end() {
    if (!ends_.empty()) add<End>(set_of(ends_, tokenizer_));
  }

  void check_beginning(const char* field) const {
    if (request_.add_generation_prompt || request_.continue_final_message) return;
    throw Error({.where = field,
                 .expected = "an answer that the prompt begins",
                 .found = "add_generation_prompt false",
                 .next = "Leave one of the two out."});
  }

  std::vector<std::string> functions() const {
    if (request_.tool_choice.kind == ToolChoice::Kind::function) return {request_.tool_choice.function};
    std::vector<std::string> names;
    auto add_all = [&](const nlohmann::ordered_json& tools) {
      for (const auto& tool : tools) names.push_back(tool["function"]["name"].get<std::string>());
    };
    add_all(request_.tools);
    for (const Message& message : request_.messages) add_all(message.tools);
    return names;
  }

  const ChatFormat& format_;
  const Tokenizer& tokenizer_;
  const ChatRequest& request_;
  const ChannelMarks marks_;
  const Ids ends_;
  Parts parts_;
};

}  // namespace

std::shared_ptr<const Constraint> make_answer_constraint(const ChatFormat& format, const Tokenizer& tokenizer,
                                                         const ChatRequest& request,
                                                         std::optional<int64_t> thinking_budget,
                                                         std::span<const int32_t> end_tokens,
                                                         bool parallel_tool_calls) {
  using Choice = ToolChoice::Kind;
  const Choice choice = request.tool_choice.kind;
  const bool call = choice == Choice::required || choice == Choice::function;
  const bool json = !call && request.response_format.kind != ResponseFormat::Kind::text;
  const bool one_call = !parallel_tool_calls && !json && choice != Choice::none && !request.tools.empty();
  const bool budget = thinking_budget && format.thinks(request);
  if (!call && !json && !one_call && !budget) return nullptr;
  Maker maker(format, tokenizer, request, end_tokens);
  maker.add_thoughts(thinking_budget, call || json);
  if (json) maker.add_json();
  if (call) maker.add_call();
  if (one_call && !call) maker.add_any_call();
  if (one_call) maker.add_end_of_calls();
  return maker.made();
}

}  // namespace megalith
