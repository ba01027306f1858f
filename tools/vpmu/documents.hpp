#pragma once

namespace vmm::tool {

class Command;
class CommandLine;

/// Adds `vpmu completion` and `vpmu manual`, which print and write what is made of the tables of `app`'s options, and
/// the hidden command that the shells' scripts ask. All of them see what is in `app` when they run. `exit_code`: 0
/// done, 1 the host failed, 2 wrong use. Both must live as long as `app`.
void add_documents(CommandLine& app, int& exit_code);

}  // namespace vmm::tool
