# Toolchain: the other architecture's kernels, compiled by Debian's cross compiler and run under qemu-user.
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/cross.cmake -DTK_CROSS_CPU=x86_64|aarch64 -DTK_KERNELS_ONLY=ON
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TK_CROSS_CPU)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${TK_CROSS_CPU})
set(CMAKE_C_COMPILER ${TK_CROSS_CPU}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${TK_CROSS_CPU}-linux-gnu-g++)
# Libraries of that architecture come with the cross compiler. `max` has every instruction set that the emulator supports,
# so that run-time dispatch reaches all kernels it can run.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${TK_CROSS_CPU}-static -cpu max -L /usr/${TK_CROSS_CPU}-linux-gnu)
