#include "timing/core_timer.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "timing/form.hpp"

namespace vpmu::timing {
namespace {

/// Bytes of a string instruction's elements that move in a cycle. 248966, fast-string operation.
constexpr std::uint64_t string_bytes = 16;
/// Accesses whose place is not known are no one else's.
constexpr TimedAccess unknown_load{.physical = 1ULL << 63, .bytes = 1};
constexpr TimedAccess unknown_store{.physical = 1ULL << 63 | 2048, .bytes = 1};

/// The store of an instruction that has loaded from there: what its load has waited for is there.
TimedAccess behind_load(TimedAccess access, std::uint16_t late) {
  access.late = late;
  access.walk = 0;
  access.transfers = {};
  return access;
}

/// Of a block that need not fit the micro-op cache.
BlockRun as_it_fits(const TimedBlock& block, BlockRun run) {
  run.decoded &= block.fits_cache;
  return run;
}

BlockRun run_of(const uarch::CodeArrival& arrival) {
  return {.mispredicted = arrival.mispredicted,
          .taken = arrival.taken,
          .decoded = arrival.decoded,
          .fetch_wait = arrival.wait,
          .code_walk = arrival.walk,
          .code_read = arrival.read};
}

constexpr std::uint64_t line_bytes = 64;
bool is_in_one_line(std::uint64_t a, std::uint64_t b) { return a / line_bytes == b / line_bytes; }
/// Of code of many short instructions: a TimedBlock holds no more.
constexpr std::size_t max_part = TimedBlock::max_instructions;

}  // namespace

std::shared_ptr<const CoreTimer::Note> CoreTimer::make_note(const SeenBlock& block) {
  auto note = std::make_shared<Note>();
  note->of = &block;
  note->rip = block.rip;
  note->bits = block.bits;
  note->bytes.assign(block.code.begin(), block.code.end());
  std::uint16_t offset = 0;
  for (const TimedInstruction& i : timed_code(block.code, block.bits, on_)) {
    if (note->steps.size() == block.instructions) break;
    if (!i.has_row) count_without_row(block.code.subspan(offset), block.bits);
    note->steps.push_back({.offset = offset,
                           .loads = i.loads,
                           .stores = i.stores,
                           .ends_part = i.barrier != Barrier::none,
                           .is_locked = i.is_locked});
    offset = static_cast<std::uint16_t>(offset + i.length);
  }
  note->steps.push_back({.offset = offset});
  note->ends_in_branch = block.branch.kind != BranchKind::none && note->instructions() == block.instructions;
  for (std::size_t first = 0, last = 0; first < note->instructions(); first = last) {
    const std::uint16_t from = note->steps[first].offset;
    const std::uint64_t begins = block.rip + from;
    for (last = first + 1; last < note->instructions() && last - first < max_part && !note->steps[last - 1].ends_part &&
                           is_in_one_line(begins, block.rip + note->steps[last].offset);)
      ++last;
    const std::uint16_t to = note->steps[last].offset;
    const std::uint64_t ends = block.rip + to;
    const bool at_end = last == note->instructions();
    note->parts.push_back({.first = static_cast<std::uint16_t>(first),
                           .instructions = static_cast<std::uint16_t>(last - first),
                           .offset = from,
                           .line = static_cast<std::uint16_t>(begins / line_bytes - block.rip / line_bytes),
                           .is_whole = !at_end || note->ends_in_branch || note->steps[last - 1].ends_part ||
                                       !is_in_one_line(begins, ends)});
    note->codes.push_back({.block = blocks_.find(begins, note->bits, std::span{note->bytes}.subspan(from, to - from))});
  }
  return note;
}

void CoreTimer::count_without_row(std::span<const std::byte> code, std::uint8_t bits) {
  ++without_row_;
  const auto form = bits == 64 ? read_form(code) : std::nullopt;
  if (!form) return;
  if (const auto known = forms_without_row_.find(form->name); known != forms_without_row_.end())
    ++known->second;
  else if (forms_without_row_.size() < max_forms_without_row)
    forms_without_row_.emplace(form->name, 1);
}

// The blocks that it keeps may be others', too.
std::size_t CoreTimer::Note::memory() const {
  std::size_t all = sizeof *this + bytes.size();
  for (const PartCode& code : codes) all += sizeof code + sizeof(uarch::CodePart) + code.block->bytes();
  return all + steps.size() * sizeof(Step);
}

namespace {

constexpr unsigned generation_at = 32;

}  // namespace

inline bool CoreTimer::has(const std::vector<std::shared_ptr<const Note>>& notes, const SeenBlock& block) {
  const std::size_t index = static_cast<std::uint32_t>(block.note);
  return index < notes.size() && notes[index] != nullptr && notes[index]->of == &block;
}

void CoreTimer::keep_note(const SeenBlock& block) {
  // Blocks are not known to be gone: when there are so many, those are forgotten that were not seen since there were.
  if (note_bytes_ >= BlockStore::max_bytes) {
    older_notes_ = std::exchange(notes_, {});
    older_note_bytes_ = std::exchange(note_bytes_, 0);
    ++generation_;
  }
  std::shared_ptr<const Note> note;
  if (block.note >> generation_at == generation_ - 1 && has(older_notes_, block))
    note = std::move(older_notes_[static_cast<std::uint32_t>(block.note)]);
  if (note == nullptr) note = make_note(block);
  block.note = generation_ << generation_at | notes_.size();
  note_bytes_ += note->memory();
  notes_.push_back(std::move(note));
}

/// What is kept of the block, made when it is first seen.
inline const std::shared_ptr<const CoreTimer::Note>& CoreTimer::note_of(const SeenBlock& block) {
  if (block.note >> generation_at != generation_ || !has(notes_, block)) [[unlikely]]
    keep_note(block);
  return notes_[static_cast<std::uint32_t>(block.note)];
}

/// Finds the places of the SeenBlock's accesses, which are known once the block is compiled.
void CoreTimer::place(const Note& note, const SeenBlock& block) {
  note.places.clear();
  note.is_placed = true;
  std::size_t n = 0;
  for (std::size_t number = 0; number < note.parts.size(); ++number) {
    uarch::CodePart& part = note.parts[number];
    part.first_access = static_cast<std::uint16_t>(n);
    std::size_t first = 0, instruction = part.first, loads = 0, stores = 0, at = 0;
    bool is_direct = true;
    for (; n < block.accesses.size() && block.accesses[n].instruction < part.first + part.instructions; ++n) {
      const BlockAccess& a = block.accesses[n];
      for (; instruction < a.instruction; ++instruction, loads = stores = 0)
        first += note.steps[instruction].loads + std::size_t{note.steps[instruction].stores};
      const Step& i = note.steps[instruction];
      Place place;
      if ((a.both || !a.is(Seen::store) || i.is_locked) && loads < i.loads)
        place.load = static_cast<std::uint16_t>(first + loads++);
      if ((a.both || a.is(Seen::store)) && stores < i.stores)
        place.store = static_cast<std::uint16_t>(first + i.loads + stores++);
      is_direct &=
          (place.load == at) != (place.store == at) && (place.load == Place::none || place.store == Place::none);
      ++at;
      note.places.push_back(place);
    }
    part.accesses = static_cast<std::uint16_t>(n - part.first_access);
    note.codes[number].is_direct = is_direct && at == note.codes[number].block->access_count;
  }
  // Of an instruction that is none, which does not retire.
  note.places.resize(block.accesses.size());
}

uarch::BlockCode CoreTimer::code_of(const SeenBlock& block) {
  const Note& note = *note_of(block);
  if (current_ != nullptr) [[unlikely]]
    current_.reset();  // its end is not known of, but something else begins
  if (open_.instructions != 0) [[unlikely]]
    return {};
  if (note.places.size() != block.accesses.size() || !note.is_placed) [[unlikely]]
    place(note, block);
  return {.parts = note.parts, .known = &note};
}

void CoreTimer::retire(const uarch::BlockCode& code, std::size_t number, std::span<const uarch::ClockedAccess> accesses,
                       const uarch::CodeArrival& arrival) {
  const Note& note = *static_cast<const Note*>(code.known);
  const PartCode& part = note.codes[number];
  if (!part.is_direct) accesses = placed(note, number, accesses);
  pipeline_.retire(part.block, accesses,
                   {.mispredicted = arrival.mispredicted,
                    .taken = arrival.taken,
                    .decoded = arrival.decoded && part.block->fits_cache,
                    .fetch_wait = arrival.wait,
                    .code_walk = arrival.walk,
                    .code_read = arrival.read});
  if (arrival.changes_code) [[unlikely]]
    pipeline_.clear();
  tell(note.parts[number].instructions);
}

/// The accesses of a part of a SeenBlock as those of its TimedBlock.
std::span<const TimedAccess> CoreTimer::placed(const Note& note, std::size_t number,
                                               std::span<const uarch::ClockedAccess> accesses) {
  const TimedBlock& block = *note.codes[number].block;
  scratch_.clear();
  for (const TimedBlock::Access& access : block.accesses())
    scratch_.push_back(access.is_store ? unknown_store : unknown_load);
  const Place* place = note.places.data() + note.parts[number].first_access;
  for (const uarch::ClockedAccess& access : accesses) {
    if (place->load != Place::none) scratch_[place->load] = access;
    if (place->store != Place::none)
      scratch_[place->store] = place->load == Place::none ? access : behind_load(access, access.store_late);
    ++place;
  }
  return scratch_;
}

void CoreTimer::begin(const SeenBlock& block, std::uint64_t now, std::size_t first) {
  retire_to(now);
  current_ = note_of(block);
  lines_.assign(block.lines.begin(), block.lines.end());
  taken_ = first;
  begun_ = now;
}

/// The front end comes to this instruction of the block that began last, unless it is in the open part.
void CoreTimer::arrive(std::size_t index) {
  if (has_arrived_ || index >= current_->instructions()) return;
  has_arrived_ = true;
  const std::uint64_t rip = current_->rip + current_->steps[index].offset;
  const std::size_t line = rip / line_bytes - current_->rip / line_bytes;
  if (line < lines_.size()) run_ = run_of(fetcher_->arrive(rip, lines_[line]));
}

void CoreTimer::reach(std::uint64_t now) {
  retire_to(now);
  if (current_ != nullptr) arrive(taken_);
}

void CoreTimer::access(bool store, const uarch::ClockedAccess& access, std::uint64_t now) {
  if (accessed_.empty() || accessed_.back().now != now) accessed_.push_back({.now = now});
  Accessed& of = accessed_.back();
  std::uint8_t& count = store ? of.store_count : of.load_count;
  auto& these = store ? of.stores : of.loads;
  of.more.changed_code |= store && access.changed_code;
  if (count < these.size()) {
    const auto loads = std::span{of.loads}.first(store ? of.load_count : 0);
    const auto same = std::ranges::find_if(
        loads, [&](const auto& l) { return l.physical == access.physical && l.bytes == access.bytes; });
    if (same != loads.end()) same->transfers.append(access.transfers.begun());
    these[count++] = same != loads.end() ? behind_load(access, access.late) : access;
  } else {
    of.more.add(access);
  }
}

/// The open part's code, as that of no block.
void CoreTimer::put_together() {
  const std::shared_ptr<const Note> note = std::move(open_.note);
  open_.note.reset();
  if (note == nullptr) return;
  open_.bytes.assign(note->bytes.begin() + note->steps[open_.first].offset,
                     note->bytes.begin() + note->steps[open_.first + open_.instructions].offset);
}

/// An instruction of the block that began last has retired.
void CoreTimer::take(std::size_t index, std::uint64_t now) {
  // Only a saved state that is not one of ours has code of another mode, which would be read otherwise.
  if (open_.instructions != 0 && open_.bits != current_->bits) close();
  arrive(index);
  const Note& note = *current_;
  const std::uint16_t offset = note.steps[index].offset, end = note.steps[index + 1].offset;
  if (open_.instructions == 0) {
    open_.note = current_;
    open_.first = index;
    open_.rip = note.rip + offset;
    open_.bits = note.bits;
  } else if (open_.note != current_) {
    put_together();
    open_.bytes.insert(open_.bytes.end(), note.bytes.begin() + offset, note.bytes.begin() + end);
  }
  ++open_.instructions;
  take_accesses(note.steps[index], now);
  const bool branches = note.ends_in_branch && index + 1 == note.instructions();
  if (branches || note.steps[index].ends_part || !is_in_one_line(open_.rip, note.rip + end) ||
      open_.instructions == max_part)
    close();
}

void CoreTimer::take_accesses(const Step& i, std::uint64_t now) {
  const bool accesses = !accessed_.empty() && accessed_.front().now == now;
  if (!accesses) {
    open_.accesses.insert(open_.accesses.end(), i.loads, unknown_load);
    open_.accesses.insert(open_.accesses.end(), i.stores, unknown_store);
    return;
  }
  Accessed& of = accessed_.front();
  if (i.is_locked && of.load_count == 0 && of.store_count == 1) {
    of.loads[of.load_count++] = of.stores[0];
    of.stores[0] = behind_load(of.stores[0], 0);
  }
  for (unsigned n = 0; n < i.loads; ++n) open_.accesses.push_back(n < of.load_count ? of.loads[n] : unknown_load);
  for (unsigned n = 0; n < i.stores; ++n) open_.accesses.push_back(n < of.store_count ? of.stores[n] : unknown_store);
  for (unsigned n = i.loads; n < of.load_count; ++n) open_.more.add(of.loads[n]);
  for (unsigned n = i.stores; n < of.store_count; ++n) open_.more.add(of.stores[n]);
  open_.more.add(of.more);
  accessed_.erase(accessed_.begin());
}

void CoreTimer::retire_to(std::uint64_t now) {
  if (current_ == nullptr) return;
  while (begun_ + taken_ < now && taken_ < current_->instructions()) {
    const std::size_t index = taken_++;
    take(index, begun_ + index);
  }
}

/// The open part, as if it ended here.
std::shared_ptr<const TimedBlock> CoreTimer::open_block() {
  if (open_.note != nullptr)
    for (std::size_t number = 0; number < open_.note->parts.size(); ++number)
      if (open_.note->parts[number].first == open_.first &&
          open_.note->parts[number].instructions == open_.instructions)
        return open_.note->codes[number].block;
  put_together();
  return blocks_.find(open_.rip, open_.bits, open_.bytes);
}

std::uint64_t CoreTimer::More::busy(const Microarchitecture& on, unsigned channel) const {
  return std::max({bytes / string_bytes, late, fills / on.fill_buffers, from_memory * channel});
}

void CoreTimer::close() {
  if (open_.instructions == 0) return;
  const std::size_t instructions = open_.instructions;
  const auto block = open_block();
  pipeline_.retire(block, open_.accesses, as_it_fits(*block, run_));
  const std::uint64_t busy = open_.more.busy(on_, channel_);
  if (busy != 0) pipeline_.pause(static_cast<unsigned>(std::min<std::uint64_t>(busy, 1U << 20)));
  if (open_.more.changed_code) pipeline_.clear();
  open_.note.reset();
  open_.instructions = 0;
  open_.bytes.clear();
  open_.accesses.clear();
  open_.more = {};
  has_arrived_ = false;
  tell(instructions);
}

void CoreTimer::tell(std::uint64_t instructions) {
  const std::uint64_t now = static_cast<std::uint64_t>(pipeline_.now()) / cycle;
  const std::uint64_t most = told_ + instructions * max_per_instruction;
  if (now > most) [[unlikely]]
    ++delayed_;
  told_ = std::min(now, most);
}

PipelineQuantities CoreTimer::told() {
  using enum PipelineQuantity;
  return all_pipeline_quantities.without(PipelineQuantities::of(from_lsd, resteer));
}

std::uint64_t CoreTimer::cycles(std::uint64_t now) {
  retire_to(now);
  if (open_.instructions == 0) return told_;
  const std::uint64_t most = told_ + open_.instructions * max_per_instruction;
  const auto block = open_block();
  const Time at = pipeline_.peek(*block, open_.accesses, as_it_fits(*block, run_));
  return std::max(told_, std::min(static_cast<std::uint64_t>(at) / cycle + open_.more.busy(on_, channel_), most));
}

void CoreTimer::pause(std::uint64_t now, unsigned cycles) {
  retire_to(now);
  for (const Accessed& left : accessed_) open_.more.add(left.more);  // of a string instruction that was left
  accessed_.clear();
  close();
  current_.reset();
  has_arrived_ = false;
  pipeline_.pause(cycles);
  told_ = std::max(told_, static_cast<std::uint64_t>(pipeline_.now()) / cycle);
}

CoreUse CoreTimer::share_with(const CoreUse* other, std::uint64_t now) {
  retire_to(now);
  close();
  current_.reset();
  has_arrived_ = false;
  return pipeline_.share_with(other);
}

namespace {

/// An access, as it is saved.
using AccessImage = std::array<std::uint64_t, 6>;

AccessImage image_of(const TimedAccess& access) {
  return {access.physical, access.bytes,           access.late, static_cast<std::uint64_t>(access.level),
          access.walk,     access.transfers.word()};
}
/// Of any bytes.
TimedAccess access_of(const AccessImage& image) {
  const auto [at, bytes, late, level, walk, transfers] = image;
  return {.physical = at,
          .bytes = std::max<std::uint16_t>(static_cast<std::uint16_t>(bytes), 1),
          .late = static_cast<std::uint16_t>(late),
          .level = static_cast<HitLevel>(level % hit_level_count),
          .walk = static_cast<std::uint16_t>(walk),
          .transfers = uarch::Transfers::of(static_cast<std::uint32_t>(transfers))};
}

/// What has retired of a part, as it is saved.
struct OpenImage {
  static constexpr std::size_t max_bytes = max_part * 15, max_accesses = max_part * 4;
  std::uint64_t rip{}, bits{}, byte_count{}, access_count{}, more_bytes{}, more_late{}, more_fills{},
      more_from_memory{}, changed_code{};
  std::uint64_t has_arrived{}, mispredicted{}, taken{}, decoded{}, fetch_wait{}, code_walk{}, code_read{};
  std::array<std::byte, max_bytes> bytes{};
  std::array<AccessImage, max_accesses> accesses{};
  // Of a string instruction that has done some of its elements: its first loads, its first stores, and all others.
  std::array<AccessImage, CoreTimer::max_of_one> loads{}, stores{};
  std::uint64_t load_count{}, store_count{}, others_bytes{}, others_late{}, others_fills{}, others_from_memory{},
      change_code{};
};
static_assert(std::has_unique_object_representations_v<OpenImage>);

}  // namespace

void CoreTimer::visit_state(const uarch::StateVisitor& visit, std::uint64_t now) {
  retire_to(now);
  put_together();
  OpenImage image{.rip = open_.rip,
                  .bits = open_.bits,
                  .byte_count = open_.bytes.size(),
                  .access_count = open_.accesses.size(),
                  .more_bytes = open_.more.bytes,
                  .more_late = open_.more.late,
                  .more_fills = open_.more.fills,
                  .more_from_memory = open_.more.from_memory,
                  .changed_code = open_.more.changed_code,
                  .has_arrived = has_arrived_,
                  .mispredicted = run_.mispredicted,
                  .taken = run_.taken,
                  .decoded = run_.decoded,
                  .fetch_wait = run_.fetch_wait,
                  .code_walk = run_.code_walk,
                  .code_read = run_.code_read};
  std::ranges::copy(open_.bytes, image.bytes.begin());
  for (std::size_t n = 0; n < std::min(open_.accesses.size(), image.accesses.size()); ++n)
    image.accesses[n] = image_of(open_.accesses[n]);
  if (!accessed_.empty()) {
    const Accessed& begun = accessed_.front();
    std::ranges::transform(begun.loads, image.loads.begin(), image_of);
    std::ranges::transform(begun.stores, image.stores.begin(), image_of);
    image.load_count = begun.load_count;
    image.store_count = begun.store_count;
    image.others_bytes = begun.more.bytes;
    image.others_late = begun.more.late;
    image.others_fills = begun.more.fills;
    image.others_from_memory = begun.more.from_memory;
    image.change_code = begun.more.changed_code;
  }
  visit(uarch::state_bytes(image));
  visit(uarch::state_bytes(told_));
  pipeline_.visit_state(visit);
  told_ = std::min(told_, static_cast<std::uint64_t>(pipeline_.now()) / cycle);
  accessed_.clear();
  if (image.load_count != 0 || image.store_count != 0) {
    Accessed& begun = accessed_.emplace_back(Accessed{.now = now});
    std::ranges::transform(image.loads, begun.loads.begin(), access_of);
    std::ranges::transform(image.stores, begun.stores.begin(), access_of);
    begun.load_count = static_cast<std::uint8_t>(std::min<std::uint64_t>(image.load_count, max_of_one));
    begun.store_count = static_cast<std::uint8_t>(std::min<std::uint64_t>(image.store_count, max_of_one));
    begun.more = {.bytes = image.others_bytes,
                  .late = image.others_late,
                  .fills = image.others_fills,
                  .from_memory = image.others_from_memory,
                  .changed_code = image.change_code != 0};
  }
  open_ = {};
  current_.reset();
  open_.rip = image.rip;
  open_.bits = static_cast<std::uint8_t>(image.bits);
  const std::size_t size = std::min<std::size_t>(image.byte_count, image.bytes.size());
  open_.bytes.assign(image.bytes.begin(), image.bytes.begin() + static_cast<std::ptrdiff_t>(size));
  std::vector<TimedInstruction> code = timed_code(open_.bytes, open_.bits, on_);
  code.resize(std::min(code.size(), max_part - 1));
  open_.instructions = code.size();
  std::size_t bytes = 0, accesses = 0;
  for (const TimedInstruction& i : code) {
    bytes += i.length;
    accesses += std::size_t{i.loads} + i.stores;
  }
  open_.bytes.resize(bytes);
  for (std::size_t n = 0; n < accesses; ++n) {
    const bool is_known = n < std::min<std::size_t>(image.access_count, image.accesses.size());
    open_.accesses.push_back(access_of(is_known ? image.accesses[n] : AccessImage{}));
  }
  open_.more = {.bytes = image.more_bytes,
                .late = image.more_late,
                .fills = image.more_fills,
                .from_memory = image.more_from_memory,
                .changed_code = image.changed_code != 0};
  has_arrived_ = image.has_arrived != 0;
  run_ = {.mispredicted = image.mispredicted != 0,
          .taken = image.taken != 0,
          .decoded = image.decoded != 0,
          .fetch_wait = static_cast<std::uint16_t>(image.fetch_wait),
          .code_walk = static_cast<std::uint16_t>(image.code_walk),
          .code_read = static_cast<std::uint16_t>(image.code_read)};
}

// Servers before Skylake have their client's core.
const Microarchitecture& microarchitecture_of(std::string_view generation) {
  struct Named {
    std::string_view name;
    const Microarchitecture& is;
  };
  static const std::array<Named, 7> all{{{"nehalem", nehalem},
                                         {"westmere", nehalem},
                                         {"ivybridge", ivy_bridge},
                                         {"haswell", haswell},
                                         {"broadwell", broadwell},
                                         {"skylake-sp", skylake_sp},
                                         {"skylake", skylake}}};
  for (const Named& n : all)
    if (generation.starts_with(n.name)) return n.is;
  return sandy_bridge;
}

Microarchitecture changed_core(std::string_view generation, const uarch::ProfileChanges& changes) {
  Microarchitecture core = microarchitecture_of(generation);
  if (const auto buffers = changes.of(uarch::Parameter::fill_buffers))
    core.fill_buffers = static_cast<std::uint8_t>(*buffers);
  return core;
}

}  // namespace vpmu::timing
