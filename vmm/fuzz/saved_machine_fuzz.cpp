#include <fcntl.h>

#include <array>
#include <mutex>
#include <semaphore>
#include <string>
#include <string_view>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/code_file.hpp"
#include "machine/machine.hpp"
#include "model/own_part.hpp"
#include "snapshot_sections.hpp"

// A machine without KVM is saved in mid-run: two processors, timers, a pending interrupt, counters. The input changes
// the file, from which a machine is then made: the file must be refused, or the machine must run and come to an end.

namespace {

using namespace vmm;
using namespace vmm::fuzz;

constexpr std::uint64_t saved_after = 200, runs_for = 1000;
std::uint64_t machines = 0;

/// Starts the other processor, which loops at 0x10000, and the APIC's timer; then counts, up to an overflow.
std::vector<std::uint8_t> guest() {
  std::vector<std::uint8_t> code =
      X86("mov $0x10000, %edi; "
          "movw $0xFEEB, (%rdi); "  // 1: jmp 1b
          "mov $0xFEE00300, %edi; "
          "movl $0x1FF, -0x210(%rdi); "    // SVR: enabled
          "movl $0x1000000, 0x10(%rdi); "  // ICR: to 1,
          "movl $0x4500, (%rdi); "         // INIT,
          "movl $0x4610, (%rdi); "         // start-up at 0x10000
          "movl $0x20030, 0x20(%rdi); "    // LVT timer: periodic, vector 0x30
          "movl $0x40, 0x80(%rdi)");       // initial count
  code.insert(code.end(), test::pmi_that_waits.begin(), test::pmi_that_waits.end());
  return code;
}

Bytes contents_of(int fd) {
  Bytes bytes(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)));
  require(::pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "the file can be read");
  return bytes;
}

Bytes save_machine(TimeModel time, std::string_view set) {
  const test::CodeFile kernel{guest()};
  Log log;
  std::binary_semaphore time_up{0};
  std::once_flag first;  // of the processors
  vpmu::uarch::ProfileChanges changes;
  require(set.empty() || add_changes(set, changes), "they are good ones");
  const auto machine = Machine::create({.kernel = kernel.path(),
                                        .memory_bytes = GuestMemory::min_bytes,
                                        .cpus = 2,
                                        .source = "exact",
                                        .source_options = {.time = time, .changes = changes},
                                        .accel = Accel::soft,
                                        .max_ticks = saved_after,
                                        .schedule = Schedule{.turn = 20}},
                                       {.time_up = [&] { std::call_once(first, [&] { time_up.release(); }); }}, log);
  require(machine.has_value(), "the machine can be made");
  (*machine)->start();
  time_up.acquire();
  const Fd file{::memfd_create("saved", MFD_CLOEXEC)};
  auto whole = given_snapshot_file(Fd{::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)});
  require(whole && (*machine)->snapshot(std::move(*whole), Machine::AfterSnapshot::stop), "it can be saved");
  (void)(*machine)->wait();
  return contents_of(file.get());
}

Sections sections_of(const Bytes& file) {
  Sections sections;
  ByteReader in{std::span{file}.subspan(2 * sizeof(std::uint64_t))};
  while (!in.done()) {
    const auto name = in.get<SectionName>();
    const auto size = in.get<std::uint64_t>();
    Section section{.name = name.data()};
    for (std::uint64_t n = 0; n < size; ++n) section.contents.push_back(in.get<std::byte>());
    (void)in.get<std::uint64_t>();
    sections.push_back(std::move(section));
  }
  return sections;
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return machines; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array good{sections_of(save_machine(TimeModel::instructions, "")),
                               sections_of(save_machine(TimeModel::pipeline, "l3=1M,dram=300"))};
  Input input{data, size};
  Sections sections = good[size % good.size()];
  const unsigned changes = input.take<std::uint8_t>() % 4;
  for (unsigned n = 0; n < changes; ++n) change(input, sections);
  const MemoryFile written{file_of(sections)};
  Log log;
  const auto machine = Machine::create(
      {.restore = MemoryFile::path(), .source = "exact", .accel = Accel::soft, .max_ticks = saved_after + runs_for}, {},
      log);
  require(machine.has_value() || changes != 0, "what was saved goes on");
  if (!machine) {
    require(describe(machine.error()).find('\n') == std::string::npos, "a refusal is one line");
    return 0;
  }
  (*machine)->start();
  (void)(*machine)->wait();
  ++machines;
  return 0;
}
