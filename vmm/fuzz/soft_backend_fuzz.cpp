#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_ram.hpp"
#include "fakes/model_cpuid.hpp"
#include "fuzz_input.hpp"
#include "kvm/kick.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "processor/interrupt_unit.hpp"
#include "soft/soft_backend.hpp"
#include "soft/soft_board.hpp"
#include "vpmu/bits.hpp"

// Random code at a random privilege level, with changed page tables, descriptor tables and handlers, on a vCPU without
// KVM whose PMU counts: every run must return, whatever the guest does to itself, and a kick must end a run before any
// instruction. Then the vCPU is saved, and another continues from that state or from a changed one.

namespace {

using namespace vmm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

std::uint64_t ran = 0;

/// Pages of RAM, mapped at their own linear addresses. After them come the local APIC, a hole, and pages that are not
/// there.
enum Page : std::uint64_t {
  tables = 0,
  idt = 4,
  gdt = 5,
  stack = 6,
  ds_area = 7,
  buffer = 8,
  code = 10,
  start = 11,
  handlers = 12,
  data = 13,
  ram_pages = 16,
  apic = 16,
  hole = 17,
  nowhere = 18
};
constexpr std::uint64_t at(std::uint64_t page) { return page * vpmu::page_size; }
constexpr std::uint64_t ldt = at(gdt) + 0x400, tss = at(gdt) + 0x800, ports = 0x68, task_limit = 0xFF;
constexpr std::uint64_t max_ticks = 1000;
constexpr unsigned max_asked = 1500;

/// RAM that kicks the vCPU each time after so many accesses: runs end early, always at the same place.
class KickingRam final : public PhysicalMemory {
 public:
  bool read(vpmu::GuestPhysical from, std::span<std::byte> out) override {
    count();
    return ram_.read(from, out);
  }
  bool write(vpmu::GuestPhysical to, std::span<const std::byte> in) override {
    count();
    return ram_.write(to, in);
  }
  [[nodiscard]] bool contains(vpmu::GuestPhysical first, std::uint64_t bytes) const override {
    return ram_.contains(first, bytes);
  }
  [[nodiscard]] std::byte* host_page(vpmu::GuestPhysical page) override { return ram_.host_page(page); }
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical from, unsigned bytes) override {
    count();
    return ram_.read_word(from, bytes);
  }
  bool exchange_word(vpmu::GuestPhysical to, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    count();
    return ram_.exchange_word(to, bytes, expected, desired);
  }

  volatile std::uint8_t* kick{};
  unsigned asked{};

 private:
  static constexpr unsigned each = 500;
  void count() {
    if (++asked % each == 0 && kick != nullptr) *kick = kick_mark;
  }
  test::FakeRam ram_{at(ram_pages)};
};

class Guest {
 public:
  explicit Guest(Input& in) : memory_{ram_} {
    write_tables();
    write_setup(in);
    for (unsigned n = in.take<std::uint8_t>() % 8; n > 0; --n) {
      const auto where = in.take<std::uint16_t>();
      put(where % at(ram_pages) & ~7ULL, in.take<std::uint64_t>());
    }
    for (std::uint64_t where = at(code); !in.empty() && where < at(code + 1); ++where)
      ram_byte(where, in.take<std::uint8_t>());
    kvm_regs regs{};
    regs.rip = at(start);
    regs.rsp = at(stack) + 0x800;
    regs.rbx = at(data);
    regs.rflags = 2;
    make({.sregs = special(), .regs = regs, .compiling = {.after = (kinds_ & 4U) != 0 ? 2U : 0U}});
    vpmu::exec::VectorState vectors;
    if (has_features()) vectors.xcr0 = vpmu::exec::VectorState::components;
    require(backend_->set_vectors(vectors).has_value(), "vector registers");
  }

  /// Bytes that overwrite a part of a snapshot.
  struct Change {
    std::uint8_t what{}, bytes{};
    std::uint16_t where{};
    std::uint64_t value{};
  };
  /// False if the vCPU cannot be saved where it is, or if another cannot continue from the changed state.
  bool go_on_elsewhere(std::span<const Change> changes) {
    if (!comes_out()) return false;
    Bytes processor = backend_->save();
    auto pmu = vcpu_->save();
    require(pmu.has_value(), "a PMU can be saved");
    for (const Change& c : changes) {
      Bytes& part = c.what % 2 == 0 ? processor : *pmu;
      const std::size_t size = 1U << c.bytes % 4U, place = c.where % part.size();
      if (place + size <= part.size()) std::memcpy(part.data() + place, &c.value, size);
    }
    make({});
    const bool restored = backend_->restore(processor).has_value() && vcpu_->restore(*pmu).has_value();
    require(restored || !changes.empty(), "what was saved can be restored");
    if (restored) require(!backend_->save().empty(), "and saved again");
    return restored;
  }

  /// False if the guest has ended or used up its limits.
  bool run() {
    const auto exit = vcpu_->run();
    return exit && !std::holds_alternative<Shutdown>(*exit) && !std::holds_alternative<Hlt>(*exit) &&
           !std::holds_alternative<InternalError>(*exit) && !std::holds_alternative<TimeUp>(*exit) &&
           ram_.asked < max_asked && ticks() < max_ticks;
  }
  void kick() {
    const std::uint64_t before = *backend_->tsc();
    (void)comes_out();
    require(*backend_->tsc() - before <= 2, "and nothing runs before");
  }
  [[nodiscard]] std::uint64_t ticks() { return *backend_->tsc(); }

 private:
  bool comes_out() {
    *backend_->kick_target() = kick_mark;
    const auto exit = vcpu_->run();
    const bool came_out = exit && (std::holds_alternative<Interrupted>(*exit) || std::holds_alternative<TimeUp>(*exit));
    require(came_out || !exit, "a kick ends the run");
    *backend_->kick_target() = 0;
    return came_out;
  }

  /// Makes a vCPU on a board of its own.
  void make(SoftStart processor) {
    vcpu_.reset();
    backend_.reset();
    other_unit_.reset();
    other_time_.reset();
    board_.emplace();
    other_time_.emplace(board_->clock, SoftBackend::default_tsc_khz);
    other_unit_.emplace(other_, *other_time_, &board_->interrupts);
    backend_.emplace(memory_, has_features() ? newest() : CpuidTable{}, processor, &*board_);
    ram_.kick = backend_->kick_target();
    backend_->stop_after(max_ticks);
    static constexpr std::array<std::string_view, 4> sources{"exact", "exact", "step", "clock"};
    auto made = PmuVcpu::create(
        {.source = sources[kinds_ % sources.size()], .source_services = {.make_timer = backend_->timers()}}, *backend_,
        memory_, log_);
    require(made.has_value(), "a vCPU");
    vcpu_ = std::move(*made);
  }

  void put(std::uint64_t where, std::uint64_t word) {
    require(ram_.write(vpmu::GuestPhysical{where}, std::as_bytes(std::span{&word, 1})), "RAM");
  }
  void ram_byte(std::uint64_t where, std::uint8_t byte) {
    require(ram_.write(vpmu::GuestPhysical{where}, std::as_bytes(std::span{&byte, 1})), "RAM");
  }
  void store(std::uint64_t where, const std::vector<std::uint8_t>& bytes) {
    for (const std::uint8_t byte : bytes) ram_byte(where++, byte);
  }

  void write_tables() {
    constexpr std::uint64_t all = 7;
    for (unsigned level = 0; level < 3; ++level) put(at(tables + level), at(tables + level + 1) | all);
    for (std::uint64_t page = 0; page < ram_pages; ++page) put(at(tables + 3) + 8 * page, at(page) | all);
    put(at(tables + 3) + 8 * apic, 0xFEE0'0000 | all);
    put(at(tables + 3) + 8 * hole, 0xD000'0000 | all);
    put(at(gdt) + 0x10, 0x00AF'9B00'0000'FFFF);
    put(at(gdt) + 0x18, 0x00CF'9300'0000'FFFF);
    put(at(gdt) + 0x28, 0x00CF'F300'0000'FFFF);
    put(at(gdt) + 0x30, 0x00AF'FB00'0000'FFFF);
    put(at(gdt) + 0x38, 0x00CF'FB00'0000'FFFF);  // 32-bit code
    put(at(gdt) + 0x40, 0x00CF'9B00'0000'FFFF);
    put(at(gdt) + 0x48, 0x008F'9B00'0000'FFFF);  // 16-bit code
    put(at(gdt) + 0x50, 0x82ULL << 40 | ldt << 16 | 0x7F);
    put(ldt, 0x0040'F200'0000'0FFF);  // data, not accessed, with a limit
    put(ldt + 8, 0x00CF'FA00'0000'FFFF);
    put(tss + 4, at(stack) + 0xF00);
    put(tss + 0x60, ports << 48);
    store(at(handlers), X86("iretq"));
    store(at(handlers) + 0x10, X86("add $8, %rsp; iretq"));
    for (std::uint64_t vector = 0; vector < 256; ++vector) {
      const bool has_code = vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
      put(at(idt) + 16 * vector, (at(handlers) + (has_code ? 0x10 : 0)) | 0x10ULL << 16 | 0xEEULL << 40);
    }
    constexpr std::array<std::uint64_t, 9> area{
        at(buffer),     at(buffer),     at(buffer) + 0x300,     at(buffer) + 0x200,
        at(buffer + 1), at(buffer + 1), at(buffer + 1) + 0x800, at(buffer + 1) + 0x400,
        ~99ULL};
    for (std::size_t n = 0; n < area.size(); ++n) put(at(ds_area) + 8 * n, area[n]);
  }

  /// Guest code that writes MSRs of the PMU, then enters the random code at its privilege level.
  void write_setup(Input& in) {
    kinds_ = in.take<std::uint8_t>();
    std::uint64_t where = at(start);
    const auto write_msr = [&](std::uint32_t index, std::uint64_t value) {
      const auto low = [](std::uint64_t v, unsigned byte) { return static_cast<std::uint8_t>(v >> (8 * byte)); };
      store(where, {0xB9, low(index, 0), low(index, 1), low(index, 2), low(index, 3), 0xB8, low(value, 0),
                    low(value, 1), low(value, 2), low(value, 3), 0xBA, low(value, 4), low(value, 5), low(value, 6),
                    low(value, 7), 0x0F, 0x30});
      where += 17;
    };
    static constexpr std::array<std::uint32_t, 17> msrs{0x186, 0x187, 0x188, 0xC1,  0xC2,  0x38D, 0x309, 0x30A, 0x38F,
                                                        0x3F1, 0x600, 0x1D9, 0x834, 0x6E0, 0x390, 0x1A0, 0x830};
    write_msr(0xC1, ~std::uint64_t{in.take<std::uint8_t>()});
    write_msr(0x186, 0x53'00C0);
    write_msr(0x600, at(ds_area));
    for (unsigned n = in.take<std::uint8_t>() % 8; n > 0; --n) {
      const std::uint32_t index = msrs[in.take<std::uint8_t>() % msrs.size()];
      write_msr(index, in.take<std::uint64_t>());
    }
    write_msr(0x38F, 0x7'0000'000F);
    const bool is_user = (kinds_ & 8U) != 0;
    const std::uint64_t frame = at(stack) + 0x800;
    static constexpr std::array<std::uint64_t, 4> kernel_code{0x10, 0x10, 0x40, 0x48},
        user_code{0x33, 0x33, 0x3B, 0x3B};
    const unsigned mode = in.take<std::uint8_t>() % kernel_code.size();
    const std::array<std::uint64_t, 5> words{at(code), is_user ? user_code[mode] : kernel_code[mode],
                                             2 | std::uint64_t{kinds_ & 0x30U} << 4, at(stack) + 0x700,
                                             is_user ? 0x2BULL : 0x18ULL};
    for (std::size_t n = 0; n < words.size(); ++n) put(frame + 8 * n, words[n]);
    store(where, X86("iretq"));
  }

  /// Whether the vCPU has all features, with XSAVE enabled; otherwise it has those of every 64-bit CPU.
  [[nodiscard]] bool has_features() const { return (kinds_ & 0x80U) != 0; }
  static const CpuidTable& newest() {
    static const CpuidTable table = test::cpuid_of("skylake");
    return table;
  }
  [[nodiscard]] kvm_sregs special() const {
    const auto segment = [](std::uint16_t selector, std::uint8_t type) {
      kvm_segment s{};
      s.selector = selector;
      s.limit = ~0U;
      s.type = type;
      s.present = s.s = s.g = 1;
      (type == 0xB ? s.l : s.db) = 1;
      return s;
    };
    kvm_sregs s{};
    s.cr0 = vpmu::bit(31) | vpmu::bit(16) | vpmu::bit(0);
    s.cr3 = at(tables);
    s.cr4 = vpmu::bit(5) | vpmu::bit(9);
    if (has_features()) s.cr4 |= vpmu::bit(16) | vpmu::bit(18);  // FSGSBASE, OSXSAVE
    s.efer = vpmu::bit(0) | vpmu::bit(8) | vpmu::bit(10) | vpmu::bit(11);
    s.cs = segment(0x10, 0xB);
    s.ss = s.ds = s.es = s.fs = s.gs = segment(0x18, 0x3);
    s.gdt = {.base = at(gdt), .limit = 0x5F, .padding = {}};
    s.idt = {.base = at(idt), .limit = 0xFFF, .padding = {}};
    s.tr = {.base = tss, .limit = task_limit, .type = 0xB, .present = 1};
    s.ldt = {.base = ldt, .limit = 0x7F, .selector = 0x50, .type = 2, .present = 1};
    s.apic_base = (kinds_ & 0x40U) != 0 ? 0xFEE0'0900 : 0xFEE0'0D00;
    return s;
  }

  KickingRam ram_;
  LinearMemory memory_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  unsigned kinds_{};
  std::optional<SoftBoard> board_;
  /// Another processor, which receives interrupts but never runs.
  SoftState other_{.id = 1};
  std::optional<VirtualTime> other_time_;
  std::optional<InterruptUnit> other_unit_;
  std::optional<SoftBackend> backend_;
  std::unique_ptr<PmuVcpu> vcpu_;
};

}  // namespace

extern "C" std::uint64_t fuzz_work() { return ran; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in{data, size};
  const auto kicked_at = in.take<std::uint8_t>() % 16U;
  const auto runs = in.take<std::uint8_t>() % 100U;
  std::vector<Guest::Change> changes(in.take<std::uint8_t>() % 4U);
  for (Guest::Change& c : changes)
    c = {.what = in.take<std::uint8_t>(),
         .bytes = in.take<std::uint8_t>(),
         .where = in.take<std::uint16_t>(),
         .value = in.take<std::uint64_t>()};
  Guest guest{in};
  const auto run = [&](unsigned max) {
    for (unsigned n = 0; n < max; ++n) {
      if (n % 16 == kicked_at) guest.kick();
      if (!guest.run()) break;
    }
    ran += guest.ticks();
  };
  run(runs);
  if (guest.go_on_elsewhere(changes)) run(20);
  return 0;
}
