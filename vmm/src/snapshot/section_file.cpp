#include "snapshot/section_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "support/assert.hpp"
#include "support/bytes_of.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t file_magic = 0x5041'4E53'554D'5056;  // "VPMUSNAP"
constexpr auto header_section = "header";

struct SectionHead {
  SectionName name{};
  std::uint64_t size{};
};
static_assert(sizeof(SectionHead) == 24);

SectionName stored(std::string_view name) {
  SectionName bytes{};
  VMM_ASSERT(name.size() <= bytes.size());
  std::ranges::copy(name, bytes.begin());
  return bytes;
}

template <class T>
std::span<std::byte> room_of(T& value) {
  return std::as_writable_bytes(std::span{&value, 1});
}

}  // namespace

Result<SectionWriter> SectionWriter::create(WholeFile file) {
  VMM_TRY(file.write(bytes_of(std::array{file_magic, section_file_version})));
  return SectionWriter{std::move(file)};
}

Result<void> SectionWriter::put(std::string_view name, std::span<const std::byte> contents) {
  VMM_TRY(begin(name, contents.size()));
  VMM_TRY(add(contents));
  return end();
}

Result<void> SectionWriter::begin(std::string_view name, std::uint64_t size) {
  checksum_.emplace();
  const SectionHead head{.name = stored(name), .size = size};
  return add(bytes_of(head));
}

Result<void> SectionWriter::add(std::span<const std::byte> piece) {
  checksum_->add(piece);
  return file_.write(piece);
}

Result<void> SectionWriter::end() {
  const std::uint64_t sum = checksum_->value();
  return file_.write(bytes_of(sum));
}

Result<SectionReader> SectionReader::open(const std::string& path) {
  const auto failure = [&path](const std::string& why) {
    return usage_error(fmt::format("cannot read the snapshot {}: {}", printable(path), why),
                       "give a file that `vpmu ctl SOCKET snapshot` wrote with --restore");
  };
  Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat status{};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return failure(errno_text(errno));
  if (!S_ISREG(status.st_mode)) return failure("not a regular file");
  SectionReader reader{path, std::move(file), static_cast<std::uint64_t>(status.st_size)};
  VMM_TRY(reader.read_header());
  return reader;
}

Result<void> SectionReader::read_header() {
  section_ = header_section;
  std::array<std::uint64_t, 2> found{};
  VMM_TRY(fill(room_of(found)));
  if (found[0] != file_magic) return refused(header_section, "the file does not begin as a snapshot does");
  if (found[1] != section_file_version)
    return refused(header_section, fmt::format("it has format {}, not {}", found[1], section_file_version));
  return {};
}

Result<Bytes> SectionReader::get(std::string_view name, std::uint64_t max) {
  VMM_ASSIGN(const std::uint64_t size, begin(name));
  if (size > max) return refused(name, fmt::format("{} bytes are more than the {} that it may have", size, max));
  Bytes contents(size);
  VMM_TRY(read(contents));
  VMM_TRY(end());
  return contents;
}

Result<std::uint64_t> SectionReader::begin(std::string_view name) {
  section_ = name;
  checksum_.emplace();
  SectionHead head;
  VMM_TRY(read(room_of(head)));
  if (head.name != stored(name))
    return refused(
        name, fmt::format("section \"{}\" is in its place",
                          printable(std::string{head.name.data(), ::strnlen(head.name.data(), head.name.size())})));
  if (head.size > rest_)
    return refused(name,
                   fmt::format("it is cut short: it has {} bytes, and {} are left of the file", head.size, rest_));
  return head.size;
}

Result<void> SectionReader::read(std::span<std::byte> piece) {
  VMM_TRY(fill(piece));
  checksum_->add(piece);
  return {};
}

Result<void> SectionReader::end() {
  std::uint64_t sum = 0;
  VMM_TRY(fill(room_of(sum)));
  if (sum == checksum_->value()) return {};
  return refused(section_,
                 fmt::format("it is damaged: its checksum is {:#018x}, not {:#018x}", checksum_->value(), sum));
}

Result<void> SectionReader::finish() const {
  if (rest_ == 0) return {};
  return refused("end", fmt::format("the file goes on for {} bytes", rest_));
}

Result<void> SectionReader::fill(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::read(fd_.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused(section_, "it cannot be read: " + errno_text(errno));
    if (got == 0 || static_cast<std::uint64_t>(got) > rest_)
      return refused(section_, "the file is cut short, or was changed while it was read");
    rest_ -= static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Failure SectionReader::refused(std::string_view name, const std::string& why) const {
  return usage_error(fmt::format("cannot restore {}: section \"{}\": {}", printable(path_), name, why),
                     "give a file that `vpmu ctl SOCKET snapshot` of this version wrote");
}

}  // namespace vmm
