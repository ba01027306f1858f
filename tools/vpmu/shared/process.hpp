#pragma once

namespace vmm::tool {

/// For the beginning of main(), before anything is opened: prepares the process for limits and streams that are not as
/// usual.
///
/// - A closed standard stream becomes one from which nothing can be read, or to which nothing can be written. Otherwise
///   the next file that is opened would get its number, and output would go into that file.
/// - A write to a pipe without reader, or beyond the largest size of a file (`ulimit -f`), fails, and does not end the
///   process by a signal.
/// - If there is no memory left (`ulimit -v`), or the host gives no thread, the process ends with a line about it, and
///   with the code of set_failure_code().
///
/// Returns an exit code if that is impossible, otherwise 0.
int prepare_process();

/// The exit code for the above; 1 until it is set.
void set_failure_code(int code);

}  // namespace vmm::tool
