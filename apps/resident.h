#pragma once
namespace tokamak {

// Gives back what loading a model leaves behind: free heap and, with `files`, the pages of mapped
// files, which are read again if anybody still looks at them. For programs that run for long.
void release_load_memory(bool files);

}  // namespace tokamak
