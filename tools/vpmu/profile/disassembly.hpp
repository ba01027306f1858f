#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profile/summary.hpp"
#include "profile/text_lines.hpp"

namespace vmm::tool {

/// An instruction, and what was sampled there.
struct CodeLine {
  std::uint64_t address{};  ///< In its file, as objdump has it.
  std::uint64_t offset{};   ///< From the start of the function.
  std::string text;
  std::string source;  ///< "hot.c:4"; empty where there are no debugging symbols.
  Weights weights{};
  std::array<std::uint64_t, aspects> samples{};
  bool follows_gap{};  ///< Lines without samples have been left out before it.
};

/// A function's instructions, or why they are not available.
struct AnnotatedFunction {
  std::size_t function{};
  std::string why_not;
  std::vector<CodeLine> lines;
};

/// Parses, part by part, what `objdump -d -l --no-show-raw-insn` prints of one function: up to the next function, and
/// no more than some thousands of instructions.
class DisassemblyReader {
 public:
  /// False: no more is needed.
  bool add(std::string_view text);
  std::vector<CodeLine> take() { return std::move(lines_); }

 private:
  static constexpr std::size_t max_line_length = 4096;
  /// False: no more is needed.
  bool line(std::string_view text);
  TextLines text_{max_line_length};
  std::string source_;
  std::vector<CodeLine> lines_;
  bool is_complete_{};
};

/// The address that a byte of an ELF file gets when it is loaded; nothing where it is not loaded, or the file is no ELF
/// file of 64 bits. `head` is the file's start, with its program headers.
std::optional<std::uint64_t> load_address(std::span<const std::byte> head, std::uint64_t file_offset);

/// The instructions of a function with what was sampled there, by objdump. Lines far from any sample are left out.
AnnotatedFunction annotate(const ProfileSummary& summary, std::size_t function);

}  // namespace vmm::tool
