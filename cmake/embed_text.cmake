# Writes OUTPUT, C++ source that holds the text file INPUT as megalith::FUNCTION(), declared in HEADER:
#   cmake -DINPUT=… -DOUTPUT=… -DHEADER=… -DFUNCTION=… -P embed_text.cmake
file(READ ${INPUT} text)
set(mark "end_of_text")
string(FIND "${text}" ")${mark}\"" found)
if(NOT found EQUAL -1)
  message(FATAL_ERROR "${INPUT} holds )${mark}\", which ends a text in C++ source")
endif()
file(WRITE ${OUTPUT} "#include \"${HEADER}\"

namespace megalith {

std::string_view ${FUNCTION}() {
  static constexpr std::string_view kText = R\"${mark}(${text})${mark}\";
  return kText;
}

}  // namespace megalith
")
