#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "files/whole_file.hpp"
#include "kvm/fd.hpp"
#include "snapshot/byte_stream.hpp"
#include "snapshot/checksum.hpp"
#include "support/result.hpp"

namespace vmm {

/// The form of a snapshot's file: 16 bytes of magic and version, then sections one after the other, and nothing after
/// them. A section is its name (SectionName), the size of its contents (8 bytes), the contents, and the XXH3 of these
/// three (8 bytes). All of it is little-endian.
using SectionName = std::array<char, 16>;
inline constexpr std::uint64_t section_file_version = 10;

/// Writes such a file completely or not at all. Every member fails with kind usage if the file cannot be written.
class SectionWriter {
 public:
  static Result<SectionWriter> create(WholeFile file);

  /// A whole section.
  Result<void> put(std::string_view name, std::span<const std::byte> contents);
  /// Begins a section of `size` bytes in total, which are added in pieces.
  Result<void> begin(std::string_view name, std::uint64_t size);
  Result<void> add(std::span<const std::byte> piece);
  Result<void> end();
  /// After the last section.
  Result<void> finish() { return file_.finish(); }

 private:
  explicit SectionWriter(WholeFile file) : file_{std::move(file)} {}

  WholeFile file_;
  std::optional<Checksum> checksum_;  ///< Of the section that has begun.
};

/// Reads such a file, with the same names in the same order. Trusts nothing in it: a size is used only after a check
/// that the file has that many bytes. Every member fails with kind usage and names the section.
class SectionReader {
 public:
  /// `path` may be a symbolic link, and must lead to a regular file; any other file fails without blocking.
  static Result<SectionReader> open(const std::string& path);

  /// A whole section, of at most `most` bytes.
  Result<Bytes> get(std::string_view name, std::uint64_t max);
  /// Begins a section that is read in pieces; returns its size.
  Result<std::uint64_t> begin(std::string_view name);
  Result<void> read(std::span<std::byte> piece);
  Result<void> end();
  /// After the last section: there must be nothing more.
  Result<void> finish() const;

  /// The error that section `name` cannot be used.
  [[nodiscard]] Failure refused(std::string_view name, const std::string& why) const;

 private:
  SectionReader(std::string path, Fd fd, std::uint64_t size)
      : path_{std::move(path)}, fd_{std::move(fd)}, rest_{size} {}
  Result<void> read_header();
  Result<void> fill(std::span<std::byte> bytes);

  std::string path_;
  Fd fd_;
  std::uint64_t rest_;  ///< Bytes of the file that have not been read yet.
  std::string section_;
  std::optional<Checksum> checksum_;  ///< Of the section that has begun.
};

}  // namespace vmm
