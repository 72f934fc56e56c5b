# Helpers that every lane uses; nothing else belongs here.
find_package(Threads REQUIRED)
if(CMAKE_CROSSCOMPILING)
  # Headers and sources work on every CPU; Debian's libraries are built for this machine's CPU only.
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
  if(TK_TESTS)
    add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    target_compile_options(gtest PRIVATE -w)
  endif()
else()
  find_package(fmt REQUIRED)
  if(TK_TESTS)
    find_package(GTest REQUIRED)
  endif()
endif()

find_program(TK_CCACHE ccache)
if(TK_CCACHE)
  # ccache needs this sloppiness to handle precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${TK_CCACHE})
endif()
find_program(TK_MOLD mold)
if(TK_MOLD AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

# -Wrestrict and, at -O3, two more: gcc 12 reports false overlaps and overflows in std::string's operator+ (GCC bug
# 105329).
# Warnings are errors with Debian 12's gcc, which CI uses; newer compilers warn about more and must still build.
set(TK_GCC12 $<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>)
add_compile_options(-Wall -Wextra $<${TK_GCC12}:-Werror> $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-stringop-overflow>
                    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-array-bounds>
                    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
# With this gcc does not collect garbage while it compiles, which saves a tenth of the time; it then needs up to 0.9 GB.
cmake_host_system_information(RESULT TK_MEMORY QUERY TOTAL_PHYSICAL_MEMORY)
if(EXISTS /sys/fs/cgroup/memory.max)  # a container's limit in bytes, or "max"
  file(READ /sys/fs/cgroup/memory.max TK_CGROUP_MEMORY)
  string(STRIP "${TK_CGROUP_MEMORY}" TK_CGROUP_MEMORY)
  if(TK_CGROUP_MEMORY MATCHES "^[0-9]+$")
    math(EXPR TK_CGROUP_MEMORY "${TK_CGROUP_MEMORY} / 1048576")
    if(TK_CGROUP_MEMORY LESS TK_MEMORY)
      set(TK_MEMORY ${TK_CGROUP_MEMORY})
    endif()
  endif()
endif()
cmake_host_system_information(RESULT TK_CORES QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR TK_MEMORY_PER_CORE "${TK_MEMORY} / ${TK_CORES}")
if(TK_MEMORY_PER_CORE GREATER 1800)
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)
endif()
# As gcc does in standard C++: a * b + c is rounded twice unless the source asks for one rounding.
add_compile_options($<$<CXX_COMPILER_ID:Clang>:-ffp-contract=off>)
if(TK_SANITIZE)
  # UBSan checks that ASan or a crash would also find are disabled: they make builds 70 % slower. The fuzzers, which invent
  # lengths and offsets, keep the check for pointers that wrap around.
  string(REGEX MATCH undefined TK_UBSAN "${TK_SANITIZE}")
  set(TK_UBSAN_OFF null,alignment,object-size,vptr)
  if(NOT TK_FUZZ)
    string(APPEND TK_UBSAN_OFF ,pointer-overflow)
  endif()
  add_compile_options(-fsanitize=${TK_SANITIZE} $<$<BOOL:${TK_UBSAN}>:-fno-sanitize=${TK_UBSAN_OFF}>
                      -fno-omit-frame-pointer -fno-sanitize-recover=all -O1)
  add_link_options(-fsanitize=${TK_SANITIZE})
endif()
if(TK_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
# ASan's checks as calls instead of inline code: compiles 20 % faster. Not where tests compute for long.
set(TK_COMPUTE_LANES "^(tensor|ops|loop|backend|backend_(common|cpu|null|ref)|engine_core)$")
# Lanes that compute little are not optimised there: a third less time to compile.
set(TK_UNOPTIMISED_LANES "^(api|explain|import|serve.*)$")
if(TK_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TK_CHECKS_AS_CALLS "SHELL:--param asan-instrumentation-with-call-threshold=0")
endif()

set(TK_COMMON_HEADERS <algorithm> <cstdint> <functional> <map> <memory> <optional> <span> <string> <string_view>
    <unordered_map> <variant> <vector> <fmt/format.h>)

# A precompiled header fits one level of optimisation only.
function(tk_pch_library name)
  add_library(${name} STATIC ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  target_link_libraries(${name} PUBLIC fmt::fmt Threads::Threads)
  target_precompile_headers(${name} PRIVATE ${TK_COMMON_HEADERS})
  target_compile_options(${name} PRIVATE ${ARGN})
endfunction()
if(TK_SANITIZE MATCHES address)
  tk_pch_library(tk_unoptimised_pch -O0)
endif()

# tk_library(engine SOURCES a.cc b.cc DEPENDS plan backend LIBS fmt::fmt): one static library per lane.
# SEPARATE: its files define the same internal names, so they are excluded from unity builds.
function(tk_library name)
  cmake_parse_arguments(A "SEPARATE" "" "SOURCES;DEPENDS;LIBS" ${ARGN})
  add_library(tk_${name} STATIC ${A_SOURCES})
  list(TRANSFORM A_DEPENDS PREPEND tk_)
  target_link_libraries(tk_${name} PUBLIC ${A_DEPENDS} ${A_LIBS} fmt::fmt Threads::Threads)
  target_include_directories(tk_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                             $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  if(name STREQUAL "base")
    target_precompile_headers(tk_base PRIVATE ${TK_COMMON_HEADERS})
  elseif(TK_SANITIZE MATCHES address AND name MATCHES "${TK_UNOPTIMISED_LANES}")
    target_compile_options(tk_${name} PRIVATE -O0)
    target_precompile_headers(tk_${name} REUSE_FROM tk_unoptimised_pch)
  else()
    target_precompile_headers(tk_${name} REUSE_FROM tk_base)
  endif()
  if(A_SEPARATE)
    set_target_properties(tk_${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(NOT name MATCHES "${TK_COMPUTE_LANES}")
    target_compile_options(tk_${name} PRIVATE ${TK_CHECKS_AS_CALLS})
  endif()
endfunction()

# tk_embed(generated/serve/web/page_data.h tokamak::web index.html ...): a header with these files, as cmake/embed.cmake
# writes it; the caller adds it to the sources of a target and generated/ to its include folders.
function(tk_embed header space)
  set(files "")
  foreach(file IN LISTS ARGN)
    get_filename_component(file ${file} ABSOLUTE)
    list(APPEND files ${file})
  endforeach()
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${header})
  add_custom_command(OUTPUT ${out} DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DSPACE=${space} "-DFILES=${files}"
                             -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
endfunction()

# Not everything is compiled four times: the release build runs the tests whose result the optimiser can change (and
# the black-box tests of the binary), the tsan build those of threaded code, the cross build those of kernels.
# `make test` builds these groups. Long computations run optimised only: with a sanitizer they would take minutes, and shorter
# tests run the same code.
set(TK_OPTIMISED_TESTS "^(cuda_engine|cuda_models|cuda_search|cuda_stream|families|numerics|rules|mutation)$")
set(TK_RELEASE_TESTS "^(tensor|ops|cpu|backend.*)$|${TK_OPTIMISED_TESTS}")
set(TK_TSAN_TESTS "^(base|cpu|backend.*|engine.*|serve.*)$")
set(TK_CROSS_TESTS "^(tensor|ops|cpu|backend.*)$")
add_custom_target(release_tests)
add_custom_target(tsan_tests)
add_custom_target(cross_tests)

# A test's own code is hardly optimised, which halves the time to compile it; the libraries it tests are.
if(TK_SANITIZE)
  set(TK_TEST_OPTIMISATION -O0)
else()
  set(TK_TEST_OPTIMISATION -O1)
endif()
if(TK_TESTS)
  tk_pch_library(tk_test_pch ${TK_TEST_OPTIMISATION})
  target_link_libraries(tk_test_pch PUBLIC GTest::gtest)
  target_precompile_headers(tk_test_pch PRIVATE <gtest/gtest.h>)
endif()
function(tk_test_code target)
  target_compile_options(${target} PRIVATE ${TK_TEST_OPTIMISATION} ${TK_CHECKS_AS_CALLS})
  target_precompile_headers(${target} REUSE_FROM tk_test_pch)
  target_link_libraries(${target} PRIVATE GTest::gtest)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# tk_test_library(serve_fake SOURCES a.cc DEPENDS serve): what several test programs share.
function(tk_test_library name)
  if(TK_TESTS)
    cmake_parse_arguments(A "" "" "SOURCES;DEPENDS" ${ARGN})
    list(TRANSFORM A_DEPENDS PREPEND tk_)
    add_library(tk_${name} STATIC ${A_SOURCES})
    target_link_libraries(tk_${name} PUBLIC ${A_DEPENDS})
    tk_test_code(tk_${name})
  endif()
endfunction()

# tk_test_program(fake_server SOURCES a.cc DEPENDS serve): a program that tests run, without GoogleTest's main().
function(tk_test_program name)
  if(TK_TESTS)
    cmake_parse_arguments(A "" "" "SOURCES;DEPENDS" ${ARGN})
    list(TRANSFORM A_DEPENDS PREPEND tk_)
    add_executable(${name} ${A_SOURCES})
    target_link_libraries(${name} PRIVATE ${A_DEPENDS})
    tk_test_code(${name})
  endif()
endfunction()

# With AddressSanitizer the unit tests are one program, run in three parts: a leak check takes 4 s of CPU time at the end of each process
# on aarch64. Not those that replace operator new, nor long ones.
set(TK_SEPARATE_TESTS "^(backend_common|cpu|cuda_faults|engine|import_damage)$")
if(TK_TESTS AND TK_SANITIZE MATCHES address AND NOT TK_FUZZ AND NOT TK_KERNELS_ONLY)
  set(TK_JOINT_TESTS ON)
  add_executable(unit_tests ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  target_link_libraries(unit_tests PRIVATE GTest::gtest GTest::gtest_main)
endif()

# Slow tests start first (COST), so that no core waits for them at the end.
# tk_test(engine SOURCES a_test.cc DEPENDS engine [LABEL unit] [TIMEOUT 300] [TINY_MODELS]): one GoogleTest program per
# lane. TINY_MODELS: the folder in $TOKAMAK_TINY_MODELS is filled before the test runs.
function(tk_test name)
  if(NOT TK_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "TINY_MODELS" "LABEL;TIMEOUT" "SOURCES;DEPENDS;LIBS" ${ARGN})
  add_executable(${name}_test ${A_SOURCES})
  list(TRANSFORM A_DEPENDS PREPEND tk_)
  target_link_libraries(${name}_test PRIVATE ${A_DEPENDS} ${A_LIBS} GTest::gtest_main)
  tk_test_code(${name}_test)
  add_test(NAME ${name} COMMAND ${name}_test)
  if(name MATCHES "${TK_OPTIMISED_TESTS}")
    set(A_LABEL optimised)
    set_target_properties(${name}_test PROPERTIES EXCLUDE_FROM_ALL ON)
  elseif(TK_JOINT_TESTS AND NOT name MATCHES "${TK_SEPARATE_TESTS}")
    set(A_LABEL joint)
    set_target_properties(${name}_test PROPERTIES EXCLUDE_FROM_ALL ON)
    target_sources(unit_tests PRIVATE $<TARGET_OBJECTS:${name}_test>)
    target_link_libraries(unit_tests PRIVATE ${A_DEPENDS} ${A_LIBS})
  elseif(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  foreach(group release tsan cross)
    string(TOUPPER TK_${group}_TESTS members)
    if(name MATCHES "${${members}}")
      list(APPEND A_LABEL ${group})
      add_dependencies(${group}_tests ${name}_test)
    endif()
  endforeach()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABEL}" TIMEOUT ${A_TIMEOUT} COST ${A_TIMEOUT}
                       ENVIRONMENT "${TK_TEST_ENVIRONMENT}")
  if(A_TINY_MODELS)
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED tiny_models)
  endif()
endfunction()

# Python for the tests that need packages (tools/install_deps.sh creates it), and the real model for some of them.
set(TK_PYTHON "" CACHE FILEPATH "Python with the packages of tools/requirements-test.txt")
set(TK_TEST_MODEL "" CACHE FILEPATH "GGUF of SmolLM2-135M-Instruct for the tests that talk to a real model")

# The environment of every test. TOKAMAK_TINY_MODELS and TOKAMAK_TINY_FAMILIES are filled by the fixture `tiny_models`.
set(TK_TEST_ENVIRONMENT
    "TOKAMAK_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "TOKAMAK_BINARY=${CMAKE_BINARY_DIR}/tokamak"
    "TOKAMAK_TINY_MODELS=${CMAKE_BINARY_DIR}/tiny_models"
    "TOKAMAK_TINY_FAMILIES=${CMAKE_BINARY_DIR}/tiny_families"
    "TOKAMAK_TEST_MODEL=${TK_TEST_MODEL}"
    "TOKAMAK_CACHE=${CMAKE_BINARY_DIR}/compile_cache"
    "TOKAMAK_PYTHON=${TK_PYTHON}"
    "PYTHONDONTWRITEBYTECODE=1")

# tk_python_test(http SCRIPT http_test.py [ARGS ...] [LABEL blackbox] [TIMEOUT 300] [TINY_MODELS] [REAL_MODEL]): a test
# program in Python; it runs the built `tokamak` from the environment above and fails by its exit code. Leaks are
# checked in the C++ tests only: the check takes 4 s at the end of each process on aarch64, and these tests start many.
function(tk_python_test name)
  if(NOT TK_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "TINY_MODELS;REAL_MODEL" "SCRIPT;LABEL;TIMEOUT" "ARGS" ${ARGN})
  if(NOT TK_PYTHON OR (A_REAL_MODEL AND NOT TK_TEST_MODEL))
    message(STATUS "test ${name} skipped: it needs TK_PYTHON or TK_TEST_MODEL (make test sets both)")
    return()
  endif()
  if(NOT A_LABEL)
    set(A_LABEL blackbox)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${TK_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${A_SCRIPT} ${A_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABEL}" TIMEOUT ${A_TIMEOUT} COST ${A_TIMEOUT}
                       ENVIRONMENT "${TK_TEST_ENVIRONMENT};ASAN_OPTIONS=detect_leaks=0")
  if(A_TINY_MODELS)
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED tiny_models)
  endif()
endfunction()
