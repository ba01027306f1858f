#include "stat/recorded_run.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "exec/exec.hpp"
#include "files/input_file.hpp"
#include "kvm/fd.hpp"
#include "snapshot/checksum.hpp"
#include "stat/code_names.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

/// A larger file is known by its size alone: to read it would take longer than most commands.
constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 30U;
constexpr std::uint64_t max_symbols_bytes = std::uint64_t{1} << 28U;

/// Those that are the guest's own.
bool is_guests(std::string_view path) {
  constexpr std::array<std::string_view, 4> own{"/proc", "/sys", "/dev", "/run"};
  return std::ranges::any_of(own, [path](std::string_view directory) {
    return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
  });
}

/// Where a name is on this machine; empty: nowhere.
std::string host_path(const std::string& name, const FileRoot& root) {
  const fs::path inside = fs::path{root.directory} / name;  // an absolute name replaces all
  std::error_code error;
  if (is_guests(inside.lexically_normal().native())) return {};
  const fs::path path = fs::canonical(fs::path{root.root} / inside.relative_path(), error);
  return error || !fs::is_regular_file(path, error) ? std::string{} : path.string();
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  return read_whole_file(path, {.what = "a file that the command has opened", .advice = ""}, max_file_bytes);
}

}  // namespace

std::vector<StatFile> given_files(const FileNames& names, const FileRoot& root) {
  std::map<std::string, StatFile> files;
  std::vector<std::string> open{names.names.begin(), names.names.end()};
  while (!open.empty()) {
    const std::string path = host_path(open.back(), root);
    open.pop_back();
    if (path.empty() || files.contains(path)) continue;
    StatFile& file = files[path];
    file.path = path;
    std::error_code error;
    file.bytes = fs::file_size(path, error);
    const auto content = read_file(path);
    if (!content) continue;
    Checksum sum;
    sum.add(*content);
    file.checksum = fmt::format("{:016x}", sum.value());
    if (std::string interpreter = interpreter_of(*content); !interpreter.empty())
      open.push_back(std::move(interpreter));
  }
  std::vector<StatFile> all;
  for (auto& [path, file] : files) all.push_back(std::move(file));
  return all;
}

std::vector<StatFunction> functions_of(const TaskTotals& totals, std::span<const StatEvent> events,
                                       std::span<const StatFile> files, std::string_view kallsyms) {
  CodeNames names;
  for (const StatFile& file : files) {
    const auto content = read_file(file.path);
    if (!content) continue;
    const std::string debug = debug_file_of(*content);
    const auto symbols = debug.empty() || !fs::exists(debug) ? std::vector<std::byte>{}
                                                             : read_file(debug).value_or(std::vector<std::byte>{});
    names.add_file(file.path, *content, symbols);
  }
  names.add_kernel(kallsyms);
  std::vector<CodePlace> places;
  for (const TaskCode& code : totals.code) places.push_back(code.place);
  const auto found = names.find(places);
  std::map<CodeName, std::vector<std::uint64_t>> sums;
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto& sum = sums.try_emplace(found[i], totals.events.size()).first->second;
    for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += totals.code[i].events[n];
  }
  std::vector<StatFunction> functions;
  for (const auto& [name, counts] : sums) {
    StatFunction& function = functions.emplace_back(StatFunction{.name = name.function, .file = name.file});
    std::size_t n = 0;
    for (const StatEvent& event : events) {
      if (!std::holds_alternative<TaskEvent>(event.beside)) continue;
      if (totals.has_places[n] && counts[n] != 0) function.counts[event.name] = counts[n];
      ++n;
    }
  }
  return functions;
}

// The guest has no other devices than the one that was counted: else it would load its modules elsewhere.
Result<std::string> read_kernel_symbols(const ExecArguments& arguments, const Meanwhile& meanwhile) {
  const Fd output{::memfd_create("kallsyms", MFD_CLOEXEC)};
  if (!output.valid()) return host_error("making a file in memory for the kernel's symbols", errno);
  ExecArguments run = arguments;
  run.uncounted = "silent";
  run.command = {"cat", "/proc/kallsyms"};
  VMM_ASSIGN(const int code, in_child(
                                 [&run, &output] {
                                   if (::dup2(output.get(), STDOUT_FILENO) < 0) return int{exec_failed};
                                   return run_exec(run);
                                 },
                                 meanwhile));
  std::string symbols;
  std::array<char, 65536> part{};
  ssize_t got = code == 0 ? 1 : 0;
  while (got > 0 && symbols.size() < max_symbols_bytes) {
    got = ::pread(output.get(), part.data(), part.size(), static_cast<off_t>(symbols.size()));
    if (got > 0) symbols.append(part.data(), static_cast<std::size_t>(got));
  }
  if (code != 0 || got < 0)
    return host_error(fmt::format("the guest's kernel has no symbols: cat ended with {}", code), 0,
                      "see `vpmu exec -- head /proc/kallsyms`");
  return symbols;
}

}  // namespace vmm::tool
