# The parts of report.html, in the program: profile needs no other file of ours.
        .section .rodata
        .globl  vpmu_report_page, vpmu_report_page_end
vpmu_report_page:
        .incbin REPORT_PAGE
vpmu_report_page_end:
        .globl  vpmu_report_style, vpmu_report_style_end
vpmu_report_style:
        .incbin REPORT_STYLE
vpmu_report_style_end:
        .globl  vpmu_report_script, vpmu_report_script_end
vpmu_report_script:
        .incbin REPORT_SCRIPT
vpmu_report_script_end:
        .section .note.GNU-stack, "", @progbits
