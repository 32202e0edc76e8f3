#pragma once

// What handlers of a loaded model's requests have at hand.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/loaded_model.h"
#include "server/generator.h"

namespace megalith {

// What a request gets that does not say otherwise.
struct RequestDefaults {
  int64_t max_tokens = 512;  // completions and chat
  Sampling sampling;         // without a seed
  bool ignore_eos = false;   // for all requests
  bool strict_model = false;     // another model's name is a 404
  bool early_role_chunk = false;  // a chat's stream begins before its first token
  bool reasoning_alias = false;   // "reasoning" beside "reasoning_content"
  int ping_s = 15;                // silence in a stream before a comment; 0: never
};

struct Service {
  const LoadedModel& model;
  std::string model_name;
  std::string fingerprint;  // system_fingerprint: NAME-VERSION-tpRANKS-HASH8
  int64_t created = 0;      // Unix time
  int64_t context = 0;      // positions of a sequence
  int draft_guesses = 0;    // of a step; 0: no draft
  RequestDefaults defaults;
  Generator& generator;
};

}  // namespace megalith
