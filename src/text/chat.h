#pragma once

// Messages in the form of the OpenAI interface, and the formats in which models read and write them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace megalith {

enum class Role { system, user, assistant, tool };

// A call in a past assistant message. `arguments` is a JSON object in the order given.
struct ToolCall {
  std::string id;
  std::string name;
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
  std::string arguments_text = {};  // the JSON as it was given; empty where it was no text, or nothing was in it
};

struct Message {
  Role role = Role::user;
  std::string content;
  std::optional<std::string> reasoning_content;                    // assistant
  std::vector<ToolCall> tool_calls;                                // assistant
  std::string name;                                                // of the speaker, or of the tool; optional
  std::string tool_call_id;                                        // tool
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();  // system: more tools, from here on
};

// Whether tools are to be called.
struct ToolChoice {
  enum class Kind { automatic, none, required, function };
  Kind kind = Kind::automatic;
  std::string function = {};  // function: the one to call
};

// What the answer is to be written as.
struct ResponseFormat {
  enum class Kind { text, json_object, json_schema };
  Kind kind = Kind::text;
  nlohmann::ordered_json schema = nullptr;                         // json_schema
  bool strict = false;                                             // json_schema: nothing that is not declared
  std::string schema_path = "response_format.json_schema.schema";  // where the request has it
};

struct ChatRequest {
  std::vector<Message> messages;
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();  // OpenAI tool objects, as given
  std::optional<bool> enable_thinking;                             // absent: the format's default
  std::optional<std::string> reasoning_effort;                     // absent: the format's default; never "none"
  std::optional<bool> preserve_thinking;                           // absent: the format's default
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is the model's own, to be continued
  ToolChoice tool_choice = {};
  ResponseFormat response_format = {};
};

// Reads the chat fields of an OpenAI request; other fields (model, temperature, ...) are not looked at.
// Error for a wrong field; it names the field, as `messages[1].tool_calls[0].function.arguments`.
ChatRequest parse_chat_request(const nlohmann::ordered_json& body);
// Its field response_format alone, which other requests have, too.
ResponseFormat parse_response_format(const nlohmann::ordered_json& body);

// The tokens between the channels of an answer.
struct ChannelMarks {
  std::vector<int32_t> thoughts_end;      // lead out of thoughts; the first ends them wherever it comes in them
  std::vector<int32_t> leaves_thoughts;   // each of these ends them too
  std::vector<int32_t> content_begin;     // lead from there to content
  std::vector<int32_t> content_end;       // lead from content to the end token; the first ends it
  std::vector<int32_t> calls_begin;       // lead from the beginning of content to the opening of a call
  std::vector<int32_t> call_opening_end;  // end the opening
  std::vector<int32_t> call_end;          // end a call; the first is in none of its texts
  std::vector<int32_t> calls_end;         // lead from there to the end token
};

// How one family of models writes a conversation. Immutable.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  // The name for --chat-format, as "qwen3.5".
  virtual std::string_view name() const = 0;
  // The prompt. Error, naming the message, when the format cannot express the request.
  virtual std::vector<Segment> render(const ChatRequest& request) const = 0;
  // Texts of the added tokens that end an answer.
  virtual std::vector<std::string> end_tokens() const = 0;
  // Whether the answer to this request begins with thoughts.
  virtual bool thinks(const ChatRequest& request) const = 0;
  // Error when the vocabulary lacks a token of the format.
  virtual ChannelMarks marks(const Tokenizer& tokenizer) const = 0;
  // The text that opens a call of a function, between marks.
  virtual std::string call_opening(std::string_view function) const = 0;
  // Reads the answer to this request. Error when the vocabulary lacks a token of the format.
  virtual std::unique_ptr<OutputParser> parser(const Tokenizer& tokenizer, const ChatRequest& request) const = 0;
};

// What a checkpoint's chat template says.
struct DetectedFormat {
  std::string name;
  bool thinking = true;  // thinking is on unless a request says otherwise
};

// Recognises the template of a known format by what it contains. Error, listing the formats, when it is none of them.
DetectedFormat detect_chat_format(std::string_view template_text);

// The format of a checkpoint that comes without a template, by the marks in its vocabulary. Nothing when no format has
// marks of its own there.
std::optional<DetectedFormat> detect_chat_format(const Tokenizer& tokenizer);

// The names of all formats.
std::vector<std::string> chat_format_names();

// The format of a name; `thinking` replaces the format's own default. Error, listing the formats, for another name.
std::unique_ptr<const ChatFormat> chat_format(std::string_view name, std::optional<bool> thinking = std::nullopt);

}  // namespace megalith
