#include "exec/engine.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/interpret/ops.hpp"
#include "exec/memory/access.hpp"
#include "exec/observe/class_counts.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 2;
constexpr Counts without_end{unlimited, unlimited, unlimited, unlimited};

/// Whether they differ at most in CR3, and in what has no part in translations for reads. Those for writes depend on
/// CR0.WP, too. SDM 3A 4.6.1, 4.10.4.1.
bool same_paging(const PagingState& a, const PagingState& b) {
  return ((a.cr0 ^ b.cr0) & (x86::cr0::PE::mask | x86::cr0::PG::mask)) == 0 && a.cr4 == b.cr4 && a.efer == b.efer;
}

std::uint16_t pcid_of(const PagingState& paging) { return x86::pcid_of(paging.cr3, paging.cr4); }

}  // namespace

Engine::Engine(Ram& ram, Platform& platform, HostCode* host_code, Compiling compiling)
    : code_{host_code, platform}, jit_{host_code, compiling.after}, stepped_{op_stepped()} {
  core_.ram = &ram;
  core_.platform = &platform;
  core_.code = &code_.pages();
  core_.spaces = &code_.spaces();
  jit_.attach(core_);
  code_.doubt(core_);
  take_privilege();
}

// Translations, and what was found out about code, may no longer hold.
void Engine::begin_generation() {
  core_.large_pages = 0;
  flush_tlb(&core_);
  code_.doubt(core_);
  if (core_.tap != nullptr) core_.tap->observer->remapped();
}

/// What the TLBs lose, the engine forgets; and it goes to another address space. SDM 3A 4.10.4.1.
void Engine::forget(const TlbFlush& lost, const PagingState& next) {
  using enum TlbFlush::Of;
  const bool is_in_large = lost.of == page && (core_.large_pages & large_place(lost.linear)) != 0;
  // Somebody else may have changed control registers, too.
  const bool is_all = same_paging(core_.paging, next) && lost.pcid == pcid_of(next) &&
                      (lost.of != page || core_.paging.cr3 == next.cr3);
  if (lost.of == everything || !is_all) return begin_generation();
  if (lost.of == page) {
    if (is_in_large) {  // of which it may know many parts
      core_.large_pages = 0;
      flush_tlb(&core_);
      code_.spaces().forget_translations();
    }
    forget_page(lost.linear);
    code_.doubt_page(core_, lost.linear);
  } else {
    code_.enter_space(core_, next, lost.of == nothing);
  }
  if (core_.tap != nullptr) core_.tap->observer->remapped();
}

void Engine::load(const CpuState& state) {
  begin_generation();
  set_state(state);
  given_ = core_.left = without_end;
  core_.more = {};
}

void Engine::observe(Observer* observer) {
  if (observer == (core_.tap == nullptr ? nullptr : core_.tap->observer)) return;
  if (tap_ == nullptr) tap_ = std::make_unique<Tap>();
  tap_->observer = observer;
  core_.tap = observer == nullptr ? nullptr : tap_.get();
  // It is told which PCID is in use.
  if (observer != nullptr) observer->flushed({.of = TlbFlush::Of::nothing, .pcid = pcid_of(core_.paging)});
  core_.block = nullptr;
  begin_generation();
  take_privilege();
}

void Engine::count_classes(bool wanted) {
  if (wanted == core_.counts_classes) return;
  core_.counts_classes = wanted;
  core_.block = nullptr;
  begin_generation();
  take_privilege();
}

std::optional<TlbFlush> Engine::flush_before(const CpuState& state) const {
  const std::uint16_t pcid = pcid_of(state.paging);
  if (!same_paging(core_.paging, state.paging)) return TlbFlush{.of = TlbFlush::Of::everything, .pcid = pcid};
  if (core_.paging.cr3 == state.paging.cr3) return std::nullopt;
  return TlbFlush{.of = TlbFlush::Of::address_space, .pcid = pcid};
}

std::uint64_t Engine::observed() const { return tap_ == nullptr ? 0 : tap_->passed; }

std::uint64_t Engine::observed_before() {
  if (core_.tap == nullptr) return 0;
  tell_all(core_);
  // The instruction itself has been subtracted from what is left.
  return tap_->passed + static_cast<std::uint64_t>(tap_->begun_with - core_.left[count_instructions]) - 1;
}

void Engine::resume(const CpuState& state, const std::optional<TlbFlush>& flush) {
  if (flush) {
    if (core_.tap != nullptr) core_.tap->observer->flushed(*flush);
    lose({.flush = *flush, .cr3 = state.paging.cr3, .cr4 = core_.paging.cr4});
  }
  if (const auto lost = flush_before(state)) forget(*lost, state.paging);
  if (((core_.paging.cr0 ^ state.paging.cr0) & x86::cr0::WP::mask) != 0) forget_writes(&core_);
  set_state(state);
}

void Engine::lose(const LostByInstruction& lost) {
  PagingState next = core_.paging;
  next.cr3 = lost.cr3;
  next.cr4 = lost.cr4;
  forget(lost.flush, next);
  core_.paging = next;
  core_.block = nullptr;
}

void Engine::forget_page(std::uint64_t at) { exec::forget_page(&core_, at); }

void Engine::tell_of_writes_anew() {
  for (Tlb& tlb : core_.tlbs) tlb.clear_writes();
  ++core_.stretch;
}

void Engine::set_state(const CpuState& state) {
  if (core_.tap != nullptr)
    if (const auto lost = flush_before(state)) core_.tap->observer->flushed(*lost);
  std::ranges::copy(state.gpr, core_.r.begin());
  core_.r[zero] = 0;
  core_.r[fs_base] = state.fs_base;
  core_.r[gs_base] = state.gs_base;
  const bool narrow = state.mode != CodeMode::bits64;
  for (unsigned i = 0; i < state.segment_bases.size(); ++i) core_.r[es_base + i] = narrow ? state.segment_bases[i] : 0;
  core_.mode = state.mode;
  core_.stack_mask = low_bits(state.stack_is_32_bit ? 32 : 16);
  core_.rip = narrow ? (state.rip + core_.r[cs_base]) & low_bits(32) : state.rip;
  core_.flags.set_bits(state.rflags);
  core_.other_flags = state.rflags & ~x86::rflags::status;
  core_.cr2 = state.cr2;
  core_.paging = state.paging;
  core_.paging.alignment_check = x86::rflags::AC::test(state.rflags);
  core_.cpl = state.cpl;
  core_.checks_accesses = state.checks_accesses;
  core_.block = nullptr;
  core_.vectors = nullptr;
  core_.compiled.forget_vectors();
  take_privilege();
}

// Staleness is per privilege: code that the kernel may run need not be code that a program may run.
void Engine::take_privilege() {
  core_.is_stale = core_.stale[code_privilege(rights_of(core_), core_.mode)].data();
  choose_tlb(&core_);
}

CpuState Engine::state() const {
  CpuState s;
  std::copy_n(core_.r.begin(), s.gpr.size(), s.gpr.begin());
  s.fs_base = core_.r[fs_base];
  s.gs_base = core_.r[gs_base];
  std::copy_n(core_.r.begin() + es_base, s.segment_bases.size(), s.segment_bases.begin());
  s.mode = core_.mode;
  s.stack_is_32_bit = core_.stack_mask != low_bits(16);
  s.rip = core_.mode == CodeMode::bits64 ? core_.rip : (core_.rip - core_.r[cs_base]) & low_bits(32);
  s.rflags = core_.other_flags | core_.flags.bits();
  s.cr2 = core_.cr2;
  s.paging = core_.paging;
  s.cpl = core_.cpl;
  s.checks_accesses = core_.checks_accesses;
  return s;
}

Passed Engine::passed() const {
  Counts n = given_ - core_.left;
  n[count_instructions] -= core_.aside;
  const auto at = [&](CountIndex i) { return static_cast<std::uint64_t>(n[i]); };
  return {.instructions = at(count_instructions),
          .branches = at(count_branches),
          .loads = at(count_loads),
          .stores = at(count_stores),
          .more_loads = core_.more.loads,
          .more_stores = core_.more.stores};
}

std::span<const std::byte> Engine::next_code() const {
  const Block* const block = CodeCache::known(core_);
  if (block == nullptr) return {};
  const Op& first = block->ops()[0];
  return block->code().subspan(first.offset, first.length);
}

/// Links `from` to the block for next time. If `from` is the block's old version, which did not run because its page
/// has changed, removes the links to it.
void Engine::came_from(Block& from, Block& block) {
  const std::uint64_t rip = core_.r[block_rip];
  if (core_.is_fresh(from, rip)) {
    for (unsigned way = 0; way < 2; ++way)
      if (from.distance[way] == static_cast<std::int64_t>(core_.rip - rip)) from.next[way] = &block;
  } else if (&from != &block && core_.rip == rip) {
    jit_.unlink(core_, from);
  }
}

void Engine::leave(const Counts& left) {
  given_ += left - core_.left;
  core_.left = left;
}

/// The first op of a block, and one that stops after it.
struct Engine::Alone {
  explicit Alone(const Block& block, Run stepped)
      : ops{block.ops()[0],
            Op{.run = stepped, .offset = static_cast<std::uint16_t>(block.ops()[0].offset + block.ops()[0].length)}} {
    ops[0].run = block.first_alone;
  }
  std::array<Op, 2> ops;
};

/// Runs `alone`, made of core_.block. Core::left is 0, so that no block begins after it.
inline Stop Engine::step(Alone& alone) {
  core_.stepping = true;
  core_.stop = Stop::none;
  core_.r[block_rip] = core_.rip;
  run_from(alone.ops.data(), &core_);
  core_.stepping = core_.wrote_code = false;
  core_.block = nullptr;
  return core_.stop;
}

// A faster way to the same result for one instruction. Such runs follow each other, and each update of Core::left would
// wait for the one before: so it stays 0, and what retires is added to given_.
Stop Engine::run_one() {
  if (core_.left[count_instructions] != 0) leave(Counts{});
  Block* const block = CodeCache::known(core_);
  core_.block = block != nullptr ? block : next_block();
  if (core_.block == nullptr) return core_.stop;
  const Block& running = *core_.block;
  Alone alone{running, stepped_};
  core_.aside = -1;
  const Stop stop = step(alone);
  core_.aside = 0;
  if (stop != Stop::none) return stop;
  given_ += counts_of(alone.ops[0]);
  if (core_.counts_classes) count_first_class(core_, running);
  return Stop::budget;
}

/// Runs one instruction of core_.block, in a run of more.
Stop Engine::step_of_many() {
  const Counts left = core_.left;
  if (core_.tap != nullptr) begin_alone(core_, left[count_instructions]);
  const Block& running = *core_.block;
  Alone alone{running, stepped_};
  core_.left = Counts{};
  const Stop stop = step(alone);
  core_.left = stop == Stop::none ? left - counts_of(alone.ops[0]) : left;
  if (stop == Stop::none && core_.counts_classes) count_first_class(core_, running);
  return stop;
}

Block* Engine::next_block() {
  Block* const from = core_.block;
  Block* const block = code_.find(core_);
  if (block != nullptr && from != nullptr && core_.block == from) came_from(*from, *block);
  return block;
}

Stop Engine::run(std::uint64_t instructions) {
  asked_to_stop_ = false;
  core_.missing.reset();
  core_.raised = 0;
  if (core_.checks_accesses) return Stop::unsupported;
  if (instructions == 1 && core_.tap == nullptr) return run_one();
  if (core_.left[count_instructions] == 0) leave(without_end);
  // Puts aside what is left beyond this run, so that no block begins that would exceed the run.
  core_.aside =
      core_.left[count_instructions] - static_cast<std::int64_t>(std::min<std::uint64_t>(instructions, unlimited));
  core_.left -= only_instructions(core_.aside);
  if (core_.tap != nullptr) begin_run(core_);
  Stop stop = Stop::none;
  for (bool has_begun = false; stop == Stop::none; has_begun = true) {
    if (core_.tap != nullptr) continue_run(core_);
    if (core_.left[count_instructions] == 0 || asked_to_stop_ || (has_begun && core_.kick.is_set())) {
      stop = Stop::budget;
      break;
    }
    Block* const block = next_block();
    if (block == nullptr) {
      stop = core_.stop;
      break;
    }
    core_.stop = Stop::none;
    if (block->counts[count_instructions] > core_.left[count_instructions]) {
      core_.block = block;
      stop = step_of_many();
      continue;
    }
    core_.left -= block->counts;
    core_.block = block;
    core_.r[block_rip] = core_.rip;
    run_from(block->ops().data(), &core_);
    stop = core_.stop;
    if (stop == Stop::alone) {
      Block* const here = code_.find(core_);
      core_.block = here;
      stop = here == nullptr ? core_.stop : step_of_many();
    }
  }
  if (core_.tap != nullptr) end_run(core_);
  core_.left += only_instructions(std::exchange(core_.aside, 0));
  return stop;
}

}  // namespace vpmu::exec
