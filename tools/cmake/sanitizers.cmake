# Applies VPMU_SANITIZE to every target that follows.
if(VPMU_SANITIZE)
  add_compile_options(-fsanitize=${VPMU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${VPMU_SANITIZE})
endif()
