#pragma once

namespace vmm::tool {

class Command;
class CommandLine;

/// Adds `vpmu completion` and `vpmu manual`, which print and write documents made from the options of `app`, and
/// the hidden command that the shells' scripts call. All of them see what `app` has when they run. `exit_code`: 0
/// done, 1 the host failed, 2 wrong use. Both must live as long as `app`.
void add_documents(CommandLine& app, int& exit_code);

}  // namespace vmm::tool
