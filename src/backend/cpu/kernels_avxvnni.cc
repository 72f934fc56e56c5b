// x86-64 with AVX2 and AVX-VNNI: the AVX2 level with vpdpbusd.
#include "backend/cpu/kernels_avx2.cc"
