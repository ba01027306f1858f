# The Debian packages vpmu, vpmu-qemu and libvpmu-dev, one for each component of the install rules. tools/package makes them of what the preset `dev`
# builds; docs/packages.md says what is in them.
option(VPMU_PACKAGES "Install also what only the packages have, and let cpack make them" OFF)
if(NOT VPMU_PACKAGES)
  return()
endif()
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  message(FATAL_ERROR "VPMU_PACKAGES needs -DCMAKE_INSTALL_PREFIX=/usr, not ${CMAKE_INSTALL_PREFIX}: where libraries go follows from it")
endif()
set(VPMU_PACKAGE_VERSION "${PROJECT_VERSION}" CACHE STRING "The packages' version")
set(packages_directory ${PROJECT_SOURCE_DIR}/tools/dev/packages)

# A guest as a service.
install(FILES ${packages_directory}/vpmu@.service DESTINATION lib/systemd/system COMPONENT vpmu)
install(FILES ${packages_directory}/vpmu-guest DESTINATION /etc/apparmor.d COMPONENT vpmu)
install(DIRECTORY DESTINATION /etc/vpmu COMPONENT vpmu)
install(FILES ${packages_directory}/guest.conf DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT vpmu)
install(FILES ${packages_directory}/README.Debian DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT vpmu)

# LD_PRELOAD with only the library's name finds this link among the system's libraries. The file itself is beside the wrapper, where AppArmor's rules name it.
file(RELATIVE_PATH library_from_libdir ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_LIBEXECDIR}/vpmu/libvpmu-kvm.so)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/packages_link)
file(CREATE_LINK ${library_from_libdir} ${PROJECT_BINARY_DIR}/packages_link/libvpmu-kvm.so SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/packages_link/libvpmu-kvm.so DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT vpmu_qemu)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/vpmu/examples/embed DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libvpmu-dev/examples COMPONENT vpmu_core
  PATTERN run_installed.cmake EXCLUDE)
# cpack strips debug information from programs and shared libraries only: this strips the static library's members.
install(CODE "execute_process(COMMAND ${CMAKE_STRIP} --strip-debug --enable-deterministic-archives
  \"\$ENV{DESTDIR}${CMAKE_INSTALL_FULL_LIBDIR}/libvpmu_core.a\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT vpmu_core)

# Debian's changelog, with one entry for this version, and ours. The entry's date is in UTC, and that of SOURCE_DATE_EPOCH if it is set.
string(TIMESTAMP changelog_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${packages_directory}/changelog.in ${PROJECT_BINARY_DIR}/packages_changelog/changelog @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_BINARY_DIR}/packages_changelog/CHANGELOG.md COPYONLY)
execute_process(COMMAND gzip --force --best --no-name ${PROJECT_BINARY_DIR}/packages_changelog/changelog ${PROJECT_BINARY_DIR}/packages_changelog/CHANGELOG.md
  COMMAND_ERROR_IS_FATAL ANY)

# Debian's manual pages are compressed.
install(CODE "file(GLOB pages \"\$ENV{DESTDIR}${CMAKE_INSTALL_FULL_MANDIR}/man1/*.1\")
  execute_process(COMMAND gzip --force --best --no-name \${pages} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT vpmu)

foreach(component_and_package vpmu/vpmu vpmu_qemu/vpmu-qemu vpmu_core/libvpmu-dev)
  string(REPLACE "/" ";" pair ${component_and_package})
  list(GET pair 0 component)
  list(GET pair 1 package)
  string(TOUPPER ${component} upper)
  install(FILES ${packages_directory}/copyright ${PROJECT_BINARY_DIR}/packages_changelog/changelog.gz
    ${PROJECT_BINARY_DIR}/packages_changelog/CHANGELOG.md.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME vpmu)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGE_VENDOR "The vpmu authors")
set(CPACK_PACKAGE_CONTACT "The vpmu authors <vpmu@localhost>")
set(CPACK_PACKAGE_VERSION ${VPMU_PACKAGE_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL vpmu vpmu_qemu vpmu_core)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_VPMU_DESCRIPTION [[virtual Intel PMU with PEBS: guests, profiles and counts of other CPUs
vpmu boots Linux guests that see the performance counters, precise samples
and branch records of an Intel CPU from Nehalem to Skylake, on KVM or without
it, and runs single commands in such guests: on another CPU, counted, profiled.]])
set(CPACK_DEBIAN_VPMU_PACKAGE_SECTION utils)
# For `vpmu exec`, virtiofsd; it is in qemu-system-common up to Debian 12. perf runs in the guest, and reads what `vpmu profile` has recorded.
set(CPACK_DEBIAN_VPMU_PACKAGE_RECOMMENDS "virtiofsd | qemu-system-common, linux-perf | linux-tools-generic")
set(CPACK_DEBIAN_VPMU_PACKAGE_SUGGESTS "vpmu-qemu, binutils, libvirt0, passt, qemu-utils, apparmor")
set(CPACK_DEBIAN_VPMU_PACKAGE_CONTROL_EXTRA "${packages_directory}/postinst;${packages_directory}/prerm;${packages_directory}/postrm;${packages_directory}/conffiles")

set(CPACK_DEBIAN_VPMU_QEMU_DESCRIPTION [[virtual Intel PMU with PEBS for guests of QEMU and libvirt
libvpmu-kvm.so, preloaded into an unmodified QEMU, gives its guests the
performance monitoring unit of another Intel CPU. qemu-vpmu is QEMU with that
library, for who starts it by its path, as libvirt does.]])
set(CPACK_DEBIAN_VPMU_QEMU_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_VPMU_QEMU_PACKAGE_DEPENDS "vpmu (= ${VPMU_PACKAGE_VERSION})")
set(CPACK_DEBIAN_VPMU_QEMU_PACKAGE_RECOMMENDS "qemu-system-x86")
set(CPACK_DEBIAN_VPMU_QEMU_PACKAGE_SUGGESTS "libvirt-daemon-system")
set(CPACK_DEBIAN_VPMU_QEMU_PACKAGE_CONTROL_EXTRA "${packages_directory}/triggers")

set(CPACK_DEBIAN_VPMU_CORE_DESCRIPTION [[virtual Intel PMU with PEBS as a library without surroundings
The performance monitoring unit of one logical processor for a VMM of your own:
a static library, its headers for C++20, a CMake package and a pkg-config file.]])
set(CPACK_DEBIAN_VPMU_CORE_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_VPMU_CORE_DEBUGINFO_PACKAGE OFF)
set(CPACK_DEBIAN_VPMU_CORE_PACKAGE_SHLIBDEPS OFF)
include(CPack)
