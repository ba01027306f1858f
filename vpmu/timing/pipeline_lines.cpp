// Lines and page walks on their way.
#include <algorithm>

#include "timing/pipeline.hpp"

namespace vpmu::timing {

/// What a line adds to the tallies, which is on its way from `starts` on because of an access that begins at `begin`. A
/// line has been looked for in the L1D, and beyond it in the L2, before it is counted as one that comes from beyond.
/// One that a prefetch had asked for is counted once more when a load wants it, as Intel's lists say of
/// OFFCORE_REQUESTS_OUTSTANDING.DEMAND_DATA_RD.
void Pipeline::count_transfer(const TimedAccess& at, unsigned n, Tick begin, Tick starts, Tick arrives, bool is_store) {
  const uarch::Transfers::From from = at.transfers.from(n);
  const bool is_own = n == 0 && is_fill(at), is_awaited = is_own && at.transfers.waits_for() != 0;
  const Tick translated = is_own ? at.walk * cycle : 0;
  LineTallies& t = line_tallies_;
  if (is_own && !is_store) t.to_l1d.add(begin + translated + on_.load_latency * cycle, arrives);
  if (from == uarch::Transfers::l2) return;
  const Tick missed = starts + translated + transfer_times_.from[uarch::Transfers::l2] * cycle;
  if (is_own && is_store) return t.rfos.add(missed, arrives);
  // What is not the access' own is the line that the L1D's prefetcher wants, if it hits the L1D, or the L2's.
  if (n == 0) t.demand_reads.add(missed, arrives);
  if (is_own && from == uarch::Transfers::memory) t.memory_reads.add(missed, arrives);
  if (!is_awaited) t.reads.add(missed, arrives);
}

/// The access, which needs a page walk, is ready. Returns when that begins.
Tick Pipeline::walk(const TimedAccess& at, Tick when, bool is_store) {
  const Tick begin = walk_from(at, when), end = begin + at.walk * cycle;
  transfers_.walkers.take(begin, end);
  is_repeatable_ &= begin == when;
  if (counting_lines_ && !is_peeking_)
    (is_store ? line_tallies_.store_walks : line_tallies_.load_walks).add(begin, end);
  return begin;
}

/// The front end waits for one thing after the other.
void Pipeline::count_code(const BlockRun& how) {
  if (!counting_lines_) return;
  line_tallies_.code_walks.add(how.code_walk * cycle);
  line_tallies_.code_reads.add(how.code_read * cycle);
}

/// The access begins then, and takes so long. Its line and those that come along begin their way; returns how long it
/// takes if it must wait for memory.
Tick Pipeline::transfer(const TimedAccess& at, Tick begin, Tick loading, bool is_store) {
  const uarch::Transfers& of = at.transfers;
  for (unsigned n = 0; n < of.count(); ++n) {
    const uarch::Transfers::From from = of.from(n);
    const bool is_own = n == 0 && is_fill(at);
    const Tick takes = is_own ? loading : transfer_times_.from[from] * cycle;
    Tick starts = begin;
    const bool is_awaited = is_own && of.waits_for() != 0;  // it has come to the L2 by itself
    if (from != uarch::Transfers::l2 && !is_awaited) {
      if (from == uarch::Transfers::memory) {
        transfers_.channel = channel_for(transfers_.channel, begin);
        starts = std::max(starts, transfers_.channel);
      }
      starts = transfers_.super_queue.free_from(starts, on_.super_queue,
                                                [takes](Tick from_then) { return from_then + takes; });
      // Prefetchers hold back when memory has much to do (248966, chapter 2, data prefetching). What they then bring
      // later is taken to come without a place of its own.
      if (is_own || starts - begin < transfer_times_.from[uarch::Transfers::memory] * cycle) {
        transfers_.super_queue.take(starts, starts + takes);
        if (from == uarch::Transfers::memory) transfers_.channel += transfer_times_.channel * cycle;
      }
    }
    const Tick arrives = starts + takes;
    is_repeatable_ &= !is_own || starts == begin;
    transfers_.arrive[LineTransfers::place(of.first() + n)] = arrives;
    if (counting_lines_ && !is_peeking_) count_transfer(at, n, begin, starts, arrives, is_store);
    if (is_own) loading = arrives - begin;
  }
  return loading;
}

}  // namespace vpmu::timing
