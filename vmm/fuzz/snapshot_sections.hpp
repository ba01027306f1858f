#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.hpp"
#include "snapshot/checksum.hpp"
#include "snapshot/section_file.hpp"

/// Snapshots whose sections the input changes. Checksums are computed after the changes, so that these reach the code
/// that restores the state.
namespace vmm::fuzz {

using vpmu::fuzz::Input;
using vpmu::fuzz::require;

struct Section {
  std::string name;
  Bytes contents;
  std::optional<std::uint64_t> size{};  ///< The size that the file claims, if it is a wrong one.
};
using Sections = std::vector<Section>;

template <class... T>
inline Bytes bytes_of(const T&... values) {
  ByteWriter out;
  (out.put(values), ...);
  return out.take();
}

inline void append(Bytes& file, std::span<const std::byte> bytes) {
  file.insert(file.end(), bytes.begin(), bytes.end());
}

inline Bytes file_of(const Sections& sections) {
  constexpr std::uint64_t magic = 0x5041'4E53'554D'5056;
  Bytes file = bytes_of(magic, section_file_version);
  for (const Section& section : sections) {
    SectionName name{};
    std::ranges::copy(std::string_view{section.name}.substr(0, name.size()), name.begin());
    const Bytes head = bytes_of(name, section.size.value_or(section.contents.size()));
    Checksum sum;
    sum.add(head);
    sum.add(section.contents);
    append(file, head);
    append(file, section.contents);
    append(file, bytes_of(sum.value()));
  }
  return file;
}

inline std::uint64_t take_value(Input& input) {
  const auto form = input.take<std::uint8_t>();
  switch (form % 4) {
    case 0: return static_cast<std::uint64_t>(form >> 2U);
    case 1: return 1ULL << (form >> 2U);
    case 2: return ~static_cast<std::uint64_t>(form >> 2U);
    default: return input.take<std::uint64_t>();
  }
}

inline void change(Input& input, Sections& sections) {
  const auto which = input.take<std::uint8_t>();
  Section& section = sections[which % sections.size()];
  Bytes& contents = section.contents;
  const auto put = [&](std::size_t at, std::uint64_t value, std::size_t size) {
    if (at + size <= contents.size()) std::memcpy(contents.data() + at, &value, size);
  };
  switch (input.take<std::uint8_t>() % 8) {
    case 0: put(input.take<std::uint16_t>(), input.take<std::uint8_t>(), 1); break;
    case 1: put(input.take<std::uint16_t>() * 8U, take_value(input), 8); break;
    // From the end: the PMU of a vCPU.
    case 2:
    case 3:
      put(contents.size() - std::min<std::size_t>(contents.size(), 8U * input.take<std::uint8_t>()), take_value(input),
          8);
      break;
    case 4: contents.resize(input.take<std::uint16_t>()); break;
    case 5: section.size = take_value(input); break;
    case 6: std::swap(section, sections[input.take<std::uint8_t>() % sections.size()]); break;
    default:
      if (sections.size() > 1) sections.erase(sections.begin() + static_cast<std::ptrdiff_t>(which % sections.size()));
      break;
  }
}

/// A file without a name, for as long as it is open.
class MemoryFile {
 public:
  explicit MemoryFile(const Bytes& bytes) {
    require(
        ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
        "the file can be written");
  }
  [[nodiscard]] static std::string path() { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  static inline const int fd_ = ::memfd_create("snapshot", MFD_CLOEXEC);
};

}  // namespace vmm::fuzz
