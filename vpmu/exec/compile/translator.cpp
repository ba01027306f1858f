#include "exec/compile/translator.hpp"

#include <algorithm>
#include <span>

#include "exec/host/host_flags.hpp"
#include "exec/observe/tap.hpp"

namespace vpmu::exec {
namespace {

// Of Jcc.
constexpr unsigned not_equal = 5, above = 7;

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
  if (count_ == 0 || count_ > max_ops) return false;
  for (std::size_t i = 0; i < count_; ++i) {
    Op op = block_.ops()[i];
    op.run = block_.own_run(i);
    forms_[i] = guest_form(block_.code().subspan(op.offset, op.length), op);
  }
  find_places_for_vectors();
  see_flags();
  for (std::size_t i = 0; i < count_; ++i) needs_interpreter(i);
  if (observed_) leave_to_interpreter_what_cannot_be_noted();
  if (!is_worth_it()) return false;
  if (observed_) note_accesses();
  const auto may_leave_a_rest = [](const GuestForm& f) { return f.kind == Kind::vector || f.kind == Kind::x87; };
  const auto rests = std::ranges::count_if(std::span{forms_}.first(count_), may_leave_a_rest);
  compiled_.sites.reserve(count_ + other_sites + static_cast<std::size_t>(rests));
  write_entry();
  for (std::size_t i = 0; i < length_; ++i) write(i);
  put_vectors_back();
  save_flags();
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
    if (forms_[i].may_stop() || forms_[i].flags == FlagUse::other || forms_[i].flags == FlagUse::reads)
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
  const bool in_two = !f.memory && f.bytes >= 4;  // shift_in_two()
  const bool same = (f.kind != Kind::shift_count || host.shift || in_two) &&
                    (f.kind != Kind::shift_cl || (host.shift && host.shift_af) || in_two) &&
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
  const auto alone = [&] { return i == 0 ? block_.first_alone : fused ? block_.comparison : block_.own_run(i); };
  const Run run = !goes_on ? alone() : observed_ ? observed_run(block_, i) : block_.own_run(i);
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

void Translator::name_site(const Site* site) { a_.mov_constant(scratch_c, reinterpret_cast<std::uintptr_t>(site)); }
void Translator::leave_to(const Site* site) {
  name_site(site);
  a_.jmp(HostAssembler::Memory{core_base, in_state(offsetof(CompiledState, leave))});
}

void Translator::write_entry() {
  counts_ = a_.label();
  stale_ = a_.label();
  too_few_ = a_.label();
  a_.align(16);
  compiled_.checked = distance(a_.size());
  const std::size_t stale =
      code_privilege(static_cast<Rights>(rights_), CodeMode::bits64) * sizeof(Core::stale[0]) + block_.slot;
  a_.cmp_8({core_base, in_core(offsetof(Core, stale) + stale)}, 0);
  a_.jump_if(not_equal, stale_);
  a_.cmp_with(base(), scratch_c);
  a_.jump_if(not_equal, stale_);
  entry_at_ = a_.label();
  a_.here(entry_at_);
  compiled_.entry = distance(a_.size());
  a_.vpsubq_ymm15(counts_);
  a_.vmovmskpd_ymm15(scratch_c);
  a_.test(scratch_c, scratch_c);
  a_.jump_if(not_equal, too_few_);
  compiled_.body = distance(a_.size());
  if (observed_) log_entry();
  if (block_.classes != nullptr) count_classes();
}
/// Adds the block's classes to Core::classes, without a change of flags.
void Translator::count_classes() {
  for (const BlockClasses::Total& total : block_.classes->totals) {
    const std::int32_t at = in_core(offsetof(Core, classes) + static_cast<unsigned>(total.of) * word);
    a_.mov(scratch_d, {core_base, at});
    a_.lea(scratch_d, scratch_d, none, 0, total.count);
    a_.mov({core_base, at}, scratch_d);
  }
}
void Translator::write_outside() {
  a_.here(too_few_);
  a_.vpaddq_ymm15(counts_);
  leave_to(add_site(Site::Why::budget, 0));
  a_.here(stale_);
  a_.mov({core_base, in_state(offsetof(CompiledState, to_page))}, scratch_c);
  leave_to(add_site(Site::Why::stale, 0));
  if (far_jump_) {
    a_.here(far_jump_->from);
    a_.call({core_base, in_state(offsetof(CompiledState, look_further) + rights_ * word)});
    a_.jump_unless_rcx_is_0(far_jump_->slow);
    a_.jump(far_jump_->found);
  }
  write_far_pages();
  write_x87_loads();
  for (std::size_t n = 0; n < outside_count_; ++n) {
    const Outside& o = outside_[n];
    a_.here(o.from);
    move_vectors(true, o.put_back);
    if (o.saves_flags) a_.save_flags(flags_at);
    if (o.site->why == Site::Why::alone) {
      name_site(o.site);
      a_.call({core_base, in_state(offsetof(CompiledState, run_alone))});
      const HostAssembler::Label stops = a_.label();
      if (o.rest != nullptr) {
        a_.mov(scratch_c, {core_base, o.condition});
        a_.jump_unless_rcx_is_0(stops);
      }
      if (o.x87_again) a_.call({core_base, in_state(offsetof(CompiledState, load_x87))});
      move_vectors(false, o.take_again);
      if (o.flags_again) a_.load_flags(flags_at);
      a_.jump(o.back);
      if (o.rest != nullptr) {
        a_.here(stops);
        leave_to(o.rest);
      }
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

/// A way out of the fast path of instruction `i`: the interpreter runs it, and, unless it ends the block or loads the
/// x87 control word, the code goes on after it.
HostAssembler::Label Translator::slowly(std::size_t i) {
  if (outside_count_ == outside_.size()) {
    a_.spoil();
    return outside_.front().from;
  }
  Outside& o = outside_[outside_count_++];
  o.from = a_.label();
  o.back = behind_;
  const GuestForm& f = forms_[i];
  const bool ends_here = f.is_flow() || (f.kind == Kind::x87 && loads_control_word(*f.host));
  o.site = add_site(ends_here ? Site::Why::op : Site::Why::alone, i);
  o.put_back = vectors_changed_;
  o.saves_flags = !flags_in_state_;
  return o.from;
}

void Translator::save_flags() {
  if (!flags_in_state_) a_.save_flags(flags_at);
  flags_in_state_ = true;
}
void Translator::load_flags() {
  if (!flags_in_host_) a_.load_flags(flags_at);
  flags_in_host_ = true;
}
/// From here on code may change the host's. Changes RAX.
void Translator::take_host_flags() {
  save_flags();
  flags_in_host_ = false;
}
/// Whether the code of an instruction that neither reads nor keeps flags needs the host's.
bool Translator::needs_host_flags(std::size_t i) const {
  const GuestForm& f = forms_[i];
  const bool is_of_the_stack = (f.kind >= Kind::push && f.kind <= Kind::leave) || f.kind >= Kind::call;
  if (f.memory || is_of_the_stack) return true;
  if (f.kind == Kind::x87) return !x87_is_here_;
  if (f.kind != Kind::vector) return false;
  const bool may_run = f.vector.is_avx ? avx_may_run_ : sse_may_run_;
  return !may_run || (f.vector.uses_mxcsr && !mxcsr_is_here_);
}
void Translator::prepare_flags(std::size_t i) {
  const GuestForm& f = forms_[i];
  if (f.kind <= Kind::alone) return save_flags();
  // SHL by CL keeps the flags if CL is 0, which shift_in_two() leaves to the interpreter.
  const bool in_two = f.kind == Kind::shift_cl && shifts_in_two(i);
  if (in_two || (f.flags != FlagUse::other && f.flags != FlagUse::reads && needs_host_flags(i)))
    return take_host_flags();
  if (f.flags == FlagUse::other || f.flags == FlagUse::reads) load_flags();
}
/// Goes on if the word is 0. Changes RCX, or the host's flags if it may.
void Translator::jump_unless_0(HostAssembler::Memory what, HostAssembler::Label to) {
  if (flags_in_host_) {
    a_.mov(scratch_c, what);
    return a_.jump_unless_rcx_is_0(to);
  }
  a_.cmp(what, 0);
  a_.jump_if(not_equal, to);
}
void Translator::jump_unless_rcx_is_0(HostAssembler::Label to) {
  if (flags_in_host_) return a_.jump_unless_rcx_is_0(to);
  a_.test(scratch_c, scratch_c);
  a_.jump_if(not_equal, to);
}

HostRegister Translator::read(unsigned guest, HostRegister scratch) {
  if (guest >= homes.size()) {
    a_.spoil();
    return scratch;
  }
  if (homes[guest] != none) return homes[guest];
  a_.mov(scratch, {core_base, register_in_core(guest)});
  return scratch;
}
void Translator::written(unsigned guest, HostRegister in) {
  if (guest >= homes.size()) return a_.spoil();
  if (homes[guest] == none)
    a_.mov({core_base, register_in_core(guest)}, in);
  else if (homes[guest] != in)
    a_.mov(homes[guest], in);
}

/// The linear address at that distance from the block's first byte. Changes no flag.
void Translator::place_in_code(HostRegister to, std::int64_t distance) {
  const std::int64_t in_page = distance + block_.offset;
  const auto disp = static_cast<std::int32_t>(in_page);
  a_.mov(to, base());
  a_.lea(to, to, none, 0, disp);
  if (in_page != disp) a_.spoil();
}

/// Makes the address of the op's memory operand, or finds the register that holds it.
HostRegister Translator::address_of(const Op& op) {
  if (op.b == block_rip * 8) {
    place_in_code(scratch_a, op.disp);
  } else if (op.b == zero * 8 && op.x == zero * 8) {
    a_.mov_constant(scratch_a, static_cast<std::uint64_t>(std::int64_t{op.disp}));
  } else {
    const HostRegister base = op.b == zero * 8 ? none : read(op.b / 8, scratch_a);
    const HostRegister index = op.x == zero * 8 ? none : read(op.x / 8, scratch_c);
    if (index == none && op.disp == 0 && op.seg == zero * 8) return base;
    a_.lea(scratch_a, base, index, op.scale, op.disp);
  }
  if (op.seg != zero * 8) {
    a_.mov(scratch_c, {core_base, register_in_core(op.seg / 8)});
    a_.lea(scratch_a, scratch_a, scratch_c, 0, 0);
  }
  return scratch_a;
}
/// Looks an address up in the TLB. Found: the operand is at `at` + RDX; else the code jumps to `slow`.
void Translator::look_up(HostRegister at, unsigned bytes, bool store, HostAssembler::Label slow) {
  const std::size_t tlb = offsetof(Core, tlbs) + rights_ * sizeof(Tlb);
  a_.shrx(scratch_c, at, core_base);
  a_.movzx_8(scratch_d, scratch_c);
  a_.mov_indexed(scratch_c, core_base, scratch_d, in_core(tlb + (store ? offsetof(Tlb, write) : offsetof(Tlb, read))));
  // What an observer is told of the page is what the TLB has when the log is read: there it may not change meanwhile.
  const HostAssembler::Label from = observed_ ? slow : a_.label();
  if (flags_in_host_) {
    a_.lea(scratch_c, scratch_c, at, 0, static_cast<std::int32_t>(bytes) - 1);
    a_.shrx(scratch_c, scratch_c, core_base);
    a_.jump_unless_rcx_is_0(from);
  } else {
    a_.add(scratch_c, at);
    a_.cmp(scratch_c, static_cast<std::uint32_t>(page_size - bytes));
    a_.jump_if(above, from);
  }
  a_.mov_indexed(scratch_d, core_base, scratch_d, in_core(tlb + offsetof(Tlb, add)));
  if (observed_) return log_access(at);
  if (far_page_count_ == far_pages_.size()) return a_.spoil();
  FarPage& far = far_pages_[far_page_count_++];
  far = {.from = from,
         .found = a_.label(),
         .slow = slow,
         .at = at,
         .bytes = static_cast<std::uint8_t>(bytes),
         .store = store};
  a_.here(far.found);
}
/// The routine gets the address in RDX, and that of the operand's last byte in RCX.
void Translator::write_far_pages() {
  for (const FarPage& far : std::span{far_pages_}.first(far_page_count_)) {
    a_.here(far.from);
    a_.mov(scratch_d, far.at);
    a_.lea(scratch_c, far.at, none, 0, far.bytes - 1);
    a_.call({core_base, in_state(offsetof(CompiledState, look_page_up) + (2 * rights_ + (far.store ? 1 : 0)) * word)});
    a_.jump_unless_rcx_is_0(far.slow);
    a_.jump(far.found);
  }
}
void Translator::load_found(HostRegister to, HostRegister at, bool wide) {
  if (wide)
    a_.mov(to, found(at));
  else
    a_.mov_32(to, found(at));
}

/// Where the block goes on, by a jump whose distance is changed when it is linked. A loop of one block needs no link.
void Translator::go(unsigned way) {
  if (block_.distance[way] == 0) return a_.jump(entry_at_);
  name_page(way);
  jump_out(way, std::nullopt);
}
/// Puts the page where it goes on into RCX, unless that block has the same slot. Changes no flag.
void Translator::name_page(unsigned way) {
  const std::int64_t page = block_.page_distance(way);
  const bool is_in_one = block_.offset + block_.distance[way] - page <= last_in_one_page;
  if (page == 0 && is_in_one && block_.slot != block_.own) return;
  compiled_.names_page[way] = true;
  place_in_code(scratch_c, page - block_.offset);
}
/// By a jump, of that condition or always, which leads to the interpreter at first.
void Translator::jump_out(unsigned way, std::optional<unsigned> condition) {
  constexpr std::size_t distance_bytes = 4;
  const HostAssembler::Label back = a_.label();
  ways_[way] = back;
  if (condition)
    a_.jump_if(*condition, back);
  else
    a_.jump(back);
  compiled_.distances[way] = distance(a_.size() - distance_bytes);
}
void Translator::jcc(std::size_t i) {
  save_flags();
  const unsigned condition = forms_[i].opcode & 0xFU;
  if (block_.distance[0] == 0) {
    a_.jump_if(condition, entry_at_);
  } else {
    name_page(0);
    jump_out(0, condition);
  }
  go(1);
}

void Translator::push_return(const Op& op) {
  place_in_code(scratch_c, op.offset + op.length);
  a_.mov(found(scratch_a), scratch_c);
  move_rsp(-stack_word);
}
void Translator::call(std::size_t i) {
  look_up_push(i);
  push_return(block_.ops()[i]);
  go(0);
}
/// Looks the address in RAX up. Found: its code is at the place in RDX; else the code jumps to `slow`.
void Translator::look_up_jump(HostAssembler::Label slow) {
  a_.shrx(scratch_c, scratch_a, core_base);
  a_.lea(scratch_c, scratch_c, scratch_a, 0, 0);
  a_.movzx_8(scratch_d, scratch_c);
  a_.mov_indexed(scratch_c, core_base, scratch_d, jumps(offsetof(CompiledState::Jumps, tags)));
  a_.add(scratch_c, scratch_a);
  far_jump_ = FarJump{.from = a_.label(), .found = a_.label(), .slow = slow};
  a_.jump_if(not_equal, far_jump_->from);
  a_.here(far_jump_->found);
}
std::int32_t Translator::jumps(std::size_t offset) const {
  return in_state(offsetof(CompiledState, jumps) + rights_ * sizeof(CompiledState::Jumps) + offset);
}
void Translator::ret(std::size_t i) {
  const auto slow = slowly(i);
  look_up(home_of_rsp, word, false, slow);
  a_.mov(scratch_a, found(home_of_rsp));
  look_up_jump(slow);
  move_rsp(stack_word + static_cast<std::int32_t>(block_.ops()[i].imm));
  jump_found();
}
void Translator::jump_found() {
  name_page_found();
  a_.jmp_indexed(core_base, scratch_d, jumps(offsetof(CompiledState::Jumps, code)));
}
/// The page of the address in RAX, where the block that was looked up is to begin. Changes flags.
void Translator::name_page_found() {
  a_.mov(scratch_c, scratch_a);
  a_.and_constant(scratch_c, -static_cast<std::int32_t>(page_size));
}
void Translator::indirect_jump(std::size_t i) {
  const GuestForm& f = forms_[i];
  const Op& op = block_.ops()[i];
  const auto slow = slowly(i);
  if (f.memory) {
    const HostRegister at = address_of(op);
    look_up(at, word, false, slow);
    a_.mov(scratch_a, found(at));
  } else {
    a_.mov(scratch_a, read(f.rm, scratch_a));
  }
  look_up_jump(slow);
  if (f.kind == Kind::jmp_indirect) return jump_found();
  constexpr std::int32_t to = in_state(offsetof(CompiledState, to));
  a_.mov_indexed(scratch_c, core_base, scratch_d, jumps(offsetof(CompiledState::Jumps, code)));
  a_.mov({core_base, to}, scratch_c);
  name_page_found();
  a_.mov({core_base, in_state(offsetof(CompiledState, to_page))}, scratch_c);
  a_.lea(scratch_a, home_of_rsp, none, 0, -stack_word);
  look_up(scratch_a, word, true, slow);
  push_return(op);
  a_.mov(scratch_c, {core_base, in_state(offsetof(CompiledState, to_page))});
  a_.jmp(HostAssembler::Memory{core_base, to});
}

bool translate(const Core& core, Block& block, Compiled& compiled, HostAssembler& to) {
  return Translator{core, block, compiled, to}.translate();
}

}  // namespace vpmu::exec
