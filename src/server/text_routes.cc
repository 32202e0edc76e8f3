#include "server/text_routes.h"

#include <fmt/format.h>

#include "base/error.h"
#include "server/handlers.h"
#include "server/json_reply.h"
#include "server/prompt.h"
#include "server/request_fields.h"
#include "text/request_json.h"
#include "text/utf8_stream.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// Text or messages of a request to tokenize, as tokens.
struct Tokenized {
  std::vector<int32_t> ids;
  bool pieces = false;  // ids are shown beside their bytes
};

// The text is `prompt`, or `content`, whose request has its own switches: it gets no token put first unless it asks, and
// may say that control tokens stay text.
Tokenized tokenize_text(const RequestFields& fields, const Service& service) {
  const auto prompt = fields.text("prompt"), content = fields.text("content");
  if (prompt && content) fields.refuse("content", "nothing beside prompt");
  const bool begin = fields.flag("add_special_tokens").value_or(fields.flag("add_special").value_or(!content));
  const auto specials = fields.flag("parse_special").value_or(true) ? Specials::recognised : Specials::plain_text;
  const std::string text = prompt ? *prompt : content.value_or("");
  Tokenized result;
  const Tokenizer& tokenizer = tokenizer_of(service);
  result.ids = begin ? service.model.text.prompt_of(text, specials) : tokenizer.encode(text, specials);
  result.pieces = fields.flag("with_pieces").value_or(false);
  return result;
}

Tokenized tokenize_messages(const RequestFields& fields, const Json& body, const Service& service) {
  for (const char* text : {"prompt", "content"}) {
    if (fields.find(text) != nullptr) fields.refuse(text, "nothing beside messages");
  }
  return {.ids = chat_prompt(service, parse_chat_request(body))};
}

// A JSON list of what each token is shown as. Written at once, since a text may have millions.
template <class Show>
std::string list_of(const std::vector<int32_t>& ids, Show show) {
  std::string list;
  for (const int32_t id : ids) list.append(list.empty() ? "[" : ",").append(show(id));
  return list.empty() ? "[]" : list.append("]");
}

// With its text, or its bytes where those are no whole characters.
std::string piece_of(int32_t id, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  const bool whole = invalid_utf8(bytes) == std::string_view::npos;
  const Json piece = whole ? Json(std::string(bytes)) : Json(std::vector<uint8_t>(bytes.begin(), bytes.end()));
  return fmt::format(R"({{"id":{},"piece":{}}})", id, piece.dump());
}

// The text of a special token in tokenizer_config.json, by itself or in an object; else null.
Json special_token(const nlohmann::json& config, const char* name) {
  nlohmann::json token = config.value(name, nlohmann::json());
  if (token.is_object()) token = token.value("content", nlohmann::json());
  return token.is_string() ? Json(token.get<std::string>()) : Json();
}

// What a file says, or `otherwise` where it cannot be used.
template <class Read, class Value>
Value read_or(Read read, Value otherwise) {
  try {
    return read();
  } catch (const Error&) {
    return otherwise;
  }
}

// The first token that ends answers.
std::string end_token_text(const Service& service) {
  const auto& ends = service.model.end_tokens;
  return ends.empty() ? "" : tokenizer_of(service).decode({ends.data(), 1}, false);
}

}  // namespace

HttpReply tokenize(const HttpRequest& request, const Service& service) {
  const Json body = parse_request_json(request.body, "request");
  const RequestFields fields(body);
  check_model_name(fields, service);
  const bool strings = fields.flag("return_token_strs").value_or(false);
  const bool messages = fields.find("messages") != nullptr;
  const Tokenized tokenized = messages ? tokenize_messages(fields, body, service) : tokenize_text(fields, service);
  const Tokenizer& tokenizer = tokenizer_of(service);
  const auto show = [&](int32_t id) { return tokenized.pieces ? piece_of(id, tokenizer) : fmt::format("{}", id); };
  std::string reply = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":{})", tokenized.ids.size(), service.context,
                                  list_of(tokenized.ids, show));
  const auto text_of = [&](int32_t id) { return Json(tokenizer.decode({&id, 1}, false)).dump(); };
  if (strings) reply.append(",\"token_strs\":").append(list_of(tokenized.ids, text_of));
  return {.body = reply + "}"};
}

HttpReply detokenize(const HttpRequest& request, const Service& service) {
  const Json body = parse_request_json(request.body, "request");
  const RequestFields fields(body);
  check_model_name(fields, service);
  if (fields.find("tokens") == nullptr) fields.refuse("tokens", "a list of token ids");
  const auto ids = fields.token_ids("tokens", vocabulary_of(service));
  const bool skip = fields.flag("skip_special_tokens").value_or(false);
  return json_reply({{"prompt", tokenizer_of(service).decode(ids, skip)}});
}

HttpReply tokenizer_info(const HttpRequest&, const Service& service) {
  const auto& directory = service.model.text.directory;
  const auto object = nlohmann::json::object();
  auto config = read_or([&] { return read_json(directory / "tokenizer_config.json"); }, object);
  if (!config.is_object()) config = object;
  const auto kind = config.value("tokenizer_class", nlohmann::json());
  Json info;
  info["tokenizer_class"] = kind.is_string() ? kind.get<std::string>() : "PreTrainedTokenizerFast";
  for (const char* name : {"eos_token", "bos_token", "pad_token"}) info[name] = special_token(config, name);
  if (info["eos_token"].is_null()) info["eos_token"] = end_token_text(service);
  info["chat_template"] = read_or([&] { return load_chat_template(directory); }, std::optional<std::string>()).value_or("");
  return json_reply(info);
}

HttpReply apply_template(const HttpRequest& request, const Service& service) {
  const Json body = parse_request_json(request.body, "request");
  check_model_name(RequestFields(body), service);
  return json_reply({{"prompt", joined(chat_format_of(service).render(parse_chat_request(body)))}});
}

void add_text_routes(Router& router, const Service& service) {
  using Answer = HttpReply (*)(const HttpRequest&, const Service&);
  const auto add = [&](const char* method, std::vector<std::string> paths, Answer answer) {
    router.add(method, std::move(paths), [answer, &service](const std::shared_ptr<Exchange>& exchange) {
      exchange->reply(answer(exchange->request(), service));
    });
  };
  add("POST", {"/tokenize", "/v1/tokenize"}, tokenize);
  add("POST", {"/detokenize", "/v1/detokenize"}, detokenize);
  add("GET", {"/tokenizer_info", "/v1/tokenizer_info"}, tokenizer_info);
  add("POST", {"/apply-template", "/v1/apply-template"}, apply_template);
}

}  // namespace megalith
