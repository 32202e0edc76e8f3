#include "server/page.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/scratch.h"

namespace megalith {
namespace {

TEST(Page, TheProgramHoldsTheWholeFile) {
  EXPECT_EQ(page_html(), file_text(MEGALITH_SOURCE_DIR "/src/server/page.html"));
  EXPECT_TRUE(page_html().starts_with("<!doctype html>\n"));
  EXPECT_TRUE(page_html().ends_with("</html>\n"));
}

TEST(Page, NamesNoAddressElsewhere) {
  const std::string page(page_html());
  for (const char* part : {"https://", "src=", "@import", "url(", "<link rel=\"stylesheet", "//cdn"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
  // The one address is a name, of the icon's own format.
  const std::string name = "http://www.w3.org/2000/svg";
  const size_t at = page.find("http://");
  EXPECT_EQ(page.compare(at, name.size(), name), 0);
  EXPECT_EQ(page.find("http://", at + 1), std::string::npos);
}

}  // namespace
}  // namespace megalith
