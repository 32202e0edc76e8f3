// Reads the chat fields of an OpenAI request. Knows no format.

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/chat.h"
#include "text/request_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& where, std::string expected, std::string found, std::string next = "") {
  throw Error({.where = where, .expected = std::move(expected), .found = std::move(found), .next = std::move(next)});
}

std::string kind(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return "a number";
}

std::string in_quotes(std::string_view text) {
  return fmt::format("\"{}\"", shortened(text));
}

// Texts are made of values by recursion, so their depth has a limit.
constexpr int kDeepest = 100;

bool deeper_than(const Json& value, int levels) {
  if (!value.is_structured()) return false;
  auto deeper = [levels](const Json& part) { return deeper_than(part, levels - 1); };
  return levels == 0 || std::any_of(value.begin(), value.end(), deeper);
}

void check_depth(const Json& value, const std::string& path) {
  if (!deeper_than(value, kDeepest)) return;
  refuse(path, fmt::format("at most {} lists and objects inside each other", kDeepest), "more");
}

// Absent and null are the same.
const Json* find(const Json& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> string_field(const Json& object, const std::string& path, const char* name) {
  const Json* value = find(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(path + name, "a string", kind(*value));
  return value->get<std::string>();
}

std::optional<bool> bool_field(const Json& object, const std::string& path, const char* name) {
  const Json* value = find(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(path + name, "true or false", kind(*value));
  return value->get<bool>();
}

Role read_role(const Json& message, const std::string& path) {
  auto role = string_field(message, path, "role");
  if (role == "system" || role == "developer") return Role::system;
  if (role == "user") return Role::user;
  if (role == "assistant") return Role::assistant;
  if (role == "tool") return Role::tool;
  refuse(path + "role", "system, developer, user, assistant or tool", role ? in_quotes(*role) : "nothing");
}

std::string read_part(const Json& part, const std::string& path) {
  if (!part.is_object()) refuse(path, "an object with type \"text\"", kind(part));
  auto type = string_field(part, path + ".", "type").value_or("text");
  if (type != "text") {
    refuse(path + ".type", "\"text\"", in_quotes(type),
           "Images, audio and other parts are not supported; send text only.");
  }
  auto text = string_field(part, path + ".", "text");
  if (!text) refuse(path + ".text", "a string", "nothing");
  return *text;
}

// A string, or a list of text parts, which are joined without anything between them.
std::string read_content(const Json& message, const std::string& path) {
  const Json* content = find(message, "content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse(path + "content", "a string, a list of parts or null", kind(*content));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) text += read_part((*content)[i], fmt::format("{}content[{}]", path, i));
  return text;
}

// An object, or its JSON text; nothing, null and "" are a call without arguments.
Json read_arguments(const Json& function, const std::string& path) {
  const Json* given = find(function, "arguments");
  if (given == nullptr) return Json::object();
  bool text = given->is_string();
  if (text && trim(given->get_ref<const std::string&>()).empty()) return Json::object();
  Json parsed = text ? parse_request_json(given->get_ref<const std::string&>(), path + "arguments") : Json();
  if (text && parsed.is_null()) return Json::object();
  const Json& arguments = text ? parsed : *given;
  if (!arguments.is_object()) refuse(path + "arguments", "a JSON object", kind(arguments));
  check_depth(arguments, path + "arguments");
  return arguments;
}

ToolCall read_call(const Json& call, const std::string& path) {
  if (!call.is_object()) refuse(path, "an object", kind(call));
  auto type = string_field(call, path + ".", "type").value_or("function");
  if (type != "function") refuse(path + ".type", "\"function\"", in_quotes(type));
  const Json* function = find(call, "function");
  if (function == nullptr) refuse(path + ".function", "an object", "nothing");
  if (!function->is_object()) refuse(path + ".function", "an object", kind(*function));
  std::string inner = path + ".function.";
  auto name = string_field(*function, inner, "name");
  if (!name || name->empty()) refuse(inner + "name", "a function's name", name ? "an empty string" : "nothing");
  ToolCall read{string_field(call, path + ".", "id").value_or(""), *name, read_arguments(*function, inner)};
  const Json* given = find(*function, "arguments");
  if (!read.arguments.empty() && given->is_string()) read.arguments_text = given->get<std::string>();
  return read;
}

// `reasoning_content` and `reasoning` are two names for the same; the first wins unless it is empty.
std::optional<std::string> read_reasoning(const Json& message, const std::string& path) {
  auto first = string_field(message, path, "reasoning_content");
  if (first && !first->empty()) return first;
  auto second = string_field(message, path, "reasoning");
  return second ? second : first;
}

void check_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) refuse(path, "an object", kind(tool));
  check_depth(tool, path);
  auto type = string_field(tool, path + ".", "type").value_or("function");
  if (type != "function") refuse(path + ".type", "\"function\"", in_quotes(type));
  const Json* function = find(tool, "function");
  if (function == nullptr || !function->is_object()) {
    refuse(path + ".function", "an object", function ? kind(*function) : "nothing");
  }
  auto name = string_field(*function, path + ".function.", "name");
  if (!name || name->empty())
    refuse(path + ".function.name", "a function's name", name ? "an empty string" : "nothing");
}

Json read_tools(const Json& object, const std::string& path) {
  const Json* tools = find(object, "tools");
  if (tools == nullptr) return Json::array();
  if (!tools->is_array()) refuse(path + "tools", "a list", kind(*tools));
  for (size_t i = 0; i < tools->size(); ++i) check_tool((*tools)[i], fmt::format("{}tools[{}]", path, i));
  return *tools;
}

// Which call a result belongs to; each of the two fields has two names.
void read_result(const Json& message, const std::string& path, Message& read) {
  if (auto tool = string_field(message, path, "tool")) read.name = *tool;
  auto id = string_field(message, path, "tool_call_id");
  read.tool_call_id = (id ? id : string_field(message, path, "id")).value_or("");
}

Message read_message(const Json& message, const std::string& path) {
  if (!message.is_object()) refuse(path, "an object", kind(message));
  std::string inner = path + ".";
  Message read;
  read.role = read_role(message, inner);
  read.content = read_content(message, inner);
  read.name = string_field(message, inner, "name").value_or("");
  if (read.role == Role::system) read.tools = read_tools(message, inner);
  if (read.role == Role::tool) read_result(message, inner, read);
  if (read.role != Role::assistant) return read;
  read.reasoning_content = read_reasoning(message, inner);
  const Json* calls = find(message, "tool_calls");
  if (calls == nullptr) return read;
  if (!calls->is_array()) refuse(inner + "tool_calls", "a list", kind(*calls));
  for (size_t i = 0; i < calls->size(); ++i) {
    read.tool_calls.push_back(read_call((*calls)[i], fmt::format("{}tool_calls[{}]", inner, i)));
  }
  return read;
}

// "auto", "none", "required", or {"type": "function", "function": {"name": ...}}, which names one of the tools.
ToolChoice read_tool_choice(const Json& body, const Json& tools) {
  using Kind = ToolChoice::Kind;
  const Json* choice = find(body, "tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") return {Kind::none};
  if (*choice == "required") return {Kind::required};
  constexpr const char* kExpected = "\"auto\", \"none\", \"required\" or an object that names a function";
  if (choice->is_string()) refuse("tool_choice", kExpected, in_quotes(choice->get<std::string>()));
  if (!choice->is_object()) refuse("tool_choice", kExpected, kind(*choice));
  const Json* function = find(*choice, "function");
  if (function == nullptr || !function->is_object()) {
    refuse("tool_choice.function", "an object", function ? kind(*function) : "nothing");
  }
  auto name = string_field(*function, "tool_choice.function.", "name").value_or("");
  auto has_name = [&](const Json& tool) { return tool["function"]["name"] == name; };
  if (std::none_of(tools.begin(), tools.end(), has_name)) {
    refuse("tool_choice.function.name", "the name of one of the tools", in_quotes(name));
  }
  return {Kind::function, name};
}

// The schema of {"type": "json_schema", "json_schema": {"schema": ...}}; without the inner name, the whole is the
// schema.
ResponseFormat read_schema(const Json& format) {
  ResponseFormat read{ResponseFormat::Kind::json_schema};
  const std::string path = "response_format.json_schema";
  const Json* given = find(format, "json_schema");
  if (given == nullptr || !given->is_object()) refuse(path, "an object", given ? kind(*given) : "nothing");
  check_depth(*given, path);
  read.strict = bool_field(*given, path + ".", "strict").value_or(false);
  const Json* inner = find(*given, "schema");
  read.schema = inner == nullptr ? *given : *inner;
  if (inner == nullptr) read.schema_path = path;
  if (!read.schema.is_object()) refuse(read.schema_path, "an object", kind(read.schema));
  return read;
}

constexpr std::array kTemplateFields = {"enable_thinking", "preserve_thinking", "reasoning_effort", "thinking",
                                        "thinking_effort"};

// The other name of enable_thinking: true, false, or an object whose type is "enabled" or "disabled".
std::optional<bool> thinking_field(const Json& object, const std::string& path) {
  const Json* value = find(object, "thinking");
  if (value == nullptr || !value->is_object()) return bool_field(object, path, "thinking");
  auto type = string_field(*value, path + "thinking.", "type");
  if (type == "enabled" || type == "disabled") return type == "enabled";
  refuse(path + "thinking.type", "\"enabled\" or \"disabled\"", type ? in_quotes(*type) : "nothing");
}

// The switches that templates know: at the top, or in chat_template_kwargs, which win.
void read_switches(const Json& object, const std::string& path, ChatRequest& request) {
  auto set = [](auto& field, const auto& value) {
    if (value) field = value;
  };
  set(request.enable_thinking, thinking_field(object, path));
  set(request.enable_thinking, bool_field(object, path, "enable_thinking"));
  set(request.preserve_thinking, bool_field(object, path, "preserve_thinking"));
  set(request.reasoning_effort, string_field(object, path, "thinking_effort"));
  set(request.reasoning_effort, string_field(object, path, "reasoning_effort"));
}

void read_template_kwargs(const Json& body, ChatRequest& request) {
  const Json* given = find(body, "chat_template_kwargs");
  if (given == nullptr) return;
  if (!given->is_object()) refuse("chat_template_kwargs", "an object", kind(*given));
  for (const auto& field : given->items()) {
    const std::string& name = field.key();
    bool known = std::any_of(kTemplateFields.begin(), kTemplateFields.end(), [&](auto other) { return name == other; });
    if (!known) {
      refuse("chat_template_kwargs." + shortened(name), fmt::format("one of {}", fmt::join(kTemplateFields, ", ")),
             "this name");
    }
  }
  read_switches(*given, "chat_template_kwargs.", request);
}

// Effort "none" is thinking off.
void settle_effort(ChatRequest& request) {
  if (request.reasoning_effort != "none") return;
  if (request.enable_thinking == true) {
    refuse("reasoning_effort", "an effort other than \"none\" next to enable_thinking true", "\"none\"",
           "Leave one of the two out.");
  }
  request.enable_thinking = false;
  request.reasoning_effort.reset();
}

void read_ending(const Json& body, ChatRequest& request) {
  request.continue_final_message = bool_field(body, "", "continue_final_message").value_or(false);
  auto prompt = bool_field(body, "", "add_generation_prompt");
  if (request.continue_final_message && prompt == true) {
    refuse("add_generation_prompt", "false next to continue_final_message", "true", "Leave one of the two out.");
  }
  request.add_generation_prompt = prompt.value_or(!request.continue_final_message);
  if (!request.continue_final_message) return;
  std::string last = fmt::format("messages[{}].", request.messages.size() - 1);
  if (request.messages.back().role != Role::assistant) {
    refuse(last + "role", "assistant, with continue_final_message", "another role");
  }
  if (!request.messages.back().tool_calls.empty()) {
    refuse(last + "tool_calls", "no calls, with continue_final_message", "calls");
  }
}

}  // namespace

ResponseFormat parse_response_format(const Json& body) {
  using Kind = ResponseFormat::Kind;
  const Json* format = find(body, "response_format");
  if (format == nullptr) return {};
  if (!format->is_object()) refuse("response_format", "an object", kind(*format));
  auto type = string_field(*format, "response_format.", "type");
  if (type == "text") return {};
  if (type == "json_object") return {Kind::json_object};
  if (type == "json_schema") return read_schema(*format);
  refuse("response_format.type", "text, json_object or json_schema", type ? in_quotes(*type) : "nothing");
}

ChatRequest parse_chat_request(const Json& body) {
  if (!body.is_object()) refuse("request", "an object", kind(body));
  ChatRequest request;
  const Json* messages = find(body, "messages");
  if (messages == nullptr) refuse("messages", "a list of messages", "nothing");
  if (!messages->is_array()) refuse("messages", "a list of messages", kind(*messages));
  if (messages->empty()) refuse("messages", "at least one message", "an empty list");
  for (size_t i = 0; i < messages->size(); ++i) {
    request.messages.push_back(read_message((*messages)[i], fmt::format("messages[{}]", i)));
  }
  request.tools = read_tools(body, "");
  request.tool_choice = read_tool_choice(body, request.tools);
  request.response_format = parse_response_format(body);
  read_switches(body, "", request);
  read_template_kwargs(body, request);
  settle_effort(request);
  read_ending(body, request);
  return request;
}

}  // namespace megalith
