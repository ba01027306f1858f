#include "exec/compile/jit.hpp"

#include <vector>

#include "exec/compile/host_registers.hpp"
#include "exec/decode/guest_form.hpp"
#include "exec/host/host_flags.hpp"
#include "exec/host/host_form.hpp"
#include "exec/interpret/ops.hpp"
#include "exec/observe/class_counts.hpp"
#include "exec/observe/tap.hpp"
#include "exec/state/dispatch.hpp"
#include "exec/state/vector_state.hpp"

namespace vpmu::exec {
namespace {

constexpr unsigned of_bit = 11, low_flags = 0xD5;

std::uint16_t packed(std::uint64_t flags) {
  return static_cast<std::uint16_t>((flags & low_flags) << 8 | (flags >> of_bit & 1));
}
std::uint64_t unpacked(std::uint16_t flags) { return (flags >> 8U & low_flags) | (flags & 1ULL) << of_bit; }

// The op after one that runs alone: ends the chain.
void went_on(const Op* /*op*/, Core* c) { c->compiled.went_on = true; }

/// Called by compiled code, which has stored all registers. False: the op gave up.
bool run_op(Core* c, const Site* site) {
  c->flags.set_bits(unpacked(c->compiled.flags));  // settled: no op needs materialize_first()
  c->block = site->block;
  c->r[block_rip] = c->rip_of(*site->block);
  c->stop = Stop::none;
  if (c->tap != nullptr) begin_alone_in_log(*c, *site);
  CompiledState& s = c->compiled;
  s.alone[0] = *site->op;
  s.alone[0].run = site->run;
  s.alone[1] = Op{.run = went_on};
  s.went_on = false;
  run_from(s.alone.data(), c);
  s.flags = packed(c->flags.bits());
  if (s.went_on) {
    if (c->tap != nullptr) go_on_in_log(*c, *site);
    return true;
  }
  for (const Op* o = site->op + 1; o->length != 0; ++o) c->left += counts_of(*o);
  if (c->counts_classes) take_back_classes(*c, site->op + 1);
  return false;
}

/// The routines that compiled code shares.
struct Routines {
  explicit Routines(HostAssembler& to)
      : a{to},
        enter{to.label()},
        leave{to.label()},
        run_alone{to.label()},
        back{to.label()},
        gave_up{to.label()},
        load_x87{to.label()} {
    write_enter();
    write_leave();
    write_run_alone();
    write_load_x87();
    for (unsigned rights = 0; rights < rights_count; ++rights) {
      write_look_further(rights);
      for (const bool store : {false, true}) write_look_page_up(rights, store);
    }
    constexpr std::size_t line = 64;
    a.align(line);  // so that where blocks lie in lines of code does not depend on the size of these
  }

  HostAssembler& a;
  HostAssembler::Label enter, leave, run_alone, back, gave_up, load_x87;
  std::array<HostAssembler::Label, rights_count> look_further{};
  std::array<std::array<HostAssembler::Label, 2>, rights_count> look_page_up{};

 private:
  static constexpr unsigned equal = 4, not_equal = 5;  // of Jcc
  static constexpr std::int8_t word = 8;
  /// What belongs to the caller in the host's ABI.
  static constexpr std::array<HostRegister, 6> callers{rbx, rbp, r12, r13, r14, r15};
  static constexpr std::int32_t in_state(std::size_t offset) { return in_core(offsetof(Core, compiled) + offset); }

  static constexpr HostAssembler::Memory state(std::size_t offset) { return {core_base, in_state(offset)}; }
  static constexpr HostAssembler::Memory counts_left{core_base, in_core(offsetof(Core, left))};
  static constexpr HostAssembler::Memory guest_mxcsr{scratch_a, VectorState::mxcsr_at};
  static constexpr HostRegister counts = 15;  // YMM15: Core::left, while compiled code runs

  void load_registers() {
    for (unsigned n = 0; n < homes.size(); ++n)
      if (homes[n] != HostAssembler::none) a.mov(homes[n], {core_base, register_in_core(n)});
  }
  void store_registers() {
    for (unsigned n = 0; n < homes.size(); ++n)
      if (homes[n] != HostAssembler::none) a.mov({core_base, register_in_core(n)}, homes[n]);
  }
  void compare_with_0(std::size_t offset) { a.cmp(state(offset), 0); }
  void set_word(std::size_t offset, std::int32_t value) { a.mov_constant(state(offset), value); }
  void find_vectors() { a.mov(scratch_a, {core_base, in_core(offsetof(Core, vectors))}); }
  /// Loads the guest's MXCSR, if it is wanted. Changes flags.
  void load_mxcsr() {
    const HostAssembler::Label behind = a.label();
    compare_with_0(offsetof(CompiledState, wants_mxcsr));
    a.jump_if(equal, behind);
    find_vectors();
    a.ldmxcsr(guest_mxcsr);
    set_word(offsetof(CompiledState, no_mxcsr), 0);
    a.here(behind);
  }
  void store_mxcsr() {
    const HostAssembler::Label behind = a.label();
    compare_with_0(offsetof(CompiledState, no_mxcsr));
    a.jump_if(not_equal, behind);
    find_vectors();
    a.stmxcsr(guest_mxcsr);
    a.ldmxcsr(state(offsetof(CompiledState, host_mxcsr)));
    set_word(offsetof(CompiledState, no_mxcsr), 1);
    a.here(behind);
  }
  /// FXRSTOR loads XMM registers and MXCSR, too: YMM15 and MXCSR are put back, and the block has put the others away.
  void write_load_x87() {
    a.align(16);
    a.here(load_x87);
    a.stmxcsr(state(offsetof(CompiledState, kept_mxcsr)));
    a.fnstcw(state(offsetof(CompiledState, host_fcw)));
    a.vmovdqu_256(counts_left, counts);
    a.mov(scratch_c, {core_base, in_core(offsetof(Core, vectors))});
    a.fxrstor64({scratch_c});
    a.vmovdqu_256(counts, counts_left);
    a.ldmxcsr(state(offsetof(CompiledState, kept_mxcsr)));
    set_word(offsetof(CompiledState, no_x87), 0);
    a.ret();
  }
  /// Stores the guest's x87 registers if the host's are these, and gives the host its own state. FXSAVE stores XMM
  /// registers and MXCSR, too, so it stores elsewhere first. FOP, FIP and FDP are not kept. Changes RAX, RDX, YMM0 and
  /// flags.
  void store_x87() {
    constexpr std::int32_t image = in_core(offsetof(Core, fxsave_image));
    const HostAssembler::Label behind = a.label();
    compare_with_0(offsetof(CompiledState, no_x87));
    a.jump_if(not_equal, behind);
    a.fxsave64({core_base, image});
    a.fninit();
    a.fldcw(state(offsetof(CompiledState, host_fcw)));
    find_vectors();
    a.mov(scratch_d, {core_base, image});
    constexpr unsigned fop_bits = 16;
    a.shl(scratch_d, fop_bits);
    a.shr(scratch_d, fop_bits);
    a.mov({scratch_a, 0}, scratch_d);
    a.xor_32(scratch_d, scratch_d);
    a.mov({scratch_a, VectorState::fip_at}, scratch_d);
    a.mov({scratch_a, VectorState::fdp_at}, scratch_d);
    for (std::int32_t at = VectorState::st_at; at < std::int32_t{VectorState::xmm_at}; at += 32) {
      a.vmovdqu_256(0, {core_base, image + at});
      a.vmovdqu_256({scratch_a, at}, 0);
    }
    set_word(offsetof(CompiledState, no_x87), 1);
    a.here(behind);
  }
  void load_all() {
    load_mxcsr();
    load_registers();
    a.vmovdqu_256(counts, counts_left);
  }
  void store_all() {
    store_registers();
    a.vmovdqu_256(counts_left, counts);
    store_x87();
    store_mxcsr();
    a.vzeroupper();
  }
  // The core in RDI, the code in RSI; the stack is then aligned to 16 bytes.
  void write_enter() {
    a.align(16);
    a.here(enter);
    for (const HostRegister kept : callers) a.push(kept);
    a.sub(rsp, word);
    a.lea(core_base, 7, HostAssembler::none, 0, core_bias);
    a.mov(scratch_d, 6);
    load_all();
    a.jmp(scratch_d);
  }
  // The site in RCX.
  void write_leave() {
    a.align(16);
    a.here(leave);
    store_all();
    a.mov(scratch_a, scratch_c);
    a.here(back);
    a.add(rsp, word);
    for (std::size_t n = callers.size(); n-- > 0;) a.pop(callers[n]);
    a.ret();
  }
  // Called with the site in RCX.
  void write_run_alone() {
    a.align(16);
    a.here(run_alone);
    store_all();
    a.lea(7, core_base, HostAssembler::none, 0, -core_bias);
    a.mov(6, scratch_c);
    a.sub(rsp, word);
    a.call(state(offsetof(CompiledState, run_op)));
    a.add(rsp, word);
    a.test_al();
    a.jump_if(equal, gave_up);
    load_all();
    a.ret();
    a.here(gave_up);
    a.add(rsp, word);
    a.xor_32(scratch_a, scratch_a);
    a.jump(back);
  }
  // Called with an address in RAX. Found: RCX is 0 and its place is in RDX; else RCX is not 0.
  void write_look_further(unsigned rights) {
    look_further[rights] = a.label();
    a.align(16);
    a.here(look_further[rights]);
    a.mov(scratch_d, scratch_a);
    a.shr(scratch_d, core_bias);
    a.add_32(scratch_d, scratch_a);
    a.and_32(scratch_d, CompiledState::far_jumps - 1);
    a.add_32(scratch_d, CompiledState::near_jumps);
    a.mov_indexed(scratch_c, core_base, scratch_d,
                  in_state(offsetof(CompiledState, jumps) + rights * sizeof(CompiledState::Jumps) +
                           offsetof(CompiledState::Jumps, tags)));
    a.add(scratch_c, scratch_a);
    a.ret();
  }
  // Called with an address in RDX and that of the operand's last byte in RCX. Found: RCX is 0, RDX is the page's
  // Tlb::add, and the TLB has the page, as find_in_tables() puts it there; else RCX is not 0. Changes nothing else.
  void write_look_page_up(unsigned rights, bool store) {
    constexpr unsigned page_bits = core_bias, entry_bits = 6;
    static_assert(sizeof(KnownPage) == 1U << entry_bits && known_pages == 1U << page_bits && tlb_entries == 256);
    const HostAssembler::Label fails = a.label(), ends = a.label();
    const auto known = [](std::size_t offset) {
      return HostAssembler::Memory{scratch_c, static_cast<std::int32_t>(offset)};
    };
    const auto in_tlb = [rights](std::size_t offset) {
      return in_core(offsetof(Core, tlbs) + rights * sizeof(Tlb) + offset);
    };
    look_page_up[rights][store ? 1 : 0] = a.label();
    a.align(16);
    a.here(look_page_up[rights][store ? 1 : 0]);
    a.mov(state(offsetof(CompiledState, kept)), scratch_a);
    a.mov(state(offsetof(CompiledState, kept) + word), rbx);
    a.lahf();
    a.seto_al();
    a.mov(rbx, scratch_d);
    a.shr(scratch_d, page_bits);
    a.shr(scratch_c, page_bits);
    a.cmp_with(scratch_c, scratch_d);
    a.jump_if(not_equal, fails);
    a.shr(scratch_c, page_bits);
    a.xor_32(scratch_c, scratch_d);
    a.and_32(scratch_c, known_pages - 1);
    a.shl(scratch_c, entry_bits);
    a.lea(scratch_c, scratch_c, core_base, 0, in_core(offsetof(Core, known)));
    a.cmp_with(known(offsetof(KnownPage, linear)), scratch_d);
    a.jump_if(not_equal, fails);
    a.mov(scratch_d, {core_base, in_core(offsetof(Core, tlb_generation))});
    a.cmp_with(known(offsetof(KnownPage, generation)), scratch_d);
    a.jump_if(not_equal, fails);
    a.cmp_8(known(offsetof(KnownPage, rights)), static_cast<std::uint8_t>(rights));
    a.jump_if(not_equal, fails);
    if (store) {
      a.cmp_8(known(offsetof(KnownPage, writable)), 1);
      a.jump_if(not_equal, fails);
      a.mov(scratch_d, {core_base, in_core(offsetof(Core, stretch))});
      a.cmp_with(known(offsetof(KnownPage, told)), scratch_d);
      a.jump_if(not_equal, fails);
    }
    // The tag is minus the page's address.
    a.shr(rbx, page_bits);
    a.mov(scratch_d, rbx);
    a.shl(scratch_d, page_bits);
    a.neg(scratch_d);
    a.mov(scratch_c, known(offsetof(KnownPage, host)));
    a.add(scratch_c, scratch_d);
    a.and_32(rbx, tlb_entries - 1);
    a.store_indexed(core_base, rbx, in_tlb(offsetof(Tlb, add)), scratch_c);
    a.store_indexed(core_base, rbx, in_tlb(offsetof(Tlb, read)), scratch_d);
    if (!store) {  // Tlb::no_tag()
      a.mov(scratch_d, rbx);
      a.xor_32(scratch_d, tlb_entries / 2);
      a.shl(scratch_d, page_bits);
      a.neg(scratch_d);
    }
    a.store_indexed(core_base, rbx, in_tlb(offsetof(Tlb, write)), scratch_d);
    a.mov(scratch_d, scratch_c);
    a.xor_32(scratch_c, scratch_c);
    a.jump(ends);
    a.here(fails);
    a.mov_constant(scratch_c, 1);
    a.here(ends);
    a.mov(rbx, state(offsetof(CompiledState, kept) + word));
    a.add_al(0x7F);
    a.sahf();
    a.mov(scratch_a, state(offsetof(CompiledState, kept)));
    a.ret();
  }
};

/// The tag of an address that has another place.
constexpr std::uint64_t no_tag(std::size_t place) { return 0 - (place + 1); }
void forget_jumps(Core& core) {
  for (CompiledState::Jumps& jumps : core.compiled.jumps)
    for (std::size_t place = 0; place < jumps.tags.size(); ++place) jumps.tags[place] = no_tag(place);
}

void counted(const Op* op, Core* c) {
  Block* const block = c->block;
  ++block->begun;
  if (c->jit->is_due(*block)) {
    if (c->tap != nullptr) end_op(*c);
    c->jit->compile(*c, *block);
  }
  return block->first(op, c);
}

void compiled(const Op* op, Core* c) {
  if (c->tap != nullptr) end_op(*c);
  // It was compiled for another TLB: the privilege level, or RFLAGS.AC under SMAP, is another one now.
  if (c->tlb != c->block->compiled->tlb) return c->block->first(op, c);
  const Site* const site = c->jit->enter(*c);
  if (site == nullptr) return;
  Block* const block = site->block;
  switch (site->why) {
    case Site::Why::op:
    case Site::Why::alone: return site->run(site->op, c);
    case Site::Why::way: {
      Block* const to = block->next[site->way];
      const std::uint64_t rip = c->r[block_rip] + static_cast<std::uint64_t>(block->distance[site->way]);
      if (to != nullptr && c->is_fresh(*to, rip) && to->compiled != nullptr && to->compiled->tlb == c->tlb)
        c->jit->link(*block, site->way, *to);
      return go(c, site->way);
    }
    case Site::Why::budget:
    case Site::Why::stale: return end_at(c, c->r[block_rip]);
  }
}

}  // namespace

Jit::Jit(HostCode* code, std::uint32_t after) : code_{code}, after_{after} {
  if (code == nullptr || !host_has(CpuFeature::avx2) || !host_has(CpuFeature::bmi2) || !host_flags().logic) after_ = 0;
}

void Jit::attach(Core& core) {
  core.jit = this;
  core.compiled.run_op = run_op;
  forget_jumps(core);
}

void Jit::expect(Block& block) const {
  block.first = block.ops()[0].run;
  if (after_ != 0 && block.mode == CodeMode::bits64) block.ops()[0].run = counted;
}

bool Jit::make_routines(Core& core) {
  assembler_.clear();
  const Routines routines{assembler_};
  const std::span<const std::byte> code = assembler_.finish();
  const std::byte* const at = code.empty() ? nullptr : code_->add(code);
  if (at == nullptr) return false;
  enter_ = reinterpret_cast<decltype(enter_)>(reinterpret_cast<std::uintptr_t>(at + assembler_.place(routines.enter)));
  core.compiled.leave = at + assembler_.place(routines.leave);
  core.compiled.run_alone = at + assembler_.place(routines.run_alone);
  core.compiled.load_x87 = at + assembler_.place(routines.load_x87);
  for (unsigned rights = 0; rights < rights_count; ++rights) {
    core.compiled.look_further[rights] = at + assembler_.place(routines.look_further[rights]);
    for (unsigned store = 0; store < 2; ++store)
      core.compiled.look_page_up[rights][store] = at + assembler_.place(routines.look_page_up[rights][store]);
  }
  return true;
}

void Jit::compile(Core& core, Block& block) {
  block.ops()[0].run = block.first;
  if (core.tlb == nullptr || full_) return;
  if (enter_ == nullptr && !make_routines(core)) {
    after_ = 0;
    return;
  }
  auto made = std::make_unique<Compiled>();
  assembler_.clear();
  if (!translate(core, block, *made, assembler_)) return;
  const std::span<const std::byte> code = assembler_.finish();
  if (code.empty()) return;
  const std::byte* const at = code_->add(code);
  if (at == nullptr) {
    full_ = compiled_since_clear_ != 0;
    return;
  }
  const auto place = [at](const std::byte* distance) { return at + reinterpret_cast<std::uintptr_t>(distance); };
  made->checked = place(made->checked);
  made->entry = place(made->entry);
  made->body = place(made->body);
  for (unsigned way = 0; way < 2; ++way) {
    if (made->back[way] == nullptr) continue;
    made->back[way] = place(made->back[way]);
    made->distances[way] = place(made->distances[way]);
  }
  made->tlb = core.tlb;
  block.compiled = std::move(made);
  block.ops()[0].run = exec::compiled;
  ++compiled_;
  ++compiled_since_clear_;
}

/// Computed jumps find the block at its present RIP from here on.
void Jit::make_known(Core& core, Compiled& compiled) {
  const std::uint64_t rip = core.r[block_rip];
  const auto code = reinterpret_cast<std::uintptr_t>(compiled.checked);
  CompiledState::Jumps& jumps = core.compiled.jumps[static_cast<std::size_t>(core.tlb - core.tlbs.data())];
  const std::size_t near = CompiledState::near_place(rip);
  if (jumps.tags[near] == 0 - rip && jumps.code[near] == code) return;
  compiled.found_elsewhere |= compiled.found_at.value_or(rip) != rip;
  compiled.found_at = rip;
  for (const std::size_t place : {near, CompiledState::far_place(rip)}) {
    jumps.tags[place] = 0 - rip;
    jumps.code[place] = code;
  }
}

const Site* Jit::enter(Core& core) {
  Compiled& compiled = *core.block->compiled;
  make_known(core, compiled);
  core.compiled.flags = packed(core.flags.bits());
  core.compiled.host_mxcsr = __builtin_ia32_stmxcsr();
  ++entered_;
  if (core.tap != nullptr) begin_log(core);
  const Site* const site = enter_(&core, compiled.body);
  if (site == nullptr) return nullptr;
  if (core.tap != nullptr) tell_log(core, site);
  core.flags.set_bits(unpacked(core.compiled.flags));
  core.block = site->block;
  core.r[block_rip] =
      site->why == Site::Why::stale ? core.compiled.to_page + site->block->offset : core.rip_of(*site->block);
  return site;
}

/// Makes an exit jump to `to`. False: it goes where it went. The CPU notices by the physical address that a line of
/// code has changed, whatever address it was written by; and nothing of the jump can be in its pipeline, for we come
/// from C++. SDM 3A 11.6.
bool Jit::point(const Compiled& from, unsigned way, const std::byte* to) {
  const std::ptrdiff_t distance = to - (from.distances[way] + sizeof(std::uint32_t));
  const bool fits = distance == static_cast<std::int32_t>(distance);
  return fits && code_->change(from.distances[way], static_cast<std::uint32_t>(distance));
}

void Jit::link(Block& from, unsigned way, const Block& to) {
  Compiled& target = *to.compiled;
  const bool stays = from.slot == to.slot && from.page_distance(way) == 0;
  if (!stays && !from.compiled->names_page[way]) return;
  if (!point(*from.compiled, way, stays ? target.entry : target.checked)) return;
  target.incoming.push_back({from.compiled.get(), way});
}

void Jit::unlink(Core& core, const Block& block) {
  if (block.compiled == nullptr) return;
  Compiled& compiled = *block.compiled;
  // If a link cannot be changed, this code must not run: all code is discarded.
  for (const Compiled::Link& l : compiled.incoming)
    if (!point(*l.from, l.way, l.from->back[l.way])) full_ = true;
  compiled.incoming.clear();
  if (!compiled.found_at) return;
  const auto forget = [&](CompiledState::Jumps& jumps, std::size_t place) {
    if (jumps.code[place] == reinterpret_cast<std::uintptr_t>(compiled.checked)) jumps.tags[place] = no_tag(place);
  };
  for (CompiledState::Jumps& jumps : core.compiled.jumps) {
    if (compiled.found_elsewhere) {
      for (std::size_t place = 0; place < jumps.tags.size(); ++place) forget(jumps, place);
    } else {
      forget(jumps, CompiledState::near_place(*compiled.found_at));
      forget(jumps, CompiledState::far_place(*compiled.found_at));
    }
  }
}

void Jit::clear(Core& core) {
  forget_jumps(core);
  enter_ = nullptr;
  compiled_since_clear_ = 0;
  full_ = false;
}

}  // namespace vpmu::exec
