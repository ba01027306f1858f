#include "exec/jit.hpp"

#include <vector>

#include "exec/dispatch.hpp"
#include "exec/guest_form.hpp"
#include "exec/host_form.hpp"
#include "exec/host_registers.hpp"
#include "exec/ops.hpp"
#include "exec/tap.hpp"
#include "exec/vector_state.hpp"

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
  c->flags.set_bits(unpacked(c->compiled.flags));  // settled: no op needs settle_first()
  c->block = site->block;
  c->r[block_rip] = site->block->rip;
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
  return false;
}

/// The routines that compiled code shares.
struct Routines {
  explicit Routines(HostAssembler& to)
      : a{to}, enter{to.label()}, leave{to.label()}, run_alone{to.label()}, back{to.label()}, gave_up{to.label()} {
    write_enter();
    write_leave();
    write_run_alone();
    for (unsigned rights = 0; rights < rights_count; ++rights) write_look_further(rights);
  }

  HostAssembler& a;
  HostAssembler::Label enter, leave, run_alone, back, gave_up;
  std::array<HostAssembler::Label, rights_count> look_further{};

 private:
  static constexpr unsigned equal = 4, not_equal = 5;  // of Jcc
  static constexpr std::int32_t in_state(std::size_t offset) { return in_core(offsetof(Core, compiled) + offset); }
  static constexpr std::int32_t flags_at = in_core(offsetof(Core, compiled) + offsetof(CompiledState, flags));

  void registers(unsigned opcode) {
    for (unsigned n = 0; n < homes.size(); ++n)
      if (homes[n] != HostAssembler::none) a.with_memory(opcode, homes[n], core_base, register_in_core(n));
  }
  void vector(unsigned opcode) {  // VMOVDQU YMM15
    a.bytes({0xC5, 0x7E, opcode});
    a.operand(15, core_base, in_core(offsetof(Core, left)));
  }
  void compare_with_0(std::size_t offset) {
    a.bytes({0x48, 0x83});
    a.operand(7, core_base, in_state(offset));
    a.bytes({0});
  }
  void set_word(std::size_t offset, unsigned value) {
    a.bytes({0x48, 0xC7});
    a.operand(0, core_base, in_state(offset));
    a.word32(value);
  }
  void mxcsr(unsigned operation, HostRegister base, std::int32_t disp) {  // 2 loads, 3 stores
    a.bytes({0x0F, 0xAE});
    a.operand(operation, base, disp);
  }
  void find_vectors() { a.with_memory(0x8B, scratch_a, core_base, in_core(offsetof(Core, vectors))); }
  /// Loads the guest's MXCSR, if it is wanted. Changes flags.
  void load_mxcsr() {
    const HostAssembler::Label behind = a.label();
    compare_with_0(offsetof(CompiledState, wants_mxcsr));
    a.jump_if(equal, behind);
    find_vectors();
    mxcsr(2, scratch_a, VectorState::mxcsr_at);
    set_word(offsetof(CompiledState, no_mxcsr), 0);
    a.here(behind);
  }
  void store_mxcsr() {
    const HostAssembler::Label behind = a.label();
    compare_with_0(offsetof(CompiledState, no_mxcsr));
    a.jump_if(not_equal, behind);
    find_vectors();
    mxcsr(3, scratch_a, VectorState::mxcsr_at);
    mxcsr(2, core_base, in_state(offsetof(CompiledState, host_mxcsr)));
    set_word(offsetof(CompiledState, no_mxcsr), 1);
    a.here(behind);
  }
  void load_all() {
    load_mxcsr();
    registers(0x8B);
    vector(0x6F);
    a.bytes({0x0F, 0xB7});  // movzx flags, %eax; add $0x7F, %al; sahf
    a.operand(scratch_a, core_base, flags_at);
    a.bytes({0x04, 0x7F, 0x9E});
  }
  void store_all() {
    a.bytes({0x9F, 0x0F, 0x90, 0xC0});  // lahf; seto %al; mov %ax, flags
    a.bytes({0x66, 0x89});
    a.operand(scratch_a, core_base, flags_at);
    registers(0x89);
    vector(0x7F);
    store_mxcsr();
    a.bytes({0xC5, 0xF8, 0x77});  // vzeroupper
  }
  // The core in RDI, the code in RSI; the stack is then aligned to 16 bytes.
  void write_enter() {
    a.align(16);
    a.here(enter);
    a.bytes({0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57});  // push what belongs to the caller
    a.bytes({0x48, 0x83, 0xEC, 8});                                         // sub $8, %rsp
    a.address(core_base, 7, HostAssembler::none, 0, core_bias);
    a.move(scratch_d, 6);
    load_all();
    a.bytes({0xFF, 0xE2});  // jmp *%rdx
  }
  // The site in RCX.
  void write_leave() {
    a.align(16);
    a.here(leave);
    store_all();
    a.move(scratch_a, scratch_c);
    a.here(back);
    a.bytes({0x48, 0x83, 0xC4, 8});
    a.bytes({0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xC3});
  }
  // Called with the site in RCX.
  void write_run_alone() {
    a.align(16);
    a.here(run_alone);
    store_all();
    a.address(7, core_base, HostAssembler::none, 0, -core_bias);
    a.move(6, scratch_c);
    a.bytes({0x48, 0x83, 0xEC, 8});  // sub $8, %rsp
    a.bytes({0xFF});                 // call
    a.operand(2, core_base, in_state(offsetof(CompiledState, run_op)));
    a.bytes({0x48, 0x83, 0xC4, 8});  // add $8, %rsp
    a.bytes({0x84, 0xC0});           // test %al, %al
    a.jump_if(equal, gave_up);
    load_all();
    a.bytes({0xC3});
    a.here(gave_up);
    a.bytes({0x48, 0x83, 0xC4, 8, 0x31, 0xC0});  // add $8, %rsp; xor %eax, %eax
    a.jump(back);
  }
  // Called with an address in RAX. Found: RCX is 0 and its place is in RDX; else RCX is not 0.
  void write_look_further(unsigned rights) {
    look_further[rights] = a.label();
    a.align(16);
    a.here(look_further[rights]);
    a.bytes({0x9C});                         // pushfq
    a.bytes({0x48, 0x89, 0xC2});             // mov %rax, %rdx
    a.bytes({0x48, 0xC1, 0xEA, core_bias});  // shr $12, %rdx
    a.bytes({0x01, 0xC2});                   // add %eax, %edx
    a.bytes({0x81, 0xE2});                   // and $..., %edx
    a.word32(CompiledState::far_jumps - 1);
    a.bytes({0x81, 0xC2});  // add $..., %edx
    a.word32(CompiledState::near_jumps);
    a.load_word(scratch_c, core_base, scratch_d,
                in_state(offsetof(CompiledState, jumps) + rights * sizeof(CompiledState::Jumps) +
                         offsetof(CompiledState::Jumps, tags)));
    a.bytes({0x48, 0x01, 0xC1, 0x9D, 0xC3});  // add %rax, %rcx; popfq; ret
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
    if (c->tap != nullptr) settle(*c);
    c->jit->compile(*c, *block);
  }
  return block->first(op, c);
}

void compiled(const Op* op, Core* c) {
  if (c->tap != nullptr) settle(*c);
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
      if (to != nullptr && c->is_fresh(*to) && to->compiled != nullptr && to->compiled->tlb == c->tlb)
        c->jit->link(*block, site->way, *to);
      return go(c, site->way);
    }
    case Site::Why::budget:
    case Site::Why::stale: return end_at(c, block->rip);
  }
}

}  // namespace

Run op_counted() { return counted; }
Run op_compiled() { return compiled; }

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
  for (unsigned rights = 0; rights < rights_count; ++rights)
    core.compiled.look_further[rights] = at + assembler_.place(routines.look_further[rights]);
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

const Site* Jit::enter(Core& core) {
  const Block& block = *core.block;
  CompiledState::Jumps& jumps = core.compiled.jumps[static_cast<std::size_t>(core.tlb - core.tlbs.data())];
  for (const std::size_t place : {CompiledState::near_place(block.rip), CompiledState::far_place(block.rip)}) {
    jumps.tags[place] = 0 - block.rip;
    jumps.code[place] = reinterpret_cast<std::uintptr_t>(block.compiled->checked);
  }
  core.compiled.flags = packed(core.flags.bits());
  core.compiled.host_mxcsr = __builtin_ia32_stmxcsr();
  ++entered_;
  if (core.tap != nullptr) begin_log(core);
  const Site* const site = enter_(&core, block.compiled->body);
  if (site == nullptr) return nullptr;
  if (core.tap != nullptr) tell_log(core, site);
  core.flags.set_bits(unpacked(core.compiled.flags));
  core.block = site->block;
  core.r[block_rip] = site->block->rip;
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
  if (!point(*from.compiled, way, from.slot == to.slot ? target.entry : target.checked)) return;
  from.compiled->linked[way] = &target;
  target.incoming.push_back({from.compiled.get(), way});
}

void Jit::unlink(Core& core, const Block& block) {
  Compiled& compiled = *block.compiled;
  for (const Compiled::Link& l : compiled.incoming) {
    l.from->linked[l.way] = nullptr;
    // If the link cannot be changed, this code must not run: all code is discarded.
    if (!point(*l.from, l.way, l.from->back[l.way])) full_ = true;
  }
  compiled.incoming.clear();
  for (CompiledState::Jumps& jumps : core.compiled.jumps)
    for (const std::size_t place : {CompiledState::near_place(block.rip), CompiledState::far_place(block.rip)})
      if (jumps.tags[place] == 0 - block.rip) jumps.tags[place] = no_tag(place);
}

void Jit::drop(Core& core, Block& block) {
  if (block.compiled == nullptr) return;
  unlink(core, block);
  for (unsigned way = 0; way < 2; ++way)
    if (Compiled* const to = block.compiled->linked[way])
      std::erase(to->incoming, Compiled::Link{block.compiled.get(), way});
  block.compiled.reset();
}

void Jit::clear(Core& core) {
  forget_jumps(core);
  enter_ = nullptr;
  compiled_since_clear_ = 0;
  full_ = false;
}

}  // namespace vpmu::exec
