#pragma once
// Replacing the running server by a new process, where the old one cannot go on: after a kernel has
// crashed, no process but a new one can use the GPU.
#include <string>

namespace tokamak {

// A listening socket that the process before this one left; -1: there is none. Asked for once.
int inherited_listener();

// Why the program should not be restarted: it was, several times lately. Empty: it may be.
std::string too_many_restarts();

// The same program with the same arguments in this process's place, with `listener` as its
// inherited_listener(). Memory, threads and all other files of this process are gone. `counts`: for
// too_many_restarts(). Throws Error(kUnavailable) if that fails.
[[noreturn]] void restart_program(int listener, bool counts);

}  // namespace tokamak
