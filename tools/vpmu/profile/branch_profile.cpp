#include "profile/branch_profile.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kvm/fd.hpp"
#include "profile/host_tool.hpp"
#include "stat/events.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t finished_init = 82, finished_round = 68;
/// LLVM's, the newest first. Debian's programs of a version are in its directory: their names in /usr/bin end with the
/// version, and perf2bolt knows what it shall do by its name.
constexpr unsigned newest_llvm = 30, oldest_llvm = 14;

/// struct perf_file_header, up to the section of data; and struct perf_event_header.
struct FileHeader {
  std::array<char, 8> magic;
  std::uint64_t size, attr_size, attrs_at, attrs_size, data_at, data_size;
};
struct RecordHeader {
  std::uint32_t type;
  std::uint16_t misc, size;
};

template <class T>
bool read_at(const Fd& file, std::uint64_t at, T& to) {
  return ::pread(file.get(), &to, sizeof to, static_cast<off_t>(at)) == static_cast<ssize_t>(sizeof to);
}

const vpmu::EventDesc* find_taken(const vpmu::GenerationDesc& generation) {
  const auto is = [](const vpmu::EventDesc& row) {
    const bool is_plain = row.code != 0 && row.cmask == 0 && !row.inv && !row.edge && row.msr_index == 0;
    return row.counts == vpmu::Counts::branches_taken && is_plain && row.pebs == vpmu::PebsAbility::yes;
  };
  const auto found = std::ranges::find_if(generation.events, is);
  return found == generation.events.end() ? nullptr : &*found;
}

std::vector<std::string> directories_of_path() {
  std::vector<std::string> all;
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end != 0) all.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return all;
}

/// The file of that name that can be executed; empty: there is none.
std::string find_program(const std::string& name, const std::vector<std::string>& directories) {
  if (name.find('/') != std::string::npos) return name;
  for (const std::string& directory : directories)
    if (const std::string path = fmt::format("{}/{}", directory, name); ::access(path.c_str(), X_OK) == 0) return path;
  return {};
}

std::string find_llvm(const std::string& name) {
  std::vector<std::string> directories = directories_of_path();
  for (unsigned version = newest_llvm; version >= oldest_llvm; --version)
    directories.push_back(fmt::format("/usr/lib/llvm-{}/bin", version));
  return find_program(name, directories);
}

}  // namespace

Result<std::vector<std::string>> branch_options(const vpmu::GenerationDesc& generation, std::string_view source,
                                                BranchesOf of, std::uint64_t period) {
  const vpmu::EventDesc* const row = find_taken(generation);
  if (row == nullptr)
    return usage_error(fmt::format("{} has no precise event of taken branches", generation.name),
                       "give a model from Sandy Bridge on, such as --model haswell");
  VMM_ASSIGN(const auto chosen, choose_events(std::string{row->name}, generation, source));
  if (!is_delivered(chosen.front().quality))
    return usage_error(fmt::format("the source {} does not deliver {}", source, row->name), "give --source exact");
  const char level = of == BranchesOf::user ? 'u' : 'k';
  return std::vector<std::string>{
      "--branch-filter", fmt::format("any,{}", level), "-e",
      fmt::format("cpu/event={:#x},umask={:#x},name=branches,period={}/{}pp", row->code, row->umask, period, level)};
}

Result<unsigned> make_readable(const std::string& path) {
  const Fd file{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
  if (!file.valid()) return host_error("opening perf.data", errno);
  const auto wrong = [](std::string_view why) {
    return host_error(fmt::format("perf.data is damaged: {}", why), 0, "do not trust what this guest reports");
  };
  FileHeader header{};
  constexpr std::array<char, 8> magic{'P', 'E', 'R', 'F', 'I', 'L', 'E', '2'};
  if (!read_at(file, 0, header) || header.magic != magic) return wrong("it does not begin as one");
  std::uint64_t at = header.data_at;
  if (header.data_size > ~at) return wrong("its section of records has no end");
  unsigned changed = 0;
  for (const std::uint64_t end = at + header.data_size; at < end;) {
    RecordHeader record{};
    if (!read_at(file, at, record) || record.size < sizeof record) return wrong("a record has no size");
    if (record.type == finished_init && record.size == sizeof record) {
      record.type = finished_round;
      if (::pwrite(file.get(), &record, sizeof record, static_cast<off_t>(at)) != static_cast<ssize_t>(sizeof record))
        return host_error("writing perf.data", errno);
      ++changed;
    }
    at += record.size;
  }
  return changed;
}

std::vector<MadeProfile> make_profiles(const std::string& directory, const std::string& program,
                                       std::vector<std::string>& notes) {
  std::vector<MadeProfile> made;
  const std::string binary = find_program(program, directories_of_path());
  if (binary.empty()) return made;
  const std::string data = fmt::format("{}/perf.data", directory), name = fs::path{binary}.filename().string();
  const auto make = [&](const std::string& tool, const std::string& suffix, auto command_of) {
    const std::string path = find_llvm(tool), result = fmt::format("{}/{}.{}", directory, name, suffix);
    std::error_code error;
    fs::remove(result, error);
    if (path.empty()) {
      notes.push_back(fmt::format("{} is not installed: no {}.", tool, result));
      return;
    }
    const std::vector<std::string> command = command_of(path, result);
    const auto end = run_tool(command, [](std::string_view) { return true; });
    if (end && end->exit_code == 0 && fs::exists(result, error)) {
      made.push_back({.path = result, .command = fmt::format("{}", fmt::join(command, " "))});
      return;
    }
    const std::string said = end ? end->said.substr(0, end->said.find('\n')) : describe(end.error());
    notes.push_back(fmt::format("{} has made no {}: {}", tool, result, printable(said)));
  };
  make("perf2bolt", "fdata", [&](const std::string& tool, const std::string& result) {
    return std::vector<std::string>{tool, "-p", data, "-o", result, binary};
  });
  make("llvm-profgen", "prof", [&](const std::string& tool, const std::string& result) {
    return std::vector<std::string>{tool, "--binary=" + binary, "--perfdata=" + data, "--output=" + result};
  });
  return made;
}

}  // namespace vmm::tool
