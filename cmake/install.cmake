# cmake --install: the program, the public headers, and the libraries with a package config, so that another project can
# say find_package(Tokamak) and link Tokamak::tokamak.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Appends the libraries of this project that `target` links, itself included, to the list `out`.
function(tk_lanes_of target out)
  set(lanes ${${out}})
  if(NOT target IN_LIST lanes)
    list(APPEND lanes ${target})
    get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
    foreach(link IN LISTS links)
      if(link MATCHES "^tk_")
        tk_lanes_of(${link} lanes)
      endif()
    endforeach()
  endif()
  set(${out} ${lanes} PARENT_SCOPE)
endfunction()

set(TK_INSTALLED_LANES "")
tk_lanes_of(tk_api TK_INSTALLED_LANES)
set_target_properties(tk_api PROPERTIES EXPORT_NAME tokamak)
target_include_directories(tk_api INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(tk_api INTERFACE cxx_std_20)

install(TARGETS tokamak RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tokamak DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ${TK_INSTALLED_LANES} EXPORT TokamakTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/tokamak)
set(TK_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/Tokamak)
install(EXPORT TokamakTargets NAMESPACE Tokamak:: DESTINATION ${TK_PACKAGE_FOLDER})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TokamakConfig.cmake.in ${PROJECT_BINARY_DIR}/TokamakConfig.cmake
                              INSTALL_DESTINATION ${TK_PACKAGE_FOLDER})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TokamakConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TokamakConfig.cmake ${PROJECT_BINARY_DIR}/TokamakConfigVersion.cmake
        DESTINATION ${TK_PACKAGE_FOLDER})
