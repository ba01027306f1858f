#include "tables/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "command_line.hpp"
#include "files/input_file.hpp"
#include "shared/output.hpp"

namespace vmm::tool {
namespace {

/// By vpmu::Slot. SDM 3B tables 18-23, 18-44, 18-55.
constexpr std::array<std::string_view, vpmu::slot_count> field_names{
    "rflags",        "rip",          "rax",         "rbx",     "rcx",         "rdx",           "rsi", "rdi", "rbp",
    "rsp",           "r8",           "r9",          "r10",     "r11",         "r12",           "r13", "r14", "r15",
    "global_status", "data_address", "data_source", "latency", "eventing_ip", "tx_abort_info", "tsc"};

/// In format 3, the field at 90H has the counters that the record is for, and not which counters had overflowed before.
std::string_view name_of(vpmu::PebsFormat format, unsigned slot) {
  const bool counters = format == vpmu::PebsFormat::format3 && slot == static_cast<unsigned>(vpmu::Slot::status);
  return counters ? "applicable_counters" : field_names[slot];
}

struct RecordsArguments {
  unsigned format{};
  std::string file;
  bool as_json{};
};

Result<void> list_file(const RecordsArguments& arguments) {
  VMM_ASSIGN(auto file, InputFile::open(arguments.file,
                                        {.what = "the buffer",
                                         .advice = "give a file with the bytes from the buffer's base to its index"}));
  return list_records(
      static_cast<vpmu::PebsFormat>(arguments.format), file.size(),
      [&file](std::span<std::byte> room) { return file.read(room); }, print,
      arguments.as_json ? RecordListing::json : RecordListing::text);
}

std::string describe(vpmu::PebsFormat format, std::uint64_t number, std::span<const std::byte> bytes) {
  const auto record = vpmu::decode(format, bytes);
  std::string text = fmt::format("{}:", number);
  for (unsigned slot = 0; slot < vpmu::slots_of(format); ++slot)
    text += fmt::format(" {} {:#x}", name_of(format, slot), record->value[slot]);
  return text + '\n';
}

std::string describe_as_json(vpmu::PebsFormat format, std::uint64_t number, std::span<const std::byte> bytes) {
  const auto record = vpmu::decode(format, bytes);
  nlohmann::ordered_json fields = {{"record", number}};
  for (unsigned slot = 0; slot < vpmu::slots_of(format); ++slot)
    fields[std::string{name_of(format, slot)}] = record->value[slot];
  return fields.dump() + '\n';
}

}  // namespace

Result<void> list_records(vpmu::PebsFormat format, std::uint64_t bytes, const ReadBytes& read,
                          const PrintText& print_text, RecordListing listing) {
  const auto describe_record = listing == RecordListing::json ? describe_as_json : describe;
  const std::size_t size = vpmu::record_size(format);
  const std::string advice =
      "give the bytes from the buffer's base to its index, and the format of the CPU (`vpmu models`)";
  if (bytes == 0 || bytes % size != 0)
    return usage_error(fmt::format("{} bytes are not a whole number of records of format {}, which have {} bytes each",
                                   bytes, static_cast<unsigned>(format), size),
                       advice);
  constexpr std::size_t records_at_once = 256;
  std::vector<std::byte> room(std::min<std::uint64_t>(bytes, records_at_once * size));
  for (std::uint64_t at = 0; at < bytes;) {
    const auto wanted = std::span{room}.first(std::min<std::uint64_t>(bytes - at, room.size()));
    VMM_ASSIGN(const std::size_t got, read(wanted));
    std::string text;
    for (std::size_t done = 0; done + size <= got; done += size)
      text += describe_record(format, (at + done) / size, wanted.subspan(done, size));
    if (!print_text(text)) return {};
    at += got;
    if (got < wanted.size())
      return usage_error(fmt::format("the buffer was shortened from {} to {} bytes while it was read", bytes, at),
                         advice);
  }
  return {};
}

void add_records(Command& app, int& exit_code) {
  auto arguments = std::make_shared<RecordsArguments>();
  Command records =
      app.add_command("records", "show the PEBS records of a file, such as a guest's DS buffer in a memory dump");
  records
      .add_option("--format", arguments->format,
                  "format of the records: 0 (Core 2) to 3 (Skylake); IA32_PERF_CAPABILITIES[11:8]")
      .required()
      .within(0U, 3U);
  records.add_option("file", arguments->file, "the buffer from its base to its index").required().takes_file();
  records.add_flag("--json", arguments->as_json, "as JSON, one object per line for each record");
  records.set_exit_codes(exit_codes_of_printing());
  records.add_example("vpmu records --format 1 FILE", "prints the records of a memory dump of a DS buffer");
  records.when_given([arguments, &exit_code] { exit_code = explain("vpmu records", list_file(*arguments)); });
}

}  // namespace vmm::tool
