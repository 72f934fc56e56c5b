#pragma once
namespace tokamak {

// Returns memory that loading a model no longer needs: free heap and, with `files`, the pages of
// mapped files, which are read again when they are needed. It acts on the whole process; for
// programs that run for long.
void release_load_memory(bool files);

}  // namespace tokamak
