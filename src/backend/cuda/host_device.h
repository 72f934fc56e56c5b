#pragma once
// Functions of headers that the host and kernels share.
#ifdef __CUDACC__
#define TK_HOST_DEVICE __host__ __device__
#else
#define TK_HOST_DEVICE
#endif
