#include "weights/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "base/pending_file.h"
#include "weights/files.h"
#include "weights/json_text.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kDownload = "The file is damaged or incomplete: download it again.";

// Bits of an element, for every type that the format knows; 0 for others.
uint64_t element_bits(const std::string& dtype) {
  static const std::map<std::string, uint64_t> bits = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"F64", 64},
      {"I64", 64}, {"U64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

class HeaderReader {
 public:
  HeaderReader(const std::string& file, uint64_t data_bytes) : file_(file), data_bytes_(data_bytes) {}

  void read(const char* begin, const char* end, std::map<std::string, StoredTensor>& tensors,
            std::map<std::string, std::string>& metadata) const {
    const json header = parse(begin, end);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        metadata = strings(entry);
      } else {
        tensors.emplace(name, tensor(name, entry));
      }
    }
    check_layout(tensors);
  }

 private:
  [[noreturn]] void fail(const std::string& where, std::string expected, std::string found) const {
    throw Error({.where = where.empty() ? file_ : file_ + ": " + where,
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .next = kDownload});
  }

  // A name that stands twice would silently hide a tensor, so keys are watched while parsing.
  json parse(const char* begin, const char* end) const {
    ParsedJson header;
    try {
      header = parse_json({begin, end});
    } catch (const json::parse_error& error) {
      const bool utf8 = std::string_view(error.what()).find("UTF-8") == std::string_view::npos;
      fail("header", fmt::format("{} bytes of {}", end - begin, utf8 ? "JSON" : "UTF-8"),
           fmt::format("{} at byte {}", utf8 ? "a syntax error" : "another encoding", error.byte));
    } catch (const json::exception&) {
      fail("header", "JSON", "a number that is out of range");
    }
    if (header.too_deep) fail("header", fmt::format("at most {} levels", kDeepestJson), "more");
    if (!header.value.is_object()) fail("header", "a JSON object", brief(header.value));
    if (header.twice) fail(*header.twice, "one entry", "two entries of this name");
    return std::move(header.value);
  }

  std::map<std::string, std::string> strings(const json& entry) const {
    if (!entry.is_object()) fail("__metadata__", "an object of strings", brief(entry));
    std::map<std::string, std::string> result;
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("__metadata__." + key, "a string", brief(value));
      result.emplace(key, value);
    }
    return result;
  }

  StoredTensor tensor(const std::string& name, const json& entry) const {
    if (!entry.is_object()) fail(name, "an object with dtype, shape and data_offsets", brief(entry));
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!entry.contains(field)) fail(name, fmt::format("the field {}", field), "no such field");
    }
    StoredTensor t;
    const json& dtype = entry["dtype"];
    const uint64_t bits = dtype.is_string() ? element_bits(dtype) : 0;
    if (bits == 0) fail(name + ".dtype", "a safetensors type such as BF16 or F32", brief(dtype));
    t.dtype = dtype;
    const uint64_t all_bits = read_shape(name, entry["shape"], bits, t);
    read_offsets(name, entry["data_offsets"], t);
    if (all_bits % 8 != 0 || t.end - t.begin != all_bits / 8) {
      fail(name, fmt::format("{} bytes for {} [{}]", (all_bits + 7) / 8, t.dtype, fmt::join(t.shape, ", ")),
           fmt::format("{} bytes at {}", t.end - t.begin, t.begin));
    }
    return t;
  }

  // Returns the size of the whole tensor in bits.
  uint64_t read_shape(const std::string& name, const json& shape, uint64_t bits, StoredTensor& t) const {
    if (!shape.is_array()) fail(name + ".shape", "a list of sizes", brief(shape));
    for (const json& size : shape) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > (uint64_t{1} << 48)) {
        fail(name + ".shape", "sizes of 0 to 2^48", brief(size));
      }
      t.shape.push_back(size.get<int64_t>());
      if (__builtin_mul_overflow(bits, size.get<uint64_t>(), &bits)) {
        fail(name + ".shape", "fewer than 2^64 bits", shown(shape));
      }
    }
    return bits;
  }

  // A list of numbers in full; the header may hold anything in their place.
  static std::string shown(const json& list) {
    if (!list.is_array() || list.size() > 16) return brief(list);
    std::vector<std::string> items;
    for (const json& item : list) items.push_back(brief(item));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }

  void read_offsets(const std::string& name, const json& offsets, StoredTensor& t) const {
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      fail(name + ".data_offsets", "two offsets in bytes", shown(offsets));
    }
    t.begin = offsets[0];
    t.end = offsets[1];
    if (t.begin > t.end) fail(name + ".data_offsets", "an end after the begin", shown(offsets));
    if (t.end > data_bytes_) {
      fail(name, fmt::format("data up to byte {}", t.end), fmt::format("a file with {} bytes of data", data_bytes_));
    }
  }

  // Tensors must lie side by side and fill the file: a hole or an overlap means that the header is not this file's.
  void check_layout(const std::map<std::string, StoredTensor>& tensors) const {
    std::vector<std::pair<const StoredTensor*, const std::string*>> order;
    for (const auto& [name, t] : tensors) order.emplace_back(&t, &name);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
    });
    uint64_t at = 0;
    for (const auto& [t, name] : order) {
      if (t->begin != at) fail(*name, fmt::format("data at byte {}", at), fmt::format("data at byte {}", t->begin));
      at = t->end;
    }
    if (at != data_bytes_) {
      fail("", fmt::format("{} bytes of data, as the header says", at), fmt::format("{} bytes", data_bytes_));
    }
  }

  const std::string& file_;
  const uint64_t data_bytes_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  read_header();
}

void SafetensorsFile::read_header() {
  const std::string name = path_.string();
  const auto bytes = file_.bytes();
  const auto fail = [&](std::string expected, std::string found) {
    throw Error({.where = name, .expected = std::move(expected), .found = std::move(found), .next = kDownload});
  };
  if (bytes.size() < 8) fail("a safetensors file of at least 8 bytes", fmt::format("{} bytes", bytes.size()));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeaderBytes)
    fail(fmt::format("a header of at most {} bytes", kMaxHeaderBytes), fmt::format("one of {}", length));
  if (length > bytes.size() - 8) {
    fail(fmt::format("a header of {} bytes", length), fmt::format("a file of {} bytes", bytes.size()));
  }
  data_offset_ = 8 + length;
  const char* text = reinterpret_cast<const char*>(bytes.data()) + 8;
  HeaderReader(name, bytes.size() - data_offset_).read(text, text + length, tensors_, metadata_);
}

std::span<const std::byte> SafetensorsFile::data(const StoredTensor& tensor) const {
  return file_.bytes().subspan(data_offset_ + tensor.begin, tensor.end - tensor.begin);
}

void SafetensorsFile::release(std::span<const std::byte> part) const {
  file_.release(static_cast<size_t>(part.data() - file_.bytes().data()), part.size());
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    uint64_t bits = element_bits(t.dtype);
    for (const int64_t size : t.shape) bits *= static_cast<uint64_t>(size);
    CHECK(bits == t.bytes.size() * 8 && element_bits(t.dtype) > 0, "{}: {} bytes for {} [{}]", t.name, t.bytes.size(),
          t.dtype, fmt::join(t.shape, ", "));
    CHECK(!header.contains(t.name), "{} twice", t.name);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  PendingFile file(path);
  file.write(&length, 8);
  file.write(text.data(), text.size());
  for (const TensorToWrite& t : tensors) file.write(t.bytes.data(), t.bytes.size());
  file.finish();
}

}  // namespace megalith
