#include "exec/translator.hpp"

#include <algorithm>
#include <span>

#include "exec/tap.hpp"

namespace vpmu::exec {
namespace {

const std::byte* distance(std::size_t n) {
  return reinterpret_cast<const std::byte*>(n);
}  // NOLINT(performance-no-int-to-ptr)

}  // namespace

Translator::Translator(const Core& core, Block& block, Compiled& compiled, HostAssembler& to)
    : block_{block},
      compiled_{compiled},
      a_{to},
      count_{block.ops().size() - 1},
      rights_{static_cast<std::size_t>(core.tlb - core.tlbs.data())},
      observed_{core.tap != nullptr} {}

bool Translator::translate() {
  if (count_ == 0 || count_ > most_ops) return false;
  for (std::size_t i = 0; i < count_; ++i) {
    Op op = block_.ops()[i];
    if (observed_) op.run = block_.observed->real[i];
    forms_[i] = guest_form(block_.code().subspan(op.offset, op.length), op);
  }
  find_places_for_vectors();
  see_flags();
  for (std::size_t i = 0; i < count_; ++i) needs_interpreter(i);
  if (observed_) leave_to_interpreter_what_cannot_be_noted();
  if (!is_worth_it()) return false;
  if (observed_) note_accesses();
  compiled_.sites.reserve(count_ + other_sites);
  write_entry();
  for (std::size_t i = 0; i < length_; ++i) write(i);
  put_vectors_back();
  if (length_ < count_)
    leave_to(add_site(Site::Why::op, length_));
  else if (!forms_[count_ - 1].is_flow())
    go(0);
  write_outside();
  if (observed_ && logged_ != block_.observed->seen.accesses.size()) a_.spoil();
  return true;
}

/// From the last one backwards: whether flags matter after an instruction.
void Translator::see_flags() {
  bool seen = true;
  for (std::size_t i = count_; i-- > 0;) {
    flags_seen_[i] = seen;
    if (forms_[i].may_stop() || forms_[i].flags == FlagUse::other)
      seen = true;
    else if (forms_[i].flags == FlagUse::sets_all)
      seen = false;
  }
}

/// Leaves an instruction to the interpreter if this CPU leaves other flags, and they matter.
void Translator::needs_interpreter(std::size_t i) {
  GuestForm& f = forms_[i];
  if (!flags_seen_[i]) return;
  const HostFlags& host = host_flags();
  const bool same = (f.kind != Kind::shift_count || host.shift) &&
                    (f.kind != Kind::shift_cl || (host.shift && host.shift_af)) &&
                    (f.kind != Kind::rotate || host.rotate) && (f.kind != Kind::bit || host.bit) &&
                    (f.kind != Kind::multiply_wide || host.multiply);
  if (!same) f.kind = Kind::alone;
}

/// To go to the interpreter and back costs as much as some interpreted instructions.
bool Translator::is_worth_it() {
  constexpr std::size_t dear = 6;
  std::size_t alone = 0;
  for (length_ = 0; length_ < count_ && forms_[length_].kind != Kind::interpreted; ++length_)
    if (forms_[length_].kind == Kind::alone) ++alone;
  if (length_ < count_) ++alone;
  return alone == 0 || length_ >= alone * dear;
}

const Site* Translator::add_site(Site::Why why, std::size_t i, unsigned way) {
  // Code names sites by their addresses: they must not move.
  if (compiled_.sites.size() == compiled_.sites.capacity()) {
    a_.spoil();
    return &compiled_.sites.front();
  }
  const Op& op = block_.ops()[i];
  const bool fused = block_.comparison != nullptr && i + 2 == count_;
  const bool goes_on = why == Site::Why::op;
  const auto real = [&] { return observed_ ? block_.observed->real[i] : i == 0 ? block_.first : op.run; };
  const auto alone = [&] { return i == 0 ? block_.first_alone : fused ? block_.comparison : real(); };
  const Run run = !goes_on ? alone() : observed_ ? observed_run(block_, i) : real();
  const auto still_to_come = observed_ ? std::ranges::count_if(block_.observed->seen.accesses,
                                                               [i](const BlockAccess& a) { return a.instruction > i; })
                                       : 0;
  compiled_.sites.push_back({.block = &block_,
                             .op = &op,
                             .run = run,
                             .why = why,
                             .way = static_cast<std::uint8_t>(way),
                             .addresses = static_cast<std::uint8_t>(still_to_come)});
  return &compiled_.sites.back();
}

void Translator::name_site(const Site* site) { a_.move_constant(scratch_c, reinterpret_cast<std::uintptr_t>(site)); }
void Translator::indirect(unsigned what, HostRegister base, std::int32_t disp) {  // FF /2 calls, FF /4 jumps
  a_.bytes({0xFF});
  a_.operand(what, base, disp);
}
void Translator::leave_to(const Site* site) {
  name_site(site);
  indirect(4, core_base, in_state(offsetof(CompiledState, leave)));
}

// MOVZX ECX from Core::stale. Then VPSUBQ YMM15 by the counts; VMOVMSKPD; no lane is negative or RCX is not 0.
void Translator::write_entry() {
  counts_ = a_.label();
  stale_ = a_.label();
  too_few_ = a_.label();
  a_.align(16);
  compiled_.checked = distance(a_.size());
  const std::size_t stale =
      code_privilege(static_cast<Rights>(rights_), CodeMode::bits64) * sizeof(Core::stale[0]) + block_.slot;
  a_.bytes({0x0F, 0xB6});
  a_.operand(scratch_c, core_base, in_core(offsetof(Core, stale) + stale));
  a_.jump_unless_rcx_is_0(stale_);
  entry_at_ = a_.label();
  a_.here(entry_at_);
  compiled_.entry = distance(a_.size());
  a_.bytes({0xC5, 0x05, 0xFB, 0x3D});
  a_.relative(counts_);
  a_.bytes({0xC4, 0xC1, 0x7D, 0x50, 0xCF});
  a_.jump_unless_rcx_is_0(too_few_);
  compiled_.body = distance(a_.size());
  if (observed_) log_entry();
}
void Translator::write_outside() {
  a_.here(too_few_);
  a_.bytes({0xC5, 0x05, 0xD4, 0x3D});  // VPADDQ: the counts back
  a_.relative(counts_);
  leave_to(add_site(Site::Why::budget, 0));
  a_.here(stale_);
  leave_to(add_site(Site::Why::stale, 0));
  if (far_jump_) {
    a_.here(far_jump_->from);
    indirect(2, core_base, in_state(offsetof(CompiledState, look_further) + rights_ * word));
    a_.jump_unless_rcx_is_0(far_jump_->slow);
    a_.jump(far_jump_->found);
  }
  for (std::size_t n = 0; n < outside_count_; ++n) {
    const Outside& o = outside_[n];
    a_.here(o.from);
    move_vectors(true, o.put_back);
    if (o.site->why == Site::Why::alone) {
      name_site(o.site);
      indirect(2, core_base, in_state(offsetof(CompiledState, run_alone)));
      move_vectors(false, o.take_again);
      a_.jump(o.back);
    } else {
      leave_to(o.site);
    }
  }
  for (unsigned way = 0; way < 2; ++way) {
    if (!ways_[way]) continue;
    a_.here(*ways_[way]);
    compiled_.back[way] = distance(a_.size());
    leave_to(add_site(Site::Why::way, count_ - 1, way));
  }
  a_.align(32);
  a_.here(counts_);
  for (unsigned lane = 0; lane < 4; ++lane) a_.word64(static_cast<std::uint64_t>(block_.counts[lane]));
}

/// A way out of the fast path of instruction `i`: the interpreter runs it, and, unless it ends the block, the code goes
/// on after it.
HostAssembler::Label Translator::slowly(std::size_t i) {
  if (outside_count_ == outside_.size()) {
    a_.spoil();
    return outside_.front().from;
  }
  Outside& o = outside_[outside_count_++];
  o.from = a_.label();
  o.back = behind_;
  o.site = add_site(forms_[i].is_flow() ? Site::Why::op : Site::Why::alone, i);
  o.put_back = vectors_changed_;
  return o.from;
}

HostRegister Translator::read(unsigned guest, HostRegister scratch) {
  if (guest >= homes.size()) {
    a_.spoil();
    return scratch;
  }
  if (homes[guest] != none) return homes[guest];
  a_.with_memory(0x8B, scratch, core_base, register_in_core(guest));
  return scratch;
}
void Translator::written(unsigned guest, HostRegister in) {
  if (guest >= homes.size()) return a_.spoil();
  if (homes[guest] == none)
    a_.with_memory(0x89, in, core_base, register_in_core(guest));
  else if (homes[guest] != in)
    a_.move(homes[guest], in);
}

/// Makes the address of the op's memory operand, or finds the register that holds it.
HostRegister Translator::address_of(const Op& op) {
  if (op.b == block_rip * 8 || (op.b == zero * 8 && op.x == zero * 8)) {
    a_.move_constant(scratch_a,
                     (op.b == zero * 8 ? 0 : block_.rip) + static_cast<std::uint64_t>(std::int64_t{op.disp}));
  } else {
    const HostRegister base = op.b == zero * 8 ? none : read(op.b / 8, scratch_a);
    const HostRegister index = op.x == zero * 8 ? none : read(op.x / 8, scratch_c);
    if (index == none && op.disp == 0 && op.seg == zero * 8) return base;
    a_.address(scratch_a, base, index, op.scale, op.disp);
  }
  if (op.seg != zero * 8) {
    a_.with_memory(0x8B, scratch_c, core_base, register_in_core(op.seg / 8));
    a_.address(scratch_a, scratch_a, scratch_c, 0, 0);
  }
  return scratch_a;
}
/// Looks an address up in the TLB. Found: the operand is at `at` + RDX; else the code jumps to `slow`.
void Translator::look_up(HostRegister at, unsigned bytes, bool store, HostAssembler::Label slow) {
  const std::size_t tlb = offsetof(Core, tlbs) + rights_ * sizeof(Tlb);
  a_.shift_right(scratch_c, at, core_base);
  a_.bytes({0x0F, 0xB6, 0xD1});  // movzx %cl, %edx
  a_.load_word(scratch_c, core_base, scratch_d, in_core(tlb + (store ? offsetof(Tlb, write) : offsetof(Tlb, read))));
  a_.address(scratch_c, scratch_c, at, 0, static_cast<std::int32_t>(bytes) - 1);
  a_.shift_right(scratch_c, scratch_c, core_base);
  a_.jump_unless_rcx_is_0(slow);
  a_.load_word(scratch_d, core_base, scratch_d, in_core(tlb + offsetof(Tlb, add)));
  if (observed_) log_access(at);
}
/// ModRM and SIB for the operand that was looked up.
void Translator::found_operand(unsigned reg, HostRegister at) {
  const bool needs_displacement = (at & 7U) == 5;
  a_.bytes({(needs_displacement ? 0x44U : 0x04U) | (reg & 7U) << 3U, unsigned{scratch_d} << 3U | (at & 7U)});
  if (needs_displacement) a_.bytes({0});
}
void Translator::move_found(unsigned opcode, HostRegister reg, HostRegister at) {  // 8B loads, 89 stores
  a_.bytes({HostAssembler::rex(reg, scratch_d, at), opcode});
  found_operand(reg, at);
}

/// Where the block goes on, by a jump whose distance is changed when it is linked. A loop of one block needs no link.
void Translator::go(unsigned way) {
  if (block_.target[way] == block_.rip) return a_.jump(entry_at_);
  a_.bytes({0xE9});
  name_way(way);
}
/// The last bytes of that jump: its distance, at first to the interpreter.
void Translator::name_way(unsigned way) {
  ways_[way] = a_.label();
  compiled_.distances[way] = distance(a_.size());
  a_.relative(*ways_[way]);
}
void Translator::jcc(std::size_t i) {
  const unsigned condition = forms_[i].opcode & 0xFU;
  if (block_.target[0] == block_.rip) {
    a_.jump_if(condition, entry_at_);
  } else {
    a_.bytes({0x0F, 0x80U | condition});
    name_way(0);
  }
  go(1);
}

void Translator::push_return(const Op& op) {
  a_.move_constant(scratch_c, block_.rip + op.offset + op.length);
  move_found(0x89, scratch_c, scratch_a);
  move_rsp(-stack_word);
}
void Translator::call(std::size_t i) {
  look_up_push(i);
  push_return(block_.ops()[i]);
  go(0);
}
/// Looks the address in RAX up. Found: its code is at the place in RDX; else the code jumps to `slow`.
void Translator::look_up_jump(HostAssembler::Label slow) {
  a_.shift_right(scratch_c, scratch_a, core_base);
  a_.address(scratch_c, scratch_c, scratch_a, 0, 0);
  a_.bytes({0x0F, 0xB6, 0xD1});  // movzx %cl, %edx
  a_.load_word(scratch_c, core_base, scratch_d, jumps(offsetof(CompiledState::Jumps, tags)));
  a_.address(scratch_c, scratch_c, scratch_a, 0, 0);
  far_jump_ = FarJump{.from = a_.label(), .found = a_.label(), .slow = slow};
  a_.jump_unless_rcx_is_0(far_jump_->from);
  a_.here(far_jump_->found);
}
std::int32_t Translator::jumps(std::size_t offset) const {
  return in_state(offsetof(CompiledState, jumps) + rights_ * sizeof(CompiledState::Jumps) + offset);
}
void Translator::ret(std::size_t i) {
  const auto slow = slowly(i);
  look_up(home_of_rsp, word, false, slow);
  move_found(0x8B, scratch_a, home_of_rsp);
  look_up_jump(slow);
  move_rsp(stack_word + static_cast<std::int32_t>(block_.ops()[i].imm));
  jump_found();
}
// FF /4 with a SIB byte.
void Translator::jump_found() {
  a_.bytes({0xFF, 0xA4, 0xC0U | unsigned{scratch_d} << 3U | core_base});
  a_.word32(static_cast<std::uint32_t>(jumps(offsetof(CompiledState::Jumps, code))));
}
void Translator::indirect_jump(std::size_t i) {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  const auto slow = slowly(i);
  if (f.memory) {
    const HostRegister at = address_of(op);
    look_up(at, word, false, slow);
    move_found(0x8B, scratch_a, at);
  } else {
    a_.move(scratch_a, read(f.rm, scratch_a));
  }
  look_up_jump(slow);
  if (f.kind == Kind::jmp_indirect) return jump_found();
  constexpr std::int32_t to = in_state(offsetof(CompiledState, to));
  a_.load_word(scratch_c, core_base, scratch_d, jumps(offsetof(CompiledState::Jumps, code)));
  a_.with_memory(0x89, scratch_c, core_base, to);
  a_.address(scratch_a, home_of_rsp, none, 0, -stack_word);
  look_up(scratch_a, word, true, slow);
  push_return(op);
  indirect(4, core_base, to);
}

bool translate(const Core& core, Block& block, Compiled& compiled, HostAssembler& to) {
  return Translator{core, block, compiled, to}.translate();
}

}  // namespace vpmu::exec
