#include "profile/disassembly.hpp"

#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "files/input_file.hpp"
#include "profile/host_tool.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_lines = 4000, max_text_length = 200;
/// Lines that are shown on each side of a line with samples.
constexpr std::size_t context = 6;

/// "  401660:\tpush   %rbp"
std::optional<CodeLine> read_instruction(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  const std::size_t colon = text.find(":\t");
  if (first == std::string_view::npos || colon == std::string_view::npos || colon < first) return std::nullopt;
  CodeLine line;
  constexpr int hexadecimal = 16;
  const char* const end = text.data() + colon;
  const auto [stop, error] = std::from_chars(text.data() + first, end, line.address, hexadecimal);
  if (error != std::errc{} || stop != end) return std::nullopt;
  line.text = text.substr(colon + 2, max_text_length);
  std::ranges::replace(line.text, '\t', ' ');
  return line;
}

/// "/home/x/hot.c:4 (discriminator 3)": "hot.c:4".
std::optional<std::string> read_source(std::string_view text) {
  text = text.substr(0, text.find(" (discriminator"));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) return std::nullopt;
  const std::string_view digits = text.substr(colon + 1);
  if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  const std::size_t slash = text.rfind('/');
  return std::string{text.substr(slash == std::string_view::npos ? 0 : slash + 1)}.substr(0, max_text_length);
}

/// The line that begins a function: "0000000000401660 <hot_sum>:"
bool is_title(std::string_view text) { return text.ends_with(">:") && text.front() != ' '; }

/// Leaves out lines that are far from any sample.
std::vector<CodeLine> near_samples(std::vector<CodeLine> all) {
  std::vector<bool> is_near(all.size());
  const auto has_samples = [](const CodeLine& line) {
    return std::ranges::any_of(line.samples, [](std::uint64_t samples) { return samples != 0; });
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!has_samples(all[i])) continue;
    const std::size_t first = i - std::min(i, context), last = std::min(i + context + 1, all.size());
    std::fill(is_near.begin() + static_cast<std::ptrdiff_t>(first), is_near.begin() + static_cast<std::ptrdiff_t>(last),
              true);
  }
  std::vector<CodeLine> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!is_near[i]) continue;
    all[i].follows_gap = i > 0 && !is_near[i - 1];
    kept.push_back(std::move(all[i]));
  }
  return kept;
}

std::string why_no_file(std::string_view module) {
  if (module.empty()) return "perf does not know which file it is in.";
  if (module == "process") return "it is no function.";
  if (module.starts_with('[')) return "it is in the kernel or its vDSO, whose code is not in a file here.";
  struct stat status{};
  if (::stat(std::string{module}.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return "its file is not on this machine.";
  return {};
}

/// The address within the file of a place that perf gives as an offset in the file.
Result<std::uint64_t> start_of(const std::string& module, std::uint64_t file_offset) {
  constexpr std::size_t head_size = 16384;
  VMM_ASSIGN(auto file, InputFile::open(module, {.what = "the program", .advice = {}}));
  std::vector<std::byte> head(head_size);
  VMM_ASSIGN(const std::size_t bytes, file.read(head));
  const auto address = load_address(std::span{head}.first(bytes), file_offset);
  if (!address) return file.refuse("it is no ELF file that has this function");
  return *address;
}

Result<std::vector<CodeLine>> disassemble(const std::string& module, std::uint64_t start, std::uint64_t size) {
  DisassemblyReader reader;
  VMM_ASSIGN(const ToolEnd end,
             run_tool({"objdump", "-d", "-l", "-C", "--no-show-raw-insn", fmt::format("--start-address={:#x}", start),
                       fmt::format("--stop-address={:#x}", start + size), "--", module},
                      [&reader](std::string_view text) { return reader.add(text); }));
  if (end.exit_code != 0) return host_error("objdump: " + printable(end.said));
  return reader.take();
}

}  // namespace

std::optional<std::uint64_t> load_address(std::span<const std::byte> head, std::uint64_t file_offset) {
  Elf64_Ehdr header{};
  if (head.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, head.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return std::nullopt;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const std::uint64_t at = i * sizeof(Elf64_Phdr);
    if (header.e_phoff > head.size() || head.size() - header.e_phoff < at + sizeof(Elf64_Phdr)) return std::nullopt;
    Elf64_Phdr segment{};
    std::memcpy(&segment, head.data() + header.e_phoff + at, sizeof segment);
    if (segment.p_type == PT_LOAD && file_offset >= segment.p_offset &&
        file_offset - segment.p_offset < segment.p_filesz)
      return segment.p_vaddr + (file_offset - segment.p_offset);
  }
  return std::nullopt;
}

bool DisassemblyReader::line(std::string_view text) {
  if (text.empty()) return true;
  if (is_title(text)) return lines_.empty();
  if (auto instruction = read_instruction(text)) {
    instruction->source = source_;
    lines_.push_back(std::move(*instruction));
    return lines_.size() < max_lines;
  }
  if (auto source = read_source(text)) source_ = std::move(*source);
  return true;
}

bool DisassemblyReader::add(std::string_view text) {
  text_.add(text, [this](std::string_view each) { is_complete_ = is_complete_ || !line(each); });
  return !is_complete_;
}

AnnotatedFunction annotate(const ProfileSummary& summary, std::size_t function) {
  AnnotatedFunction annotated{.function = function, .why_not = {}, .lines = {}};
  const auto& [name, module, self, total, begin] = summary.functions()[function];
  annotated.why_not = why_no_file(module);
  const auto first = summary.addresses().lower_bound({function, 0});
  const auto last = summary.addresses().lower_bound({function + 1, 0});
  if (!annotated.why_not.empty() || first == last) return annotated;
  if (begin == 0) {
    annotated.why_not = "no call chain shows where it is in its file.";
    return annotated;
  }
  const auto start = start_of(module, begin);
  if (!start) {
    annotated.why_not = describe(start.error());
    return annotated;
  }
  // In bytes: how much of the function is shown after the last sample, and how much at most in all.
  constexpr std::uint64_t behind = 128, max = 1U << 20U;
  auto lines = disassemble(module, *start, std::min(std::prev(last)->second.offset + behind, max));
  if (!lines || lines->empty()) {
    annotated.why_not = lines ? std::string{"objdump finds no code there."} : describe(lines.error());
    return annotated;
  }
  for (CodeLine& line : *lines) {
    line.offset = line.address - *start;
    const auto place = summary.addresses().find({function, line.offset});
    if (place == summary.addresses().end()) continue;
    line.samples = place->second.samples;
    line.weights = place->second.weights;
  }
  annotated.lines = near_samples(std::move(*lines));
  if (annotated.lines.empty()) annotated.why_not = "the file's code is not the code that was sampled.";
  return annotated;
}

}  // namespace vmm::tool
