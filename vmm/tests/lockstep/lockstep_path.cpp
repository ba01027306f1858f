#include "lockstep/lockstep_path.hpp"

#include <algorithm>

#include "lockstep/lockstep_compare.hpp"

namespace vmm {
namespace {

/// What an exit costs, in instructions of the engine.
constexpr std::int64_t price_of_exit = 200;
constexpr std::size_t max_known = 1 << 16;
/// Longer straight code is decoded up to here only: the path of an engine that goes on is lost.
constexpr std::size_t max_items = 1000;

/// Logical instructions leave AF undefined (SDM 1 appendix A), but every processor clears it, and PUSHF often follows.
bool clears_af(std::string_view mnemonic) {
  return mnemonic == "and" || mnemonic == "or" || mnemonic == "xor" || mnemonic == "test";
}

}  // namespace

void LockstepPath::begin(const vpmu::exec::CpuState& state) {
  begin_ = state;
  branches_.clear();
  pages_.clear();
  if (known_.size() > max_known) known_.clear();
}

bool LockstepPath::end(std::uint64_t rip, std::uint64_t instructions) {
  way_.clear();
  here_.clear();
  best_ = {.rip = begin_.rip};
  best_score_ = 0;
  is_cut_ = false;
  std::uint64_t at = begin_.rip;
  std::uint64_t left = instructions;
  const auto add = [&]() -> const Straight* {
    Here* const here = straight_at(at);
    if (here == nullptr) return nullptr;
    way_.push_back(here);
    return here->code;
  };
  for (const Branch& branch : branches_) {
    const Straight* const code = add();
    if (code == nullptr || code->items.back().at != branch.at || code->items.size() > left) return false;
    left -= code->items.size();
    at = branch.to;
  }
  if (left != 0) {
    const Straight* const code = add();
    if (code == nullptr || code->items.size() <= left || code->items[left].at != rip) return false;
  } else if (at != rip) {
    return false;
  }
  find_around();
  return walk(instructions);
}

LockstepPath::Here* LockstepPath::straight_at(std::uint64_t rip) {
  if (const auto found = here_.find(rip); found != here_.end()) return &found->second;
  Straight& code = known_[rip];
  std::array<std::byte, 512> now{};
  const bool same = !code.items.empty() && code.bytes.size() <= now.size() &&
                    bytes_at(rip, std::span{now}.first(code.bytes.size())) == code.bytes.size() &&
                    std::equal(code.bytes.begin(), code.bytes.end(), now.begin());
  if (!same && !decode(rip, code)) return nullptr;
  return &(here_[rip] = Here{.code = &code});
}

const std::byte* LockstepPath::page_at(std::uint64_t page) {
  const auto [found, is_new] = pages_.try_emplace(page);
  if (!is_new) return found->second;
  const auto privilege = begin_.cpl == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  const vpmu::Walk walk = vpmu::translate(begin_.paging, memory_->physical(), vpmu::GuestLinear{page},
                                          vpmu::PagingAccess::execute, privilege, vpmu::AccessedDirty::leave);
  if (const auto* const mapped = std::get_if<vpmu::Mapped>(&walk))
    found->second = memory_->physical().host_page(mapped->address);
  return found->second;
}

std::size_t LockstepPath::bytes_at(std::uint64_t rip, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t at = rip + done;
    const std::uint64_t offset = at % vpmu::page_size;
    const std::byte* const page = page_at(at - offset);
    if (page == nullptr) break;
    const std::size_t part = std::min<std::size_t>(vpmu::page_size - offset, out.size() - done);
    std::copy_n(page + offset, part, out.begin() + static_cast<std::ptrdiff_t>(done));
    done += part;
  }
  return done;
}

bool LockstepPath::decode(std::uint64_t rip, Straight& code) {
  code = {};
  std::uint64_t at = rip;
  std::uint64_t undefined = 0;
  for (bool ends = false; !ends && code.items.size() < max_items;) {
    std::array<std::byte, max_instruction_bytes> bytes{};
    const auto there = std::span{bytes}.first(bytes_at(at, bytes));
    const auto instruction = decode_instruction(there, CodeMode::bits64);
    if (!instruction) {
      // No path goes past this one, but it needs a place.
      if (code.items.empty()) return false;
      code.items.push_back({.at = at, .flags = {}, .count = nullptr, .is_string = false, .differs = true});
      code.ends_way = true;
      break;
    }
    const auto text = there.first(instruction->length);
    const std::string_view mnemonic = instruction->mnemonic;
    Item item{.at = at,
              .flags = instruction->flags,
              .count = &(*mnemonics_)[mnemonic],
              .is_string = instruction->rep,
              .differs = uncompared_bits(*instruction) != 0 || stores_what_may_differ(*instruction)};
    if (clears_af(mnemonic)) item.flags = {item.flags.asked, item.flags.given | item.flags.undefined, 0};
    code.ends_way = code.ends_way || item.differs || (item.flags.asked & undefined) != 0;
    code.asked |= item.flags.asked & code.kept;
    code.kept &= ~(item.flags.given | item.flags.undefined);
    undefined = (undefined & ~item.flags.given) | item.flags.undefined;
    code.items.push_back(item);
    code.bytes.insert(code.bytes.end(), text.begin(), text.end());
    ends = instruction->ends_block;
    at += instruction->length;
  }
  code.undefined = undefined;
  return true;
}

bool LockstepPath::has(const Straight& code, std::uint64_t rip) {
  const auto found = std::ranges::lower_bound(code.items, rip, {}, &Item::at);
  return found != code.items.end() && found->at == rip;
}

void LockstepPath::find_around() {
  max_ = 0;
  for (const auto& [at, here] : here_) max_ = std::max(max_, here.code->items.back().at - at);
  for (auto& [at, here] : here_) each_around(at, [&around = here.around](Here& other) { around.push_back(&other); });
}

/// Calls `visit` with each straight in which there is an instruction at `rip`.
template <class Visit>
void LockstepPath::each_around(std::uint64_t rip, const Visit& visit) {
  for (auto other = here_.upper_bound(rip); other != here_.begin();) {
    --other;
    if (rip - other->first > max_) break;
    if (has(*other->second.code, rip)) visit(other->second);
  }
}

std::uint64_t LockstepPath::times(std::uint64_t rip) {
  std::uint64_t sum = 0;
  each_around(rip, [&](const Here& around) { sum += around.visits; });
  return sum;
}

void LockstepPath::consider(const Place& place) {
  const std::int64_t score =
      static_cast<std::int64_t>(place.instructions) - static_cast<std::int64_t>(place.times) * price_of_exit;
  if (score <= best_score_ || !place.is_findable()) return;
  best_ = place;
  best_score_ = score;
}

/// Considers the last instruction of straight code on the path's first pass: in a short loop there is no better place.
void LockstepPath::consider_last(const Here& here, std::uint64_t done, std::uint64_t undefined) {
  const auto& items = here.code->items;
  for (const Item& item : std::span{items}.first(items.size() - 1))
    undefined = (undefined & ~item.flags.given) | item.flags.undefined;
  consider({done + items.size() - 1, items.back().at, times(items.back().at), undefined, items.back().is_string});
}

// Uses the summary of a straight's effect on flags, unless the path may end inside the straight.
bool LockstepPath::walk(std::uint64_t instructions) {
  std::uint64_t done = 0;
  std::uint64_t undefined = 0;
  for (Here* const step : way_) {
    Here& here = *step;
    const Straight& code = *here.code;
    std::uint64_t times_before = 0;
    for (const Here* const around : here.around) times_before += around->visits;
    consider({done, code.items.front().at, times_before, undefined, code.items.front().is_string});
    if (code.ends_way || (code.asked & undefined) != 0 || code.items.size() > instructions - done) {
      std::size_t i = 0;
      for (; i < code.items.size() && done < instructions; ++i, ++done) {
        const Item& item = code.items[i];
        if (item.differs || (item.flags.asked & undefined) != 0) break;
        undefined = (undefined & ~item.flags.given) | item.flags.undefined;
      }
      if (i < code.items.size()) {
        const Item& item = code.items[i];
        consider({done, item.at, times(item.at), undefined, item.is_string});
        is_cut_ = done < instructions;
        return true;
      }
      ++here.visits;
      continue;
    }
    if (here.visits == 0) consider_last(here, done, undefined);
    undefined = (undefined & code.kept) | code.undefined;
    done += code.items.size();
    ++here.visits;
  }
  const std::uint64_t rip = branches_.empty() ? begin_.rip : branches_.back().to;
  consider({done, rip, times(rip), undefined, false});
  return true;
}

Place LockstepPath::place(std::uint64_t instructions) const {
  Place p{.rip = begin_.rip};
  for (std::uint64_t step = 0; step < way_.size(); ++step) {
    for (const Item& item : way_[step]->code->items) {
      p.rip = item.at;
      p.is_string = item.is_string;
      if (p.instructions == instructions) {
        for (std::uint64_t before = 0; before < step; ++before) p.times += has(*way_[before]->code, p.rip) ? 1 : 0;
        return p;
      }
      p.undefined = (p.undefined & ~item.flags.given) | item.flags.undefined;
      ++p.instructions;
    }
  }
  return best_;
}

void LockstepPath::count() {
  for (auto& [at, here] : here_) here.visits = 0;
  std::uint64_t left = best_.instructions;
  for (Here* const here : way_) {
    const auto& items = here->code->items;
    if (items.size() > left) {
      for (std::size_t i = 0; i < left; ++i) ++*items[i].count;
      break;
    }
    ++here->visits;
    left -= items.size();
  }
  for (const auto& [at, here] : here_)
    for (const Item& item : here.code->items)
      if (here.visits != 0) *item.count += here.visits;
}

}  // namespace vmm
