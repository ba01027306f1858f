#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "uarch/address_spaces.hpp"
#include "uarch/core_clock.hpp"
#include "uarch/line_transfers.hpp"
#include "uarch/prefetchers.hpp"
#include "uarch/sharing.hpp"
#include "uarch/tlb.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/offcore.hpp"
#include "vpmu/retirement.hpp"
#include "vpmu/uncore.hpp"

namespace vpmu::uarch {

/// A load or store of `bytes` bytes at `linear`, which lie in one page.
struct DataAccess {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint32_t bytes{};
  PageSize page{};
  bool global{};  ///< The page is global.
};

/// The result of a load or store.
struct DataResult {
  HitLevel level{};  ///< Of the slower line, if the access spans two.
  TlbResult tlb{};
  std::uint16_t latency{};    ///< Core cycles from dispatch to data.
  bool split{};               ///< The access spans two lines.
  Prefetched met_prefetch{};  ///< The line is in flight to the L1D because of a prefetch.
  bool changed_code{};        ///< A store to a line of code that the L1I had.
  PageSize page{};
  std::uint16_t waits{};       ///< Cycles of `latency` for a line that was on its way already: an estimate.
  std::uint16_t walk{};        ///< And for the page walk.
  std::uint16_t store_late{};  ///< Of a load and store: those for which the store waits behind the load.
  Transfers transfers{};
  friend bool operator==(const DataResult&, const DataResult&) = default;
};

/// The result of fetching a line of code.
struct FetchResult {
  HitLevel level{};  ///< l1, l2, l3, l3_shared, l3_modified or dram.
  TlbResult tlb{};
  bool decoded{};        ///< Its instructions were in the decoded micro-op cache.
  std::uint16_t walk{};  ///< Cycles of the page walk.
  friend bool operator==(const FetchResult&, const FetchResult&) = default;
};

/// Lines whose repeated use changes nothing in the models of caches and TLBs: each is the most recently used of its L1
/// set, as is its page in the first TLB, and it is not in flight. By linear address; a place holds one line.
class Repeats {
 public:
  /// Lines in a page. An L1 has this many sets, or a multiple. So lines of one set share a place, and a line's linear
  /// and physical addresses give the same place.
  static constexpr std::uint64_t places = 64;

  /// `sets`: of the TLB for pages of 4 KiB.
  explicit Repeats(std::uint32_t sets) : last_set_{std::min<std::uint32_t>(sets, max_sets) - 1} { clear(); }

  [[nodiscard]] bool has(std::uint64_t linear) const { return lines_[linear / line_bytes % places] == marked(linear); }
  void put(std::uint64_t linear) { lines_[linear / line_bytes % places] = marked(linear); }
  /// Drops what is at the place of this line. `line`: a line number, linear or physical.
  void drop(std::uint64_t line) { lines_[line % places] = none; }
  /// Drops all lines of pages that share a TLB set with the 4 KiB page at `linear`: the set's latest page changes.
  void drop_pages(std::uint64_t linear) {
    std::uint64_t& mark = marks_[linear / page_size & last_set_];
    mark += 1ULL << mark_at;
    if (mark == 0) clear();
  }
  void clear() { lines_.fill(none); }

 private:
  static constexpr std::uint32_t max_sets = 64;
  static constexpr std::uint64_t none = ~0ULL;
  // A canonical address has 48 significant bits, its line number 42; the bits above are copies of the highest. So two
  // different lines never become equal by their marks.
  static constexpr unsigned mark_at = 44;
  [[nodiscard]] std::uint64_t marked(std::uint64_t linear) const {
    return linear / line_bytes ^ marks_[linear / page_size & last_set_];
  }

  std::array<std::uint64_t, places> lines_{};
  std::array<std::uint64_t, max_sets> marks_{};  ///< Of each TLB set: only lines with its present mark are valid.
  std::uint64_t last_set_;
};

/// The key of a line in the L3, and the line of a key. The L3 spreads lines over its slices and sets by more bits of
/// the address than number these, so that lines a power of two apart do not crowd. Intel does not document how; this is
/// some such function.
constexpr std::uint64_t l3_key(std::uint64_t line) { return line ^ line >> 7; }
constexpr std::uint64_t l3_line(std::uint64_t key) {
  key ^= key >> 7;
  key ^= key >> 14;
  key ^= key >> 28;
  return key ^ key >> 56;
}

/// Caches, TLBs and fill buffers of one core, which one thread uses or two, with a clock that tells which fills are in
/// flight. It advances by advance(), and by the wait of an access for a fill buffer when all are in use. Otherwise
/// loads do not wait for each other.
///
/// When someone else keeps the time, who knows when each access begins (keep_time_outside()), hardware prefetchers
/// work, page walks are loads, and the L3 replaces lines as the profile says. Without time there is no telling whether
/// a prefetch is in time: then what a program finds where is simpler to foretell.
///
/// Deterministic: the same accesses after construction give the same results. Allocates in its constructor only; about
/// 0.6 MiB with an L3 of 8 MiB.
class Hierarchy {
 public:
  static constexpr unsigned max_threads = 2;
  static constexpr unsigned max_fill_buffers = 16;  ///< Profile::fill_buffers is no more.
  /// Cold: nothing in any cache. Two threads share the L1s, the L2, the data TLB, the
  /// second level TLB and the fill buffers; each has half of the TLB for small pages of code and of the decoded
  /// micro-op cache, and a TLB of its own for large pages of code.
  explicit Hierarchy(const Profile& profile, unsigned threads = 1);
  /// What follows is done by this thread, until another one is named.
  void run_thread(unsigned thread) {
    if (thread != thread_) [[unlikely]]
      change_thread(thread);
  }

  /// From here on it is one of several coherent cores of a package, all of the same profile, and must not move. They
  /// have one L3, whose state each of them visits. Both must outlive their use.
  void share(Sharing& with);
  /// Another core reads the line or, with `loses_it`, is going to store to it. Returns what this core had; afterwards
  /// it has the line unchanged, or not at all.
  Snoop snooped(std::uint64_t line, bool loses_it);

  DataResult load(const DataAccess& access) { return do_access(access, OffcoreRequest::demand_data_read); }
  /// Stores allocate lines as loads do; write-backs are free.
  DataResult store(const DataAccess& access) { return do_access(access, OffcoreRequest::demand_rfo); }
  /// Either of them. Inlined, because returning the result through memory costs the host more than computing it.
  [[gnu::always_inline]] DataResult do_access(const DataAccess& access, OffcoreRequest request) {
    TlbResult tlb = TlbResult::hit;
    if (!dtlb_.is_latest(access.linear, access.page, access.global)) {
      drop_pages(repeated_data_, access.linear, access.page);
      drop_pages(repeated_stores_, access.linear, access.page);
      tlb = dtlb_.look_up_older(access.linear, access.page, access.global);
    }
    const std::uint64_t first = access.physical / line_bytes;
    const std::uint64_t last = (access.physical + std::max(access.bytes, 1U) - 1) / line_bytes;
    const bool stores = request == OffcoreRequest::demand_rfo;
    const bool changed_code =
        stores && (takes_code(access.linear, first) || (last != first && takes_code(access.linear + line_bytes, last)));
    const auto offset = static_cast<unsigned>(access.physical % line_bytes);
    Line line = data_line(first, {offset, access.bytes}, request);
    if (last != first) [[unlikely]] {
      line = slower(line, data_line(last, {0, access.bytes - static_cast<unsigned>(line_bytes - offset)}, request));
      line.latency += profile_.latency.split;
    } else if (line.level == HitLevel::l1 && !line.is_forwarded && !prefetchers_.watches(first)) {
      repeated_data_.put(access.linear);
      if (stores) repeated_stores_.put(access.linear);
    }
    if (tlb == TlbResult::stlb_hit) line.latency += profile_.latency.stlb_hit;
    std::uint16_t walks{};
    if (tlb == TlbResult::walk) [[unlikely]] {
      walks = walk(access.linear, access.page, /*for_code=*/false);
      line.latency += walks;
    }
    return {.level = line.level,
            .tlb = tlb,
            .latency = static_cast<std::uint16_t>(std::min<std::uint32_t>(line.latency, 0xFFFF)),
            .split = last != first,
            .met_prefetch = line.met_prefetch,
            .changed_code = changed_code,
            .page = access.page,
            .waits = line.waits,
            .walk = walks,
            .transfers = line.transfers};
  }
  /// A software prefetch of a line: into the L1, too, or only into the L2; `request` says whether to write it.
  DataResult prefetch(const DataAccess& access, OffcoreRequest request, bool into_l1);
  /// The line that holds `physical`, fetched from `linear`.
  FetchResult fetch(std::uint64_t linear, std::uint64_t physical, PageSize page, bool global = false);

  /// Whether load() or store() is known to hit the L1 and the first TLB and to change nothing in the models, whatever
  /// the clock says.
  [[nodiscard]] bool access_repeats(std::uint64_t linear, std::uint32_t bytes, bool store) const {
    return repeated_data_.has(linear) && linear % line_bytes + bytes <= line_bytes &&
           (!store || repeated_stores_.has(linear));
  }
  /// Replaces fetch() if that would change nothing, because everything is present and the latest of its sets. False:
  /// nothing was done, call fetch().
  [[nodiscard]] bool fetch_fast(std::uint64_t linear, std::uint64_t physical, PageSize page, bool global = false) {
    const std::uint64_t window = linear / line_bytes * windows_in_line;
    const RecencySets& decoded = decoded_[thread_];
    const bool repeats = itlb_[thread_].is_latest(linear, page, global) && l1i_.is_latest(physical / line_bytes) &&
                         (!has_decoded() || (decoded.is_latest(window) && decoded.is_latest(window + 1)));
    if (repeats) repeated_code_.put(linear);
    return repeats;
  }
  /// Whether the profile has a decoded micro-op cache.
  [[nodiscard]] bool has_decoded() const { return profile_.decoded.sets != 0; }
  /// Whether fetch() is known to change nothing.
  [[nodiscard]] bool fetch_repeats(std::uint64_t linear) const { return repeated_code_.has(linear); }
  /// From here on a linear address may be mapped elsewhere.
  void remapped() {
    repeated_data_.clear();
    repeated_stores_.clear();
    repeated_code_.clear();
  }

  /// Lines that a thread has filled into the L1D.
  [[nodiscard]] std::uint64_t l1d_fills(unsigned thread = 0) const { return l1d_fills_[thread]; }
  /// What a thread has caused, by CacheEvent.
  [[nodiscard]] const std::array<std::uint64_t, cache_event_count>& cache_events(unsigned thread = 0) const {
    return cache_events_[thread];
  }
  /// Lines that a thread wanted and the L2 lacked, by offcore_cell().
  [[nodiscard]] const std::array<std::uint64_t, offcore_cell_count>& offcore(unsigned thread = 0) const {
    return offcore_[thread];
  }

  /// The last level cache has this many slices, by a hash of the address; at most LlcCounts::max_slices.
  void slice(unsigned slices) { slice_count_ = slices; }
  /// What the core's requests came to in each slice.
  [[nodiscard]] const LlcCounts& llc() const { return llc_; }
  /// Whether it has since the last call had a line that another core had changed.
  bool took_changed_line() { return std::exchange(took_changed_line_, std::uint8_t{0}) != 0; }

  /// From here on whoever keeps the time also keeps the fill buffers: no access waits for one here.
  void keep_time_outside() {
    keeps_time_ = false;
    for (RecencySets* const l1 : {&l1i_, &l1d_}) l1->replace_by_tree();
    if (profile_.l2_replacement == Replacement::tree) l2_.replace_by_tree();
    l3().adapt(profile_.l3_replacement == Replacement::adaptive);
  }
  /// How long lines take on their way, for who keeps the time.
  [[nodiscard]] TransferTimes transfer_times() const;
  /// Which hardware prefetchers do not work, besides the profile's: reg::misc_feature_control.
  void turn_off(std::uint8_t prefetchers) {
    prefetchers_.turn_off(static_cast<std::uint8_t>(prefetchers | profile_.prefetchers_off));
  }
  /// Lets `cycles` cycles pass.
  void advance(std::uint64_t cycles) { transfers_.advance(cycles, !keeps_time_); }
  [[nodiscard]] std::uint64_t cycles() const { return transfers_.now(); }

  /// Removes the line of `physical` from all caches, those of other cores too, and that of `linear` from the micro-op
  /// cache. SDM 2A CLFLUSH.
  void flush_line(std::uint64_t linear, std::uint64_t physical);
  /// Empties all caches, and with an inclusive L3 those of other cores. SDM 2C WBINVD.
  void flush_caches();
  /// What happens to the thread's TLBs, and to the paging-structure caches. False: nothing, because the PCID is in use
  /// already.
  bool flush_tlbs(const TlbFlush& flush);
  /// Caches, TLBs, fill buffers and the clock; not the counts. The visitor may write any bytes: the model then gives
  /// some results.
  void visit_state(const StateVisitor& visit);
  [[nodiscard]] const Profile& profile() const { return profile_; }
  [[nodiscard]] unsigned threads() const { return threads_; }

 private:
  /// An entry of the decoded micro-op cache stands for 32 bytes of code.
  static constexpr std::uint64_t windows_in_line = 2;
  struct Line {
    HitLevel level;
    std::uint32_t latency;
    Prefetched met_prefetch{};
    std::uint16_t waits{};
    Transfers transfers{};
    bool is_forwarded{};  ///< By a store that waits for the line.
  };
  /// Of a line: those of an access.
  struct Part {
    unsigned offset;
    unsigned bytes;
    [[nodiscard]] std::uint64_t mask() const {
      return bytes < line_bytes ? ((std::uint64_t{1} << bytes) - 1) << offset : ~std::uint64_t{0} << offset;
    }
  };
  static Line slower(const Line& first, const Line& second);

  // A line is in the L1 as soon as its fill begins, and on its way until it ends.
  Line data_line(std::uint64_t line, Part part, OffcoreRequest request) {
    repeated_data_.drop(line);
    repeated_stores_.drop(line);
    if (!l1d_.touch(line)) return missed_line(line, part, request);
    const std::uint32_t until_owned = is_to_be_owned(request) ? own(line) : 0;
    if (keeps_time_ && transfers_.find(line) == nullptr) [[likely]]
      return {HitLevel::l1, profile_.latency.l1 + until_owned};
    Line found = hit_line(line, part, request);
    found.latency += until_owned;
    return found;
  }
  Line hit_line(std::uint64_t line, Part part, OffcoreRequest request);
  Line missed_line(std::uint64_t line, Part part, OffcoreRequest request);
  /// Until the line is there, if it is on its way to that cache, and else `cycles`.
  [[nodiscard]] std::uint32_t rest_of(const LineTransfers::Transfer& transfer, std::uint32_t cycles) const {
    return std::max(cycles, static_cast<std::uint32_t>(transfer.ready - transfers_.now()));
  }
  /// A store to the line: the L1I has it no longer. Whether it had. SDM 3A 11.6.
  bool takes_code(std::uint64_t linear, std::uint64_t line) {
    if (!l1i_.contains(line)) [[likely]]
      return false;
    drop_code(linear, line);
    return true;
  }
  void drop_code(std::uint64_t linear, std::uint64_t line);
  static void drop_pages(Repeats& of, std::uint64_t linear, PageSize size) {
    if (size == PageSize::small) return of.drop_pages(linear);
    of.clear();
  }
  HitLevel below_l1(std::uint64_t line, OffcoreRequest request);
  HitLevel below_l2(std::uint64_t line, OffcoreRequest request);
  void count(CacheEvent event) { ++cache_events_[thread_][static_cast<unsigned>(event)]; }
  void count_off_core(std::uint64_t line, OffcoreRequest request, OffcoreSupplier supplier);
  void prefetch_for(std::uint64_t line, Transfers& transfers);
  void prefetch_next(std::uint64_t line, Transfers& transfers);
  std::uint16_t walk(std::uint64_t linear, PageSize size, bool for_code);
  std::uint16_t load_entry(std::uint64_t linear, unsigned level, bool for_code);
  [[nodiscard]] Snoop ask_others(std::uint64_t line, OffcoreRequest request);
  [[nodiscard]] bool is_to_be_owned(OffcoreRequest request) const {
    return sharing_ != nullptr && request == OffcoreRequest::demand_rfo;
  }
  std::uint32_t own(std::uint64_t line);
  RecencySets& l3() { return sharing_ == nullptr ? own_l3_ : sharing_->l3(); }
  template <class Do>
  void for_each_core(const Do& act);
  void lose(std::uint64_t line);
  void empty();
  void fill_l2(std::uint64_t line);
  void fill_l3(std::uint64_t line);
  [[nodiscard]] std::uint16_t latency_of(HitLevel level) const;
  void take_fill_buffer(std::uint32_t cycles);
  void change_thread(unsigned thread);
  void tag_pages();

  Profile profile_;
  unsigned threads_;
  unsigned thread_{};
  RecencySets l1i_, l1d_, l2_, own_l3_;
  std::array<RecencySets, max_threads> decoded_;
  SecondLevel stlb_;
  Tlb dtlb_;
  std::array<Tlb, max_threads> itlb_;
  std::array<AddressSpaces, max_threads> spaces_;
  Sharing* sharing_{};  ///< Null: there is no other core.
  std::uint8_t took_changed_line_{};
  RecencySets owned_;  ///< Lines that were stored to since they were filled: those that are still cached are modified.
  Repeats repeated_data_, repeated_code_;
  Repeats repeated_stores_;  ///< The same for stores: lines that this core owns, and that are no code.
  std::array<std::uint64_t, max_fill_buffers> fills_{};  ///< Until when each fill buffer is in use.
  LineTransfers transfers_;
  Prefetchers prefetchers_;
  RecencySets directories_, directory_pointers_;  ///< The paging-structure caches. SDM 3A 4.10.3.
  std::array<std::array<std::uint64_t, offcore_cell_count>, max_threads> offcore_{};
  std::array<std::array<std::uint64_t, cache_event_count>, max_threads> cache_events_{};
  std::array<std::uint64_t, max_threads> l1d_fills_{};
  LlcCounts llc_{};
  unsigned slice_count_{1};
  bool keeps_time_{true};
};

}  // namespace vpmu::uarch
