#pragma once

#include <string_view>

namespace megalith {

// The page for people, page.html: a chat in the browser. It asks for nothing but this server's own routes.
std::string_view page_html();

}  // namespace megalith
