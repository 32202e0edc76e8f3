#pragma once

// A JSON Schema as the grammar of the documents that it allows.

#include <string>

#include <nlohmann/json.hpp>

#include "text/json_grammar.h"

namespace megalith {

// Of any JSON object.
JsonGrammar any_object_grammar();

// Some documents that the schema allows may be left out, but none is let in that it does not allow: properties come in
// the order of the schema and others after them; values of enum and const are written in one way; what is declared with
// the keywords of a type, but without one, has this type; numbers have at most 20 digits at either side of the point,
// and two in the exponent; containers are at most 64 deep. `strict`: objects have no properties that are not declared.
//
// Error, with the path from `where` on, for keywords that are not supported and for schemas that are wrong, too large
// or have no document.
JsonGrammar schema_grammar(const nlohmann::ordered_json& schema, bool strict, const std::string& where);

}  // namespace megalith
