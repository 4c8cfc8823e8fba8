/* Three USDT probes with notes like systemtap's sys/sdt.h: without arguments, with four numbers, and with a text in addition. */
#include <stdint.h>

#define NOTE(name, arguments)                                                                        \
    "990: nop\n"                                                                                     \
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"                                          \
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"                      \
    "993: .8byte 990b, _.stapsdt.base, 0\n"                                                          \
    ".asciz \"bench\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n" \
    ".ifndef _.stapsdt.base\n"                                                                       \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                          \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"                       \
    ".size _.stapsdt.base, 1\n.popsection\n.endif\n"

__attribute__((visibility("default"))) void bare(uint64_t a, const char *text)
{
    (void)a, (void)text;
    __asm__ volatile(NOTE("bare", "") :);
}

__attribute__((visibility("default"))) void four(uint64_t a, const char *text)
{
    (void)text;
    __asm__ volatile(NOTE("four", "8@%0 8@%0 8@%0 8@%0") : : "r"(a));
}

__attribute__((visibility("default"))) void text(uint64_t a, const char *text)
{
    __asm__ volatile(NOTE("text", "8@%0 8@%0 8@%0 8@%0 8@%1") : : "r"(a), "r"(text));
}
