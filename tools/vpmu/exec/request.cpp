#include "exec/request.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdint>

// The guest's init compiles this file too: no fmt and no streams, which would make it many times as large.

namespace vmm::tool {
namespace {

constexpr std::string_view heading = "vpmu exec request 1";
constexpr std::size_t max_string_length = std::size_t{128} << 10;  // the longest that execve() takes
constexpr std::size_t max_file_bytes = std::size_t{4} << 20;       // and execve() takes about half of this in all
constexpr std::size_t max_tag_length = 36;                         // the size of the tag in a virtio-fs device
constexpr std::size_t max_hostname_length = 64;
constexpr std::size_t min_seed_length = 32, max_seed_length = 256;
constexpr std::uint64_t max_clock = INT64_MAX;  // what the kernel counts
constexpr std::size_t max_groups = 65536;
constexpr unsigned max_partitions = 128;
constexpr unsigned max_prefix = 30;  // leaves room for the guest and its gateway
constexpr mode_t all_modes = 0777;

Failure wrong(std::string_view key, const char* why) {
  return usage_error("exec request: " + std::string{key} + " " + why);
}

bool is_plain(char c) { return c > ' ' && c < 0x7F; }

Result<void> check_path(std::string_view key, const std::string& path) {
  if (!path.starts_with('/')) return wrong(key, "is no absolute path");
  return {};
}

/// A name that can be passed to the kernel unchanged, and is not a path.
Result<void> check_name(std::string_view key, const std::string& name, std::size_t max) {
  if (name.empty() || name.size() > max) return wrong(key, "is empty or too long");
  if (!std::ranges::all_of(name, is_plain)) return wrong(key, "has a character that no name has");
  if (name.find('/') != std::string::npos || name == "." || name == "..") return wrong(key, "is a path");
  return {};
}

Result<void> check_network(const ExecNetwork& network) {
  in_addr ignored{};
  for (const std::string& address : {network.address, network.gateway, network.name_server})
    if (::inet_pton(AF_INET, address.c_str(), &ignored) != 1) return wrong("network", "has an address that is none");
  if (network.prefix == 0 || network.prefix > max_prefix) return wrong("network", "has a prefix that is none");
  return {};
}

Result<void> check(const ExecRequest& request) {
  if (request.arguments.empty() || request.arguments.front().empty()) return wrong("argument", "names no command");
  VMM_TRY(check_path("directory", request.directory));
  VMM_TRY(check_name("root", request.root_tag, max_tag_length));
  for (const ExecMount& mount : request.mounts) {
    VMM_TRY(check_name("mount", mount.tag, max_tag_length));
    VMM_TRY(check_path("mount", mount.path));
  }
  if (request.root_disk) {
    VMM_TRY(check_name("root-disk", request.root_disk->device, NAME_MAX));
    if (request.root_disk->partition > max_partitions) return wrong("root-disk", "has a partition that is none");
  }
  if (request.network) VMM_TRY(check_network(*request.network));
  if (!request.hostname.empty()) VMM_TRY(check_name("hostname", request.hostname, max_hostname_length));
  if (request.clock && *request.clock > max_clock) return wrong("clock", "is too late");
  const std::size_t seed = request.random_seed.size();
  if (seed != 0 && (seed < min_seed_length || seed > max_seed_length)) return wrong("seed", "is too short or too long");
  for (const std::string& module : request.modules) VMM_TRY(check_name("module", module, NAME_MAX));
  if (request.groups.size() > max_groups) return wrong("groups", "are too many");
  if (request.file_mode_mask > all_modes) return wrong("umask", "is out of range");
  if (request.terminal && std::max(request.terminal->rows, request.terminal->columns) > widest_terminal)
    return wrong("terminal", "is too large");
  return {};
}

template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  return take_number(text, number) && text.empty();
}

bool read_terminal(std::string_view text, ExecRequest& request) {
  TerminalSize size;
  if (!take_number(text, size.rows) || !take(text, " ") || !read_number(text, size.columns)) return false;
  request.terminal = size;
  return true;
}

bool read_mount(std::string_view text, ExecRequest& request) {
  ExecMount mount{.access = text.starts_with("rw ") ? ExecAccess::read_write : ExecAccess::read_only};
  const bool known = take(text, "rw ") || take(text, "ro ");
  const std::size_t space = text.find(' ');
  if (!known || space == std::string_view::npos) return false;
  mount.tag = text.substr(0, space);
  mount.path = text.substr(space + 1);
  request.mounts.push_back(std::move(mount));
  return true;
}

/// Takes the text up to the next space, and drops the space; without a space, takes all.
std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

bool read_root_disk(std::string_view text, ExecRequest& request) {
  ExecRootDisk disk{.device = std::string{take_word(text)}};
  if (!read_number(text, disk.partition)) return false;
  request.root_disk = std::move(disk);
  return true;
}

bool read_network(std::string_view text, ExecRequest& request) {
  ExecNetwork network{.address = std::string{take_word(text)}};
  if (!read_number(take_word(text), network.prefix)) return false;
  network.gateway = take_word(text);
  network.name_server = text;
  request.network = std::move(network);
  return true;
}

bool read_group(std::string_view text, ExecRequest& request) {
  return request.groups.size() < max_groups && read_number(text, request.groups.emplace_back());
}

/// A field of the file: how it is read, and whether it may occur several times.
struct Field {
  std::string_view key;
  bool repeats;
  bool (*read)(std::string_view text, ExecRequest& request);
};

constexpr auto fields = std::to_array<Field>({
    {"argument", true, [](std::string_view t, ExecRequest& r) { return r.arguments.emplace_back(t), true; }},
    {"environment", true, [](std::string_view t, ExecRequest& r) { return r.environment.emplace_back(t), true; }},
    {"directory", false, [](std::string_view t, ExecRequest& r) { return r.directory = t, true; }},
    {"user", false, [](std::string_view t, ExecRequest& r) { return read_number(t, r.user); }},
    {"group", false, [](std::string_view t, ExecRequest& r) { return read_number(t, r.group); }},
    {"groups", true, read_group},
    {"umask", false, [](std::string_view t, ExecRequest& r) { return read_number(t, r.file_mode_mask); }},
    {"terminal", false, read_terminal},
    {"root", false, [](std::string_view t, ExecRequest& r) { return r.root_tag = t, true; }},
    {"root-disk", false, read_root_disk},
    {"served-by-user", false,
     [](std::string_view t, ExecRequest& r) { return r.file_server = FileServer::user, t.empty(); }},
    {"mount", true, read_mount},
    {"network", false, read_network},
    {"hostname", false, [](std::string_view t, ExecRequest& r) { return r.hostname = t, true; }},
    {"clock", false, [](std::string_view t, ExecRequest& r) { return read_number(t, r.clock.emplace()); }},
    {"seed", false, [](std::string_view t, ExecRequest& r) { return r.random_seed = t, true; }},
    {"module", true, [](std::string_view t, ExecRequest& r) { return r.modules.emplace_back(t), true; }},
});

Result<void> read_field(std::string_view line, ExecRequest& request, std::uint32_t& seen) {
  const std::string_view key = line.substr(0, line.find('='));
  const auto* const field = std::ranges::find(fields, key, &Field::key);
  if (field == fields.end() || key.size() == line.size()) return wrong("it", "has a field that is not known");
  const auto bit = std::uint32_t{1} << (field - fields.begin());
  if ((seen & bit) != 0 && !field->repeats) return wrong(key, "is there twice");
  seen |= bit;
  if (!field->read(line.substr(key.size() + 1), request)) return wrong(key, "cannot be read");
  return {};
}

/// Builds the file.
class Writer {
 public:
  void add(std::string_view key, std::string_view value) {
    if (value.size() >= max_string_length) refuse(key, "is too long");
    if (value.find('\0') != std::string_view::npos) refuse(key, "has a NUL in it");
    file_.append(key).append("=").append(value).push_back('\0');
    if (file_.size() > max_file_bytes) refuse(key, "is more than a request has room for");
  }
  void add(std::string_view key, std::uint64_t number) { add(key, std::to_string(number)); }
  void add_all(std::string_view key, const std::vector<std::string>& values) {
    for (const std::string& value : values) add(key, value);
  }
  Result<std::string> take() {
    if (failure_) return *failure_;
    return std::move(file_);
  }

 private:
  void refuse(std::string_view key, const char* why) {
    if (!failure_) failure_ = wrong(key, why);
  }
  std::string file_{std::string{heading} + '\0'};
  std::optional<Failure> failure_;
};

}  // namespace

Result<std::string> write_request(const ExecRequest& request) {
  VMM_TRY(check(request));
  Writer file;
  file.add_all("argument", request.arguments);
  file.add_all("environment", request.environment);
  file.add("directory", request.directory);
  file.add("user", request.user);
  file.add("group", request.group);
  for (const gid_t group : request.groups) file.add("groups", group);
  file.add("umask", request.file_mode_mask);
  if (request.terminal)
    file.add("terminal", std::to_string(request.terminal->rows) + " " + std::to_string(request.terminal->columns));
  file.add("root", request.root_tag);
  if (request.root_disk)
    file.add("root-disk", request.root_disk->device + " " + std::to_string(request.root_disk->partition));
  if (request.file_server == FileServer::user) file.add("served-by-user", "");
  for (const ExecMount& mount : request.mounts)
    file.add("mount", (mount.access == ExecAccess::read_write ? "rw " : "ro ") + mount.tag + " " + mount.path);
  if (const auto& network = request.network)
    file.add("network", network->address + " " + std::to_string(network->prefix) + " " + network->gateway + " " +
                            network->name_server);
  if (!request.hostname.empty()) file.add("hostname", request.hostname);
  if (request.clock) file.add("clock", *request.clock);
  if (!request.random_seed.empty()) file.add("seed", request.random_seed);
  file.add_all("module", request.modules);
  return file.take();
}

Result<ExecRequest> read_request(std::string_view file) {
  if (file.size() > max_file_bytes) return wrong("it", "is too long");
  if (!take(file, heading) || !take(file, std::string_view{"\0", 1})) return wrong("it", "is none of this version");
  ExecRequest request;
  for (std::uint32_t seen = 0; !file.empty();) {
    const std::size_t end = file.find('\0');
    if (end == std::string_view::npos) return wrong("it", "is cut off");
    if (end > 2 * max_string_length) return wrong("it", "has a field that is too long");
    VMM_TRY(read_field(file.substr(0, end), request, seen));
    file.remove_prefix(end + 1);
  }
  VMM_TRY(check(request));
  return request;
}

}  // namespace vmm::tool
