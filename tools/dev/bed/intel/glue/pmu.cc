// vpmu::core as the PMU of the CPU that Bochs emulates, and vpmu::uarch as its caches, TLBs and branch prediction.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "guest_memory.hpp"
#include "options.hpp"
#include "uarch/processor_model.hpp"
#include "uarch/profiles.hpp"
#include "vpmu/cpuid.hpp"
#include "vpmu/pmu.hpp"

#include "bochs.h"
#include "cpu/cpu.h"
// These need what is above.
#include "cpu/apic.h"
#include "cpu/cpuid.h"

namespace bed {

bool watching = false;

namespace {

BX_CPU_C* cpu() { return BX_CPU(0); }

/// Instructions until a delayed PMI; set if the options ask for a skid.
std::optional<unsigned> pmi_due;

class Surroundings final : public vpmu::GuestEnv {
 public:
  vpmu::AccessResult read_linear(vpmu::GuestLinear at, std::span<std::byte> out) override {
    return read_guest(at.value(), out);
  }
  vpmu::AccessResult write_linear(vpmu::GuestLinear at, std::span<const std::byte> in) override {
    return write_guest(at.value(), in);
  }
  vpmu::AccessResult probe_linear(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind) override {
    return probe_guest(at.value(), size);
  }
  std::uint64_t tsc() override { return cpu()->get_TSC(); }
  void request_pmi() override {
    ++pmis;
    if (options().skid == 0)
      cpu()->lapic->deliver_pmi();
    else
      pmi_due = options().random() % (options().skid + 1);
  }

  std::uint64_t pmis{};
};

Surroundings surroundings;
std::optional<vpmu::Pmu> pmu;
std::unique_ptr<vpmu::uarch::ProcessorModel> model;
bool modelling = false;  ///< A counter needs the model of caches and predictors.
std::uint64_t retired = 0, retired_in_bulk = 0;

/// The current instruction.
struct {
  bool open;  ///< It began while instructions were watched.
  bool in_guest;
  std::uint8_t cpl;
  std::uint64_t ip;
  std::uint64_t begun_at;  ///< Bochs's count of instructions and iterations at its start.
  std::uint64_t carried;   ///< Cycles of a repeated instruction that was interrupted and resumes.
  vpmu::Retirement retirement;
} now;

/// Instructions that the PMU does not know of yet. As long as no counter can overflow, the PMU needs only their
/// sums.
class Bulk {
 public:
  void follow(const vpmu::CountPlan& plan) {
    plan_ = plan;
    budget_ = 0;
    if (plan.branches_wanted) return;
    std::uint64_t nearest = ~std::uint64_t{0};
    for (const vpmu::PlanEntry& e : plan.active()) {
      if (e.per_cycle || e.armed || !is_sum(e.counts)) return;
      nearest = std::min(nearest, e.distance);
    }
    budget_ = nearest;
  }
  /// False: the instruction has to be retired by itself, after the sums. `cycles` is at least 1; no event counts more.
  bool take(unsigned cpl, std::uint64_t cycles, const vpmu::BranchOutcome& branch) {
    if (cycles >= budget_) return false;
    budget_ -= cycles;
    Sums& s = sums_[cpl == 0 ? 0 : 1];
    ++s.instructions;
    s.cycles += cycles;
    s.branches += branch.kind != vpmu::BranchKind::none ? 1 : 0;
    s.conditional += branch.kind == vpmu::BranchKind::conditional ? 1 : 0;
    s.taken += branch.taken ? 1 : 0;
    return true;
  }
  void settle() {
    if (sums_[0].instructions + sums_[1].instructions == 0) return;
    retired_in_bulk += sums_[0].instructions + sums_[1].instructions;
    vpmu::CountDeltas deltas;
    for (const vpmu::PlanEntry& e : plan_.active())
      deltas[e.counter] = (e.os ? sums_[0].of(e.counts) : 0) + (e.usr ? sums_[1].of(e.counts) : 0);
    sums_ = {};
    pmu->settle(deltas, surroundings);
    follow(pmu->plan());
  }

 private:
  struct Sums {
    std::uint64_t instructions{}, cycles{}, branches{}, conditional{}, taken{};

    [[nodiscard]] std::uint64_t of(vpmu::Counts counts) const {
      switch (counts) {
        case vpmu::Counts::instructions: return instructions;
        case vpmu::Counts::cycles:
        case vpmu::Counts::ref_cycles: return cycles;
        case vpmu::Counts::branches: return branches;
        case vpmu::Counts::branches_conditional: return conditional;
        case vpmu::Counts::branches_taken: return taken;
        default: return 0;
      }
    }
  };
  static bool is_sum(vpmu::Counts counts) {
    using enum vpmu::Counts;
    return counts == instructions || counts == cycles || counts == ref_cycles || counts == branches ||
           counts == branches_conditional || counts == branches_taken;
  }

  vpmu::CountPlan plan_{};
  std::array<Sums, 2> sums_{};  ///< Of ring 0, and of the others.
  std::uint64_t budget_{};      ///< Cycles until a counter may overflow.
};

Bulk bulk;

void watch_what_is_wanted() {
  if (!pmu->take_replan()) return;
  const vpmu::CountPlan plan = pmu->plan();
  bulk.follow(plan);
  modelling = model && (options().warm || vpmu::uarch::ProcessorModel::is_wanted(plan));
  if (model) model->follow(plan);
  watching = plan.size != 0 || plan.branches_wanted || pmi_due || (model && options().warm);
  if (!watching) now.open = false;
}

std::uint64_t instruction_pointer() {
  return cpu()->get_rip() + (cpu()->long64_mode() ? 0 : cpu()->get_segment_base(BX_SEG_REG_CS));
}

/// Ticks of the bus clock, which is a 24th of the CPU's.
std::uint32_t bus_ticks(std::uint64_t cycles) {
  constexpr std::uint64_t ratio = 24;
  static std::uint64_t rest = 0;
  rest += cycles;
  const std::uint64_t ticks = rest / ratio;
  rest %= ratio;
  return static_cast<std::uint32_t>(ticks);
}

vpmu::PebsRegisters registers(std::uint64_t next) {
  using enum vpmu::Slot;
  // In the order of register numbers in instructions.
  constexpr std::array general{rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15};
  vpmu::PebsRegisters out;
  for (unsigned i = 0; i < general.size(); ++i) out[general[i]] = cpu()->get_reg64(i);
  out[rflags] = cpu()->read_eflags();
  out[rip] = next;
  return out;
}

void deliver_late_pmi() {
  if (*pmi_due != 0) {
    --*pmi_due;
    return;
  }
  pmi_due.reset();
  cpu()->lapic->deliver_pmi();
  watching = watching && (pmu->plan().size != 0 || pmu->plan().branches_wanted || (model && options().warm));
}

void model_instruction(vpmu::Retirement& r, unsigned length) {
  if (r.has_load || r.has_store) model->retired(r.has_load, r.has_store);
  if (r.branch.kind != vpmu::BranchKind::none)
    model->branched({.at = now.ip,
                     .fall_through = now.ip + length,
                     .to = r.next_ip.value(),
                     .kind = r.branch.kind,
                     .taken = r.branch.taken});
  model->complete(r);
}

void retire(std::uint64_t next, std::uint64_t cycles, unsigned length) {
  vpmu::Retirement& r = now.retirement;
  r.ip = vpmu::GuestLinear{now.ip};
  r.next_ip = vpmu::GuestLinear{next};
  r.cpl = now.cpl;
  r.long_mode = cpu()->long_mode();
  r.cycles = r.ref_cycles = cycles;
  r.bus_cycles = bus_ticks(cycles);
  r.branch.target_cpl = static_cast<std::uint8_t>(cpu()->get_cpl());
  r.branch.to_next = next == now.ip + length;
  if (modelling) model_instruction(r, length);
  vpmu::PebsRegisters saved;
  r.registers = nullptr;
  if (pmu->state().pebs_enable != 0) {
    saved = registers(next);
    r.registers = &saved;
  }
  bulk.settle();
  pmu->retire(r, surroundings);
  bulk.follow(pmu->plan());
}

}  // namespace

void initialize() {
  const auto generation = vpmu::find_generation(options().model);
  if (!generation) {
    std::fprintf(stderr, "bed: unknown model %s\n", options().model.c_str());
    std::exit(1);
  }
  if (const auto* const profile = vpmu::uarch::find_profile(options().model))
    model = std::make_unique<vpmu::uarch::ProcessorModel>(*profile);
  pmu.emplace(vpmu::PmuConfig{.generation = *generation});
}

void reset(unsigned type) {
  connect_channels();
  if (type == BX_RESET_HARDWARE)
    pmu->reset();
  else
    pmu->init();
  watch_what_is_wanted();
}

void report() {
  if (!pmu) return;
  std::fprintf(stderr,
               "bed: %" PRIu64 " instructions retired while something counted, %" PRIu64 " of them in bulk; %" PRIu64
               " PMIs, %" PRIu64 " PEBS records\n",
               retired, retired_in_bulk, surroundings.pmis, pmu->statistics().records_written);
}

/// The physical address of the code line fetched last; an impossible one forces a new fetch.
std::uint64_t code_line = ~std::uint64_t{0};

/// Fetches code by lines. If an instruction spans two lines, the second is fetched with the next instruction.
void fetch() {
  constexpr std::uint64_t line = 64, page = 4096;  // Bochs does not tell the page's size
  const std::uint64_t physical = cpu()->pAddrFetchPage | (now.ip & (page - 1));
  if (physical / line == code_line) return;
  code_line = physical / line;
  model->fetched({.linear = now.ip, .physical = physical, .page_bytes = page});
}

void before_instruction() {
  if (modelling && now.open) model->abandoned();
  now.open = true;
  now.in_guest = cpu()->in_vmx_guest;
  now.cpl = static_cast<std::uint8_t>(cpu()->get_cpl());
  now.ip = instruction_pointer();
  now.begun_at = cpu()->get_icount();
  now.retirement.has_load = now.retirement.has_store = false;
  now.retirement.branch = {};
  if (!modelling) return;
  model->begin_instruction();
  fetch();
}

void conditional_branch(bool taken) { now.retirement.branch = {.kind = vpmu::BranchKind::conditional, .taken = taken}; }

void near_branch(unsigned what) {
  using enum vpmu::BranchKind;
  constexpr std::array kinds{near_rel_jmp, near_ind_jmp, near_rel_call, near_ind_call, near_ret};
  const unsigned number = what - BX_INSTR_IS_JMP;
  now.retirement.branch = {.kind = number < kinds.size() ? kinds[number] : far, .taken = true};
}

void far_branch() { now.retirement.branch = {.kind = vpmu::BranchKind::far, .taken = true}; }

void access(unsigned long long linear, unsigned long long physical, unsigned bytes, unsigned how) {
  if (how == BX_EXECUTE) return;
  constexpr unsigned line = 64;
  constexpr std::uint64_t page = 4096;  // Bochs does not tell the page's size
  vpmu::Retirement& r = now.retirement;
  const bool loads = how != BX_WRITE, stores = how != BX_READ;
  const vpmu::MemAccess seen{.address = vpmu::GuestLinear{linear},
                             .level = vpmu::HitLevel::l1,
                             .latency = 4,
                             .split = linear % line + bytes > line};
  if (loads) r.load = seen;
  if (stores) r.store = seen;
  r.has_load |= loads;
  r.has_store |= stores;
  if (!modelling) return;
  const auto tell = [&](bool store) {
    model->accessed({.linear = linear,
                     .physical = physical,
                     .page_bytes = page,
                     .bytes = static_cast<std::uint16_t>(bytes),
                     .store = store},
                    retired);
  };
  if (loads) tell(false);
  if (stores) tell(true);
}

void flush_line(unsigned long long linear, unsigned long long physical) {
  code_line = ~std::uint64_t{0};
  if (modelling) model->flushed_line({.linear = linear, .physical = physical});
}

void flush_caches() {
  code_line = ~std::uint64_t{0};
  if (modelling) model->caches_flushed();
}

void flush_translations() {
  code_line = ~std::uint64_t{0};
  if (modelling) model->flushed({});  // everything: Bochs does not tell what it keeps
}

void after_instruction(bxInstruction_c* instruction) {
  if (!now.open) return;
  now.open = false;
  if (cpu()->in_vmx_guest != now.in_guest) return;  // VMLAUNCH and VMRESUME are neither side's
  const std::uint64_t next = instruction_pointer();
  const std::uint64_t iterations = cpu()->get_icount() - now.begun_at + 1;
  const vpmu::BranchOutcome& branch = now.retirement.branch;
  if (instruction->repUsedL() != 0 && next == now.ip && branch.kind == vpmu::BranchKind::none) {  // it will resume
    now.carried += iterations;
    return;
  }
  const std::uint64_t cycles = (iterations + now.carried) * options().cycles_at(now.ip);
  now.carried = 0;
  ++retired;
  if (!modelling && bulk.take(now.cpl, cycles, branch)) {
    if (pmi_due) deliver_late_pmi();
    return;
  }
  retire(next, cycles, instruction->ilen());
  if (pmi_due) deliver_late_pmi();
  watch_what_is_wanted();
}

Answer rdmsr(unsigned index, unsigned long long& value) {
  constexpr unsigned bios_sign_id = 0x8B;
  if (index == bios_sign_id) {  // a microcode revision without the errata that Linux works around
    value = 0xF0ULL << 32;
    return Answer::done;
  }
  bulk.settle();
  const vpmu::MsrReadResult read = pmu->rdmsr(vpmu::MsrIndex{index});
  if (read.status == vpmu::MsrStatus::unknown) return Answer::not_the_pmus;
  value = read.value;
  return read.status == vpmu::MsrStatus::ok ? Answer::done : Answer::fault;
}

Answer wrmsr(unsigned index, unsigned long long value) {
  bulk.settle();
  const vpmu::MsrStatus status = pmu->wrmsr(vpmu::MsrIndex{index}, value);
  if (status == vpmu::MsrStatus::unknown) return Answer::not_the_pmus;
  watch_what_is_wanted();
  return status == vpmu::MsrStatus::ok ? Answer::done : Answer::fault;
}

bool rdpmc(unsigned ecx, unsigned cpl, bool cr4_pce, unsigned long long& value) {
  bulk.settle();
  const auto read = pmu->rdpmc(ecx, cpl, cr4_pce);
  if (read) value = *read;
  return read.has_value();
}

void cpuid(unsigned leaf, cpuid_function_t& answer) {
  if (leaf == 1) {
    answer.eax = options().signature;
    answer.ecx |= vpmu::cpuid_01h_ecx;
    answer.edx |= vpmu::cpuid_01h_edx;
  }
  if (leaf == 0xA) {
    const vpmu::CpuidRegisters of_pmu = vpmu::cpuid_0ah(pmu->generation(), pmu->gp_counters());
    answer.eax = of_pmu.eax;
    answer.ebx = of_pmu.ebx;
    answer.ecx = of_pmu.ecx;
    answer.edx = of_pmu.edx;
  }
}

void debug_exception() {
  bulk.settle();
  pmu->on_debug_exception();
}

}  // namespace bed
