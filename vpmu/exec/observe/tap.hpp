#pragma once
#include "exec/state/core.hpp"
#include "exec/state/tap.hpp"
#include "vpmu/observer.hpp"

/// How an Observer sees what ops do, at no cost while there is none.
///
/// In blocks that were decoded for an observer, the first op and all ops that touch memory have a function that notes
/// what is going to happen and then calls the real one. If the op accesses one place that is known beforehand, and the
/// TLB knows the page, the access is noted at once. All other ops run with an empty TLB, so that each access goes
/// through find_slow_path() and is noted there. leave() takes back what was noted of an op that gives up. A branch is
/// noted when its target is known: the next block begins, or the engine stops.
///
/// Compiled blocks log blocks and addresses, as SeenBlocks has them: all else is known beforehand. The log is read
/// whenever compiled code is left, even for one op: so the TLB still has what translated the addresses.
namespace vpmu::exec {

/// Makes the ops of a block that was just decoded report to the observer.
void prepare(Block& block, std::uint64_t rip, const SeenPage& page);
/// Fills in the lines of the block: its physical pages are known now.
void see_lines(Block& block);
/// The first op of `core.block` is going to run alone; `left` instructions may still retire.
void begin_alone(Core& core, std::int64_t left);
/// `op` gave up.
void note_left(Core& core, const Op& op);
/// A whole element of a string instruction is done: from here on it cannot be given up.
void note_element(Core& core);
/// `op` flushes the line at `at`, which the TLB knows for reading, from the caches.
void note_flush(Core& core, const Op& op, std::uint64_t at);
/// A software prefetch of the line at `at`, which need not be mapped.
void note_prefetch(Core& core, std::uint64_t at, Prefetch to);
/// Between Engine::run()'s beginning and end.
void begin_run(Core& core);
/// Lets more of the run's instructions pass, once few are left.
void continue_run(Core& core);
void end_run(Core& core);

/// Compiled code is going to begin with core.block, whose counts have been subtracted.
void begin_log(Core& core);
/// Compiled code was left at `site`; null: an op gave up.
void tell_log(Core& core, const Site* site);
/// Its op at `site` is going to run alone,
void begin_alone_in_log(Core& core, const Site& site);
/// and has retired.
void go_on_in_log(Core& core, const Site& site);
/// The function that reports an op to the observer and runs it; not for the first op of a block.
Run observed_run(const Block& block, std::size_t op);
/// Tells the observer what was noted up to now: the op before has retired.
void tell_all(Core& core);
/// Ends the running op, and selects the TLB of the present rights.
void end_op(Core& core);

}  // namespace vpmu::exec
